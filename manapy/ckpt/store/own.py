"""Which files can be trusted: those that only this user or root can have written. Mirror of
lowerhalf/include/manapy/own.h.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ...core.errors import why

WRITERS = 0o022  # permission bits that let others write


def complaint(path: Path) -> str | None:
    """Why a path must not be trusted, in one line; None if it may be, or does not exist."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return why(error, path)
    return complaint_of(path, found)


def complaint_of(path: Path, found: os.stat_result) -> str | None:
    """The same of a file that is open, for example."""
    if found.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to another user (uid {found.st_uid}): it is not used"
    if found.st_mode & WRITERS:
        mode = f"(mode {stat.S_IMODE(found.st_mode):04o})"
        return f"{path} is writable by others {mode}, so manapy ignores it. If you trust its content: chmod go-w {path}"
    return None
