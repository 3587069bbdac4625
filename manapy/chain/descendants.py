"""The processes below this one, also those whose parents have ended: to kill a whole script before it can go on."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

from ..core.proc import PARENT, STATE, stat_fields

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make descendants whose parent ends children of this process from now on (prctl(2)), so that none is lost."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``, parents first; zombies left out."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = stat_fields(Path(f"/proc/{entry}"))
                if fields[STATE] not in "ZX":
                    children.setdefault(int(fields[PARENT]), []).append(int(entry))
    found: list[int] = []
    queue = [pid]
    while queue:
        below = children.get(queue.pop(0), [])
        found += below
        queue += below
    return found


def kill_below(pid: int, spare: set[int]) -> bool:
    """Send SIGKILL to all processes below ``pid`` except ``spare``. Returns False if there was none.

    Parents come first, so that no shell reaches its next command.
    """
    targets = [found for found in descendants(pid) if found not in spare]
    for target in targets:
        with contextlib.suppress(ProcessLookupError):
            os.kill(target, signal.SIGKILL)
    return bool(targets)


def reap(child: int) -> int | None:
    """Wait for all ended children. Returns the wait status of ``child`` if it is among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, ended = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                status = ended
    return status
