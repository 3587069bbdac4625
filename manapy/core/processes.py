"""Processes of this host that are no children of ours: is one alive, when does it end, what started it. And our own descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import Callable
from pathlib import Path

from .proc import PARENT, STATE, stat_fields

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
        return stat_fields(Path(f"/proc/{pid}"))[STATE] not in "ZX"
    except (OSError, IndexError):
        return False


LAUNCHERS = ("mpiexec.hydra", "mpirun", "mpiexec", "mpirun.mpich", "mpiexec.mpich")  # of MPICH and its relatives, the surest first


def launcher(rank: int) -> str | None:
    """What started the process of a rank, as a command that takes `-n N PROGRAM`: slurmstepd stands for srun; else the mpirun above hydra_pmi_proxy, or,
    if that runs on another host, one that lies beside it and belongs to the same MPI."""
    with contextlib.suppress(OSError, ValueError):
        proxy = _parent(rank)
        manager = _program(proxy)
        if manager.name.startswith("slurmstepd"):  # Debian's is slurmstepd-wlm
            return "srun --mpi=pmi2"
        above = _program(_parent(proxy))
        if above.name.startswith(("mpirun", "mpiexec")):
            return str(above)
        for name in LAUNCHERS:
            if os.access(candidate := manager.with_name(name), os.X_OK) and candidate.resolve().name.startswith(("mpirun", "mpiexec")):  # Open MPI's is orterun
                return str(candidate)
    return None


def _parent(pid: int) -> int:
    return int(stat_fields(Path(f"/proc/{pid}"))[PARENT])


def _program(pid: int) -> Path:
    return Path(os.readlink(f"/proc/{pid}/exe"))
