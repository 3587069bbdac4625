"""Removes old recordings of ended jobs from shared memory, whenever a job ends or begins to be recorded. `manapy why`
needs the newest ones.

Invariants
 1. A recording is not removed while one of its processes may live: a live process of this host, any process of
    another host (hosts may share a folder), or one of another PID namespace whose file has changed in the last day.
 2. A recording that is being created is not touched: a folder without trace files, or with a file without a head.
 3. At most KEEP bytes of recordings of ended jobs remain, besides those that were begun in the last RECENT seconds.
    With these it is at most a tenth of the file system. The newest recording always remains.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..host import process_state
from . import layout

KEEP = 512 << 20  # bytes
RECENT = 120.0  # seconds, after which hardly anybody asks why a short job has ended
HIDDEN = 86400.0  # seconds after the last change of its file until a process that can't be looked at has ended
SHARE = 10  # recordings may use one part in so many of the file system


@dataclass(frozen=True, order=True)
class Ended:
    """A recording of an ended job. time: seconds since the epoch, of its last change; bytes: of its files."""

    time: float
    bytes: int
    folder: Path


def tidy(root: Path | None = None, keep: int = KEEP) -> list[Path]:
    """Remove recordings beyond the limits. Returns the removed folders."""
    root = root or layout.root()
    found = ended(root)
    if not found:
        return []
    room = os.statvfs(root)
    now, most = time.time(), room.f_blocks * room.f_frsize // SHARE
    old = {*beyond(found, keep, now - RECENT), *beyond(found, most, now)}
    return [one.folder for one in found[1:] if one in old and remove(one.folder)]


def ended(root: Path | None = None) -> list[Ended]:
    """This user's recordings of ended jobs on this host, the newest one first."""
    root = root or layout.root()
    found = []
    for folder in layout.recordings_in(root):
        with contextlib.suppress(OSError):  # another process removes it
            if (one := _ended(folder)) is not None:
                found.append(one)
    return sorted(found, reverse=True)


def beyond(found: Sequence[Ended], keep: int, before: float) -> list[Ended]:
    """Return the recordings that do not fit into ``keep`` bytes, newest first, and have ended before a time."""
    kept, old = 0, []
    for one in found:
        kept += one.bytes
        if kept > keep and one.time <= before:
            old.append(one)
    return old


def remove(folder: Path) -> bool:
    """Remove a recording, unless its job runs again. Is it gone?"""
    if lives(folder):
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def lives(folder: Path) -> bool:
    """Return whether a process may still write there."""
    return any(_lives(path) for path in layout.files_in(folder))


def _ended(folder: Path) -> Ended | None:
    """None if the folder is no recording of an ended job, or another user's."""
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid():
        return None
    files = list(layout.files_in(folder))
    if not files or any(_lives(path) for path in files):
        return None
    known = [path.stat() for path in files]
    return Ended(max(one.st_mtime for one in known), sum(one.st_blocks * 512 for one in known), folder)


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
    if head.host.decode(errors="replace") != socket.gethostname():
        return True
    if process_state.is_hidden(head.pid_space):
        return path.stat().st_mtime > time.time() - HIDDEN
    return process_state.look(head.pid, head.pid_start).state != process_state.DEAD
