"""Finds what has started a rank: the command with which a restart starts it again.

    command(pid)    /usr/bin/mpiexec.hydra
                    srun --mpi=pmix --kill-on-bad-exit
                    /usr/bin/orterun --allow-run-as-root --oversubscribe

Open MPI's programs are orterun (Open MPI 4) and prterun (5): `mpirun` is a link to the first, or starts the second.
These names identify Open MPI, which the name mpirun does not. Its daemons on other hosts are orted and prted.
"""

from __future__ import annotations

import contextlib
import os
import re
from itertools import takewhile
from pathlib import Path

from . import proc

# of MPICH and its relatives, the surest first
HYDRA = ("mpiexec.hydra", "mpirun", "mpiexec", "mpirun.mpich", "mpiexec.mpich")
# Open MPI's programs, and the options with which they behave as mpirun
OPEN_MPI = {"orterun": (), "prterun": ("--personality", "ompi")}
# By PMI a rank that fails ends the others; by PMIx it has finished its conversation long before.
SRUN_PMIX = "srun --mpi=pmix --kill-on-bad-exit"
DAEMONS = {"orted": "orterun", "prted": "prterun"}
# What a person calls, by the name of the process (proc.comm)
LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", *OPEN_MPI, "srun")
_OVERSUBSCRIBE = re.compile(r"(?<!no)oversubscribe", re.I)


def command(rank: int) -> str | None:
    """The command that has started the process of a rank; it takes `-n N PROGRAM`. None: it is not known.

    Under slurmstepd it is srun. Under Open MPI's mpirun it is that, with the options without which it would refuse.
    Else it is the mpirun above hydra_pmi_proxy or, if that runs on another host, an mpirun beside it that belongs to
    the same MPI."""
    with contextlib.suppress(OSError, ValueError):
        parent = proc.parent(rank)
        manager = _program(parent)
        if manager.name.startswith("slurmstepd"):  # Debian's is slurmstepd-wlm
            return SRUN_PMIX if "PMIX_NAMESPACE" in _environment(rank) else "srun --mpi=pmi2"
        if manager.name in OPEN_MPI or manager.name in DAEMONS:
            return _open_mpi(parent, manager)
        above = _program(proc.parent(parent))
        if above.name.startswith(("mpirun", "mpiexec")):
            return str(above)
        for name in HYDRA:
            # Open MPI's is orterun
            if os.access(candidate := manager.with_name(name), os.X_OK) and candidate.resolve().name.startswith(
                ("mpirun", "mpiexec")
            ):
                return str(candidate)
    return None


def _open_mpi(pid: int, manager: Path) -> str:
    program = manager.with_name(DAEMONS.get(manager.name, manager.name))
    words = [str(program), *OPEN_MPI[program.name]]
    if os.geteuid() == 0:  # it has been allowed to the job, or there would be none
        words.append("--allow-run-as-root")
    if _oversubscribes(pid):
        words.append("--oversubscribe")
    return " ".join(words)


def _oversubscribes(mpirun: int) -> bool:
    """Return whether this mpirun has been told to start more ranks than there are processors."""
    options = takewhile(lambda word: Path(word).name not in ("manapy-launch", "manapy-restart"), proc.cmdline(mpirun))
    settings = {k: v for k, v in _environment(mpirun).items() if k.startswith(("OMPI_MCA_rmaps", "PRTE_MCA_rmaps"))}
    allowed = (k for k, v in settings.items() if k.endswith("_oversubscribe") and v.lower() not in ("0", "false", "no"))
    return any(map(_OVERSUBSCRIBE.search, [*options, *settings.values(), *allowed]))


def _environment(pid: int) -> dict[str, str]:
    """Return the environment with which the process was started."""
    entries = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _program(pid: int) -> Path:
    return Path(os.readlink(f"/proc/{pid}/exe"))
