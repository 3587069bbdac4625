"""The languages of the suite's programs: what compiles them, what starts them, and what they share.

C programs use the MPI of this Python environment. It has no Fortran and no C++ bindings, so programs in these languages
use the system's MPICH, natively and under manapy.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Language:
    """One language. suffix: of its sources. helpers: what all programs share, below the suite.

    compiler, c_compiler: commands; the second one is for C sources. mpirun: starts the programs. needs: the packages to
    install.
    """

    suffix: str
    helpers: tuple[str, ...]
    compiler: str
    c_compiler: str
    mpirun: str
    needs: str = ""

    @property
    def is_fortran(self) -> bool:
        """Is it one of the Fortran languages?"""
        return self.suffix.startswith(".f")

    @property
    def missing(self) -> str | None:
        """What must be installed before programs can be built and run; None if nothing is missing."""
        commands = (self.compiler, self.c_compiler, self.mpirun)
        return None if all(map(shutil.which, commands)) else self.needs


def _of_the_system(suffix: str, helpers: tuple[str, ...], compiler: str, needs: str) -> Language:
    return Language(suffix, helpers, f"{compiler}.mpich", "mpicc.mpich", "mpiexec.mpich", needs)


_GCC = os.environ.get("CC", "gcc")
C = Language(".c", (), _GCC, _GCC, str(Path(sys.executable).parent / "mpirun"))
LANGUAGES = {
    "cxx": _of_the_system(".cxx", ("util/mtest_cxx.cxx", "util/mtest_common.c"), "mpicxx", "mpich libmpich-dev g++"),
    "f77": _of_the_system(".f", ("util/mtest_f77.f",), "mpifort", "mpich libmpich-dev gfortran"),
    "f90": _of_the_system(".f90", ("util/mtest_f90.f90",), "mpifort", "mpich libmpich-dev gfortran"),
    "f08": _of_the_system(".f90", ("util/mtest_f08.f90",), "mpifort", "mpich libmpich-dev gfortran"),
}


def language(folder: str) -> Language:
    """The language of the programs in a folder below the suite, e.g. errors/f77/io: the lists of errors contain several
    languages."""
    first, *below = folder.split("/")
    return LANGUAGES.get(below[0] if first == "errors" and below else first, C)
