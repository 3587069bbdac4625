"""May a file be believed? Only if nobody but this user, or root, can have written it: the mirror of lowerhalf/include/manapy/own.h."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ...core.errors import why

WRITERS = 0o022  # permission bits that let others write


def complaint(path: Path) -> str | None:
    """Why not, in one line; None: it may, or isn't there."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return why(error, path)
    if found.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to another user (uid {found.st_uid}): it is not used"
    if found.st_mode & WRITERS:
        return f"{path} may be written by others (mode {stat.S_IMODE(found.st_mode):04o}): it is not used; if it is as you left it: chmod go-w"
    return None
