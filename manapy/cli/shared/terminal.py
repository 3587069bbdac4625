"""Does the output of this process appear on a terminal?

The output of a rank may do so although isatty() says no: an mpirun on this host reads it from a pipe and passes it on.
"""

from __future__ import annotations

import os
import stat
from typing import TextIO

from ...core import proc
from ...core.launchers import LAUNCHERS

TERMINALS = ("/dev/pts/", "/dev/tty")


def shown(stream: TextIO) -> bool:
    """Is a stream (stdout or stderr) on a terminal, or on that of the launcher that reads it?"""
    try:
        number = stream.fileno()
        return os.isatty(number) or (stat.S_ISFIFO(os.fstat(number).st_mode) and _launcher_has_one(number))
    except (OSError, ValueError):  # no descriptor, or a process that ends, or another user's process
        return False


def _launcher_has_one(number: int) -> bool:
    """Is this descriptor number a terminal in the launcher?"""
    for pid in proc.ancestors(os.getpid()):
        if proc.comm(pid) in LAUNCHERS:
            return os.readlink(f"/proc/{pid}/fd/{number}").startswith(TERMINALS)
    return False
