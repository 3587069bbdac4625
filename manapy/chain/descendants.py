"""The processes below this one, also those whose parents have ended: to kill a whole script before it can go on."""

from __future__ import annotations

import contextlib
import os
import signal

from ..core.proc import descendants


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
