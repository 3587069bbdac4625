"""The search for the real libmpi: the same rules, in the same order, as manapy-launch (lowerhalf/mpi/find.c).

  1. --mpi PATH
  2. MANAPY_LIBMPI
  3. the prefix of the mpirun that started the job (here: of the mpirun on PATH)
  4. the prefix that manapy is installed in: the virtual environment
  5. the prefixes of the mpiruns on PATH, if something else started the job: srun
  6. for Open MPI, the dynamic linker

PATH is a library, or an installation prefix. If 1 or 2 names a path, no other rule is tried. Under an mpirun rule 3
decides, and `candidates` stops at rule 4. Under srun nothing is found by rule 3, and `under_srun` has the others.
"""

from __future__ import annotations

import enum
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..core import installation

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


_WHERE = """
import ctypes, sys
try:
    ctypes.CDLL(sys.argv[1])
except OSError as error:
    sys.exit(str(error))
print(next(line.split()[-1] for line in open("/proc/self/maps") if f"/{sys.argv[1].partition('.so')[0]}.so" in line))
"""


class Family(enum.Enum):
    """The binary interface (ABI) of an MPI library."""

    MPICH = "MPICH ABI"
    OPENMPI = "Open MPI"
    STANDARD = "MPI-5 standard ABI"
    UNKNOWN = "unknown"


# Within a prefix, in this order.
PLACES_OF = {
    Family.MPICH: (
        "lib/libmpi.so.12",
        "lib64/libmpi.so.12",
        "lib/libmpich.so.12",
        "lib/x86_64-linux-gnu/libmpich.so.12",
        "lib/x86_64-linux-gnu/libmpi.so.12",
        "lib/release/libmpi.so.12",
    ),
    Family.OPENMPI: (
        "lib/libmpi.so.40",
        "lib64/libmpi.so.40",
        "lib/x86_64-linux-gnu/libmpi.so.40",
        "lib64/openmpi/lib/libmpi.so.40",
    ),
    Family.STANDARD: (
        "lib/libmpi_abi.so.1",
        "lib64/libmpi_abi.so.1",
        "lib/x86_64-linux-gnu/libmpi_abi.so.1",
    ),
}
PLACES = sum(PLACES_OF.values(), ())


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
    own = _own_prefix()
    result.append(Candidate("manapy's own prefix", str(own), _library(own)))
    return result


def under_srun(wanted: Family) -> Candidate:
    """What ranks of srun get, if neither --mpi nor MANAPY_LIBMPI names a library. wanted: MPICH for `srun --mpi=pmi2`,
    OPENMPI for `srun --mpi=pmix`."""
    own = _own_prefix()
    if found := _library(own, PLACES_OF[wanted]):
        return Candidate("manapy's own prefix", str(own), found)
    mpiruns = list(_mpiruns())
    for family in (wanted, Family.STANDARD):
        for mpirun in mpiruns:
            if found := _library(mpirun.resolve().parent.parent, PLACES_OF[family]):
                return Candidate("PATH", str(mpirun), found)
    if wanted is Family.OPENMPI and (soname := _linked("libmpi.so.40")):
        return Candidate("dynamic linker", "libmpi.so.40", soname)
    return Candidate("PATH", "no mpirun of this family on PATH", None)


def _own_prefix() -> Path:
    launcher = installation.executable("manapy-launch")
    return launcher.parent.parent if launcher else Path(sys.prefix)


def _mpiruns() -> Iterator[Path]:
    """Each mpirun and mpiexec on PATH, in its order. Relative folders depend on where the job runs."""
    for folder in os.environ.get("PATH", "").split(":"):
        for name in ("mpirun", "mpiexec"):
            path = Path(folder) / name
            if path.is_absolute() and path.is_file() and os.access(path, os.X_OK):
                yield path


def _linked(soname: str) -> Path | None:
    """The file that the dynamic linker takes for a library. A separate process loads it."""
    probe = subprocess.run([sys.executable, "-c", _WHERE, soname], capture_output=True, text=True, timeout=30)
    return Path(probe.stdout.strip()) if probe.returncode == 0 else None


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


def _library(place: str | Path | None, within: Iterable[str] = PLACES) -> Path | None:
    if not place:
        return None
    path = Path(place)
    if path.is_file():
        return path.resolve()
    return next((path / place for place in within if (path / place).is_file()), None)
