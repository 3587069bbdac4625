"""Processes of this host that are no children of ours: is one alive, when does it end, what started it. And our own descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import Callable
from pathlib import Path


RESERVED = 32  # descriptors that neither ranks nor what watches them may take: for commands, checkpoints, logs


def raise_limit() -> None:
    """All the descriptors that we may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def is_scarce(fd: int) -> str:
    """Why a new descriptor (they get the lowest free number) should be given back, or empty."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"the coordinator may open {soft} files only: raise that limit where rank 0 runs (ulimit -Hn)" if fd >= soft - RESERVED else ""


def watch(pid: int, ended: Callable[[], None]) -> None:
    """Call in the running loop when a process has ended, soon if there is none; never, if it can't be watched."""
    loop = asyncio.get_running_loop()
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        loop.call_soon(ended)
        return
    except OSError:
        return
    if is_scarce(fd):
        os.close(fd)
        return

    def readable() -> None:
        loop.remove_reader(fd)
        os.close(fd)
        ended()

    loop.add_reader(fd, readable)


def is_alive(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def launcher(rank: int) -> str | None:
    """What started the process of a rank, as a command that takes `-n N PROGRAM`: by its parent, which is hydra_pmi_proxy with mpirun
    beside it, or slurmstepd."""
    with contextlib.suppress(OSError, ValueError):
        status = Path(f"/proc/{rank}/status").read_text()
        parent = next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:"))
        manager = Path(os.readlink(f"/proc/{parent}/exe"))
        if manager.name.startswith("slurmstepd"):  # Debian's is slurmstepd-wlm
            return "srun --mpi=pmi2"
        candidate = manager.with_name("mpirun")
        if os.access(candidate, os.X_OK):
            return str(candidate)
    return None
