"""Preloads the recorder into a program that runs without manapy-launch: chooses one of two libraries, and makes the
environment.

Both libraries contain the same code, and tell MPICH's ABI from Open MPI's themselves. They differ in their exported
functions. mpi4py and other programs check whether a function of MPI 4 exists before they call it. So the recorder must
not export a function that the program's MPI library does not have.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

FULL, MPI3 = "libmanapy_trace.so", "libmanapy_trace_mpi3.so"
LIBRARIES = {"mpich": FULL, "openmpi": MPI3, "intel": MPI3}
_LAUNCHERS = re.compile(r"(mpirun|mpiexec|orterun|prterun|prun)([._].*)?")
_SAID = (
    ("Open MPI", "openmpi"),
    ("OpenRTE", "openmpi"),
    ("PRRTE", "openmpi"),
    ("prte", "openmpi"),
    ("Intel(R) MPI", "intel"),
    ("HYDRA", "mpich"),
)
_NEEDED = ((b"libmpi.so.40", "openmpi"), (b"libmpi.so.12", "mpich"), (b"libmpich.so.12", "mpich"))


def which_mpi(command: Sequence[str], env: Mapping[str, str]) -> str:
    """Return the MPI that a command most probably uses, as a key of LIBRARIES. Looks at mpi4py's variables, then at the
    launcher's --version, then at the libraries that programs are linked to."""
    if env.get("MPI4PY_MPIABI", "").startswith("openmpi"):
        return "openmpi"
    for word in command:  # the launcher may follow env, timeout, time ...
        if _LAUNCHERS.fullmatch(Path(word).name) and (said := _version(word)):
            for text, name in _SAID:
                if text in said:
                    return name
    for word in command:
        for needed, name in _NEEDED:
            if needed in _elf(word):
                return name
    return "mpich"


def _version(launcher: str) -> str:
    """Return the output of `mpirun --version`, or "" if it fails."""
    try:
        return subprocess.run(
            [launcher, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _elf(word: str) -> bytes:
    """Return the contents of the program of that name if it is an ELF file; b"" for scripts and others."""
    found = shutil.which(word)
    if found is None or os.path.getsize(found) > 1 << 28:
        return b""
    with open(found, "rb") as stream:
        return stream.read() if stream.read(4) == b"\x7fELF" else b""


def environment(library: Path, job: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for the command. `library` is put before other preloaded libraries; `job` is the name of
    its trace."""
    preload = ":".join([str(library), *filter(None, re.split("[ :]", env.get("LD_PRELOAD", "")))])
    return {**env, "LD_PRELOAD": preload, "MANAPY_TRACE_JOB": job}
