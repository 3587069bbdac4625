"""Jobs and chains by their names, from any directory: a folder of links in the user's home.

    ~/.local/state/manapy/known/NAME-xxxxxxxx -> directory

NAME is the directory's name; xxxxxxxx tells directories of the same name apart. If XDG_STATE_HOME is set, it replaces
~/.local/state (XDG Base Directory Specification 0.8).

Invariants
 1. The folder is used only to look up names. If it can't be read or written, jobs can only be named by paths.
 2. A link has no more authority than its path: the directory is checked as if the user had typed that path.
 3. A folder that belongs to another user, or that others may write to, is not used.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from ...core.errors import JobError
from ...core.fnv import path_mark
from . import own

PREFIX = "manapy-"  # of the directories that manapy names itself; people may leave it out
MARK = re.compile(r"-[0-9a-f]{8}$")


def folder() -> Path:
    """Where the links are. It may not exist."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state") / "manapy" / "known"


def note(directory: Path) -> None:
    """Make a directory known (invariant 1: fails in silence)."""
    path = directory.resolve()
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: there is no home
        where = folder()
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        if own.complaint(where) is None:
            (where / f"{path.name}-{path_mark(path)}").symlink_to(path)


def directories() -> list[Path]:
    """The directories that exist here. Links to those that were deleted are removed. If the directory above is missing,
    too, its file system is perhaps not mounted on this host: the home has links of all hosts."""
    found = []
    for link, directory in _links(lambda _: True):
        with contextlib.suppress(OSError):
            if directory.is_dir():
                found.append(directory)
            elif directory.parent.is_dir():
                link.unlink()
    return found


def find(which: str, wanted: Callable[[Path], bool]) -> Path | None:
    """The directory that the user means: a path, or a name, here or anywhere; or one below it: NAME/ckpt-000003. Raises
    JobError if several have the name, or if the path can't be read."""
    try:
        for path in (Path(which), Path(PREFIX + which)):
            if wanted(path):
                return path
    except OSError as error:
        raise JobError(f"{which}: {error.strerror}") from error
    name, _, below = which.partition("/")
    if not name or name in (".", ".."):
        return None
    links = _links(lambda link: MARK.sub("", link) in (name, PREFIX + name))
    found = []
    for path in sorted({directory / below for _, directory in links}):
        with contextlib.suppress(OSError):
            found += [path] if wanted(path) else []
    if len(found) > 1:
        raise JobError(
            f"{which}: several directories have this name, give the path of one: {', '.join(map(str, found[:5]))}"
        )
    return found[0] if found else None


def _links(wanted: Callable[[str], bool]) -> Iterator[tuple[Path, Path]]:
    """Each link whose name is wanted, and where it points."""
    with contextlib.suppress(OSError, RuntimeError):
        where = folder()
        if own.complaint(where) is None:
            for name in sorted(filter(wanted, os.listdir(where))):
                with contextlib.suppress(OSError):
                    yield where / name, Path(os.readlink(where / name))
