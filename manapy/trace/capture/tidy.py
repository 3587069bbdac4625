"""Removes old recordings of ended jobs from shared memory, whenever a job ends or begins to be recorded. `manapy why`
needs the newest ones.

Invariants
 1. A recording is not removed while one of its processes may live: a live process of this host, or any process of
    another host (hosts may share a folder).
 2. A recording that is being created is not touched: a folder without trace files, or with a file without a head.
 3. At most KEEP bytes of recordings of ended jobs remain, besides those that were begun in the last RECENT seconds.
    With these it is at most a tenth of the file system. The newest recording always remains.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from pathlib import Path

from ..host import proc
from . import layout

KEEP = 512 << 20  # bytes
RECENT = 120.0  # seconds, after which hardly anybody asks why a short job has ended
SHARE = 10  # recordings may use one part in so many of the file system


def tidy(root: Path | None = None, keep: int = KEEP) -> list[Path]:
    """Remove recordings beyond the limits. Returns the removed folders."""
    root = root or layout.root()
    if not root.is_dir():
        return []
    ended = []
    for folder in root.iterdir():
        with contextlib.suppress(OSError):  # another process removes it
            if (found := _ended(folder)) is not None:
                ended.append((*found, folder))
    room = os.statvfs(root)
    most = room.f_blocks * room.f_frsize // SHARE
    now, kept = time.time(), 0
    removed = []
    for number, (when, size, folder) in enumerate(sorted(ended, reverse=True)):
        kept += size
        if number and (kept > most or (kept > keep and now - when > RECENT)):
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
    return removed


def lives(folder: Path) -> bool:
    """Return whether a process may still write there."""
    files = [path for path in folder.glob("rank-*.trace") if layout.rank_and_generation(path)]
    return any(_lives(path) for path in files)


def _ended(folder: Path) -> tuple[float, int] | None:
    """Return when the recording of an ended job was made, and its bytes; None if the folder is no such recording."""
    if not folder.is_dir() or folder.is_symlink():
        return None
    files = [path for path in folder.iterdir() if layout.rank_and_generation(path)]
    if not files or any(_lives(path) for path in files):
        return None
    known = [path.stat() for path in files]
    return max(one.st_mtime for one in known), sum(one.st_blocks * 512 for one in known)


def _lives(path: Path) -> bool:
    """Return whether a process may still write this file, as far as can be told from this host."""
    with path.open("rb") as stream:
        data = stream.read(layout.PAGE)
    if len(data) < layout.PAGE:
        return True
    head = layout.FileStruct.from_buffer_copy(data)
    if head.magic != layout.MAGIC:
        return True
    if head.end != layout.RUNNING:
        return False
    return (
        head.host.decode(errors="replace") != socket.gethostname()
        or proc.look(head.pid, head.pid_start).state != proc.DEAD
    )
