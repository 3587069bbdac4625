"""The languages of the suite's programs: what compiles them, what starts them, and what they share.

C programs use the MPI of this Python environment. It has no Fortran and no C++ bindings, so programs in these languages
use the system's MPICH, natively and under manapy. Programs in Fortran may use the system's Open MPI instead.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import paths  # noqa: F401

from launchers import ENVIRONMENT, OPEN_MPI_4


@dataclass(frozen=True)
class Language:
    """One language. suffix: of its sources. helpers: what all programs share, below the suite.

    compiler, c_compiler: commands; the second one is for C sources. mpirun: starts the programs, with the variables
    `env`. needs: the packages to install. flags: of the compiler.
    """

    suffix: str
    helpers: tuple[str, ...]
    compiler: str
    c_compiler: str
    mpirun: tuple[Path | str, ...]
    needs: str = ""
    flags: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()

    @property
    def is_fortran(self) -> bool:
        """Is it one of the Fortran languages?"""
        return self.suffix.startswith(".f")

    @property
    def missing(self) -> str | None:
        """What must be installed before programs can be built and run; None if nothing is missing."""
        commands = (self.compiler, self.c_compiler, self.mpirun[0])
        return None if all(map(shutil.which, commands)) else self.needs


def _of_the_system(suffix: str, helpers: tuple[str, ...], compiler: str, needs: str) -> Language:
    return Language(suffix, helpers, f"{compiler}.mpich", "mpicc.mpich", ("mpiexec.mpich",), needs)


def _of_open_mpi(of: Language) -> Language:
    """The same language with the system's Open MPI. `flags`: what Debian's MPICH gives to its compiler."""
    return Language(
        of.suffix,
        of.helpers,
        "mpifort.openmpi",
        "mpicc.openmpi",
        OPEN_MPI_4.mpirun,
        "openmpi-bin libopenmpi-dev gfortran",
        ("-fallow-invalid-boz", "-fallow-argument-mismatch"),
        tuple(ENVIRONMENT.items()),
    )


_GCC = os.environ.get("CC", "gcc")
C = Language(".c", (), _GCC, _GCC, (Path(sys.executable).parent / "mpirun",))
LANGUAGES = {
    "cxx": _of_the_system(".cxx", ("util/mtest_cxx.cxx", "util/mtest_common.c"), "mpicxx", "mpich libmpich-dev g++"),
    "f77": _of_the_system(".f", ("util/mtest_f77.f",), "mpifort", "mpich libmpich-dev gfortran"),
    "f90": _of_the_system(".f90", ("util/mtest_f90.f90",), "mpifort", "mpich libmpich-dev gfortran"),
    "f08": _of_the_system(".f90", ("util/mtest_f08.f90",), "mpifort", "mpich libmpich-dev gfortran"),
}
FORTRAN = [name for name, of in LANGUAGES.items() if of.is_fortran]
OPEN_MPI = {name: _of_open_mpi(LANGUAGES[name]) for name in FORTRAN}


def language_name(folder: str) -> str:
    """The name of the language of a folder below the suite, e.g. of errors/f77/io: the lists of errors contain several
    languages."""
    first, *below = folder.split("/")
    return below[0] if first == "errors" and below else first


def language(folder: str, open_mpi: bool = False) -> Language:
    """The language of the programs in a folder. open_mpi: those in Fortran use Open MPI."""
    name = language_name(folder)
    return (OPEN_MPI if open_mpi and name in OPEN_MPI else LANGUAGES).get(name, C)
