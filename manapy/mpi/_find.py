"""The search for the real libmpi: the same rules, in the same order, as manapy-launch (lowerhalf/mpi).

  1. --mpi PATH
  2. MANAPY_LIBMPI
  3. the prefix of the mpirun that started the job (here: of the mpirun on PATH)
  4. the prefix that manapy is installed in: the virtual environment

PATH is a library, or an installation prefix. If 1 or 2 names a path, no other rule is tried.
"""

from __future__ import annotations

import enum
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ..core import installation

# Within a prefix, in this order.
PLACES = (
    "lib/libmpi.so.12",
    "lib64/libmpi.so.12",
    "lib/libmpich.so.12",
    "lib/x86_64-linux-gnu/libmpich.so.12",
    "lib/x86_64-linux-gnu/libmpi.so.12",
    "lib/release/libmpi.so.12",
    "lib/libmpi.so.40",
    "lib64/libmpi.so.40",
    "lib/x86_64-linux-gnu/libmpi.so.40",
    "lib64/openmpi/lib/libmpi.so.40",
    "lib/libmpi_abi.so.1",
    "lib64/libmpi_abi.so.1",
    "lib/x86_64-linux-gnu/libmpi_abi.so.1",
)

_PROBE = """
import ctypes, sys
try:
    lib = ctypes.CDLL(sys.argv[1])
    text, length = ctypes.create_string_buffer(16384), ctypes.c_int()
    lib.MPI_Get_library_version(text, ctypes.byref(length))
    major, minor = ctypes.c_int(), ctypes.c_int()
    if hasattr(lib, "MPI_Abi_get_version") and not lib.MPI_Abi_get_version(*map(ctypes.byref, (major, minor))):
        if major.value > 0:
            print("MPI-5 standard ABI:", end=" ")
    print(text.value.decode(errors="replace"))
except (OSError, AttributeError) as error:
    sys.exit(str(error))
"""


class Family(enum.Enum):
    """The binary interface (ABI) of an MPI library."""

    MPICH = "MPICH ABI"
    OPENMPI = "Open MPI"
    STANDARD = "MPI-5 standard ABI"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Candidate:
    """The result of one rule; path is None if it finds nothing."""

    rule: str
    source: str
    path: Path | None


def candidates(option: str | None = None) -> list[Candidate]:
    """The results of the four rules, in order. A launch uses the first one with a path."""
    result = [Candidate("--mpi", option or "not given", _library(option))]
    variable = os.environ.get("MANAPY_LIBMPI")
    result.append(Candidate("MANAPY_LIBMPI", variable or "not set", _library(variable)))
    mpirun = shutil.which("mpirun") or shutil.which("mpiexec")
    prefix = Path(mpirun).resolve().parent.parent if mpirun else None
    result.append(Candidate("mpirun's prefix", mpirun or "no mpirun on PATH", _library(prefix)))
    launcher = installation.executable("manapy-launch")
    own = launcher.parent.parent if launcher else Path(sys.prefix)
    result.append(Candidate("manapy's own prefix", str(own), _library(own)))
    return result


def family_of(library: Path) -> tuple[Family, str]:
    """The family of a library and its version text, or why it cannot be loaded. A separate process loads it."""
    probe = subprocess.run([sys.executable, "-c", _PROBE, str(library)], capture_output=True, text=True, timeout=30)
    lines = (probe.stdout if probe.returncode == 0 else probe.stderr).strip().splitlines()
    text = lines[0].strip() if lines else "no answer"
    if probe.returncode:
        return Family.UNKNOWN, text
    before, colon, after = text.partition(f"{Family.STANDARD.value}: ")
    if colon and not before:
        return Family.STANDARD, " ".join(after.split())
    if "Open MPI" in text:
        return Family.OPENMPI, text
    if "MPICH" in text or "Intel" in text or "MVAPICH" in text:
        return Family.MPICH, " ".join(text.split())
    return Family.UNKNOWN, text


def _library(place: str | Path | None) -> Path | None:
    if not place:
        return None
    path = Path(place)
    if path.is_file():
        return path.resolve()
    return next((path / place for place in PLACES if (path / place).is_file()), None)
