"""Does the output of this process appear on a terminal?

The output of a rank may do so although isatty() says no: an mpirun on this host reads it from a pipe and passes it on.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ...core.proc import PARENT, stat_fields

LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "srun")
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
    for process in _ancestors():
        if (process / "comm").read_text().strip() in LAUNCHERS:
            return os.readlink(process / "fd" / str(number)).startswith(TERMINALS)
    return False


def _ancestors() -> Iterator[Path]:
    """The /proc folders of our ancestors, the parent's first."""
    pid = os.getppid()
    while pid > 1:
        process = Path(f"/proc/{pid}")
        yield process
        pid = int(stat_fields(process)[PARENT])
