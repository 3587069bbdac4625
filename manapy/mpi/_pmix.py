"""The search for libpmix, through which ranks of Open MPI's mpirun and of `srun --mpi=pmix` find each other.

A rank takes MANAPY_LIBPMIX, else the file that its mpirun has open, else what the dynamic linker finds
(lowerhalf/join/manager/pmix_library.c). Here no mpirun runs yet: in place of the second one are the usual places in the
prefix of Open MPI's mpirun on PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ..core.launchers import OPEN_MPI

SONAME = "libpmix.so.2"
PLACES = ("lib/openmpi", "lib", "lib64", "lib/x86_64-linux-gnu")  # within a prefix, in this order
_PROBE = """
import ctypes, sys
try:
    version = ctypes.CDLL(sys.argv[1]).PMIx_Get_version
    version.restype = ctypes.c_char_p
    print(version().decode(errors="replace"))
except (OSError, AttributeError) as error:
    sys.exit(str(error))
"""


@dataclass(frozen=True)
class Pmix:
    """``library``: its path, or its soname if the dynamic linker has found it. ``version``: None if it cannot be used.
    ``text``: the version, or why not. ``mpirun``: Open MPI's on PATH, if there is one."""

    library: str
    version: str | None
    text: str
    mpirun: Path | None


def find_pmix() -> Pmix:
    """The libpmix that a rank would take."""
    mpirun = _open_mpis_mpirun()
    library = os.environ.get("MANAPY_LIBPMIX") or _beside(mpirun) or SONAME
    done = subprocess.run([sys.executable, "-c", _PROBE, library], capture_output=True, text=True, timeout=30)
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    text = lines[-1].partition(" (")[0] if lines else "it crashes when it is loaded"
    return Pmix(library, None if done.returncode else text, text, mpirun)


def _open_mpis_mpirun() -> Path | None:
    """mpirun of Open MPI 4 is a link to orterun, that of 5 starts the prterun beside it."""
    for name in ("mpirun", "mpiexec", "mpirun.openmpi", "orterun"):
        if found := shutil.which(name):
            path = Path(found)
            if path.resolve().name in OPEN_MPI or (path.resolve().name == name and _is_version_5(path)):
                return path
    return None


def _is_version_5(mpirun: Path) -> bool:
    return mpirun.with_name("prterun").exists() and not mpirun.with_name("hydra_pmi_proxy").exists()


def _beside(mpirun: Path | None) -> str | None:
    if mpirun is None:
        return None
    prefix = mpirun.resolve().parent.parent
    return next((str(path) for place in PLACES if (path := prefix / place / SONAME).is_file()), None)
