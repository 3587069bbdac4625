"""The programs of the matrix: one computation in each language and for each binary interface.

Each runs natively under an MPI of its own, and there it gives the result that is expected in all cells.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from applications import extract
from applications.results import Result, ResultError
from jobs import PROGRAMS
from launchers import DEBIAN_MPICH, MPICH, OPEN_MPI_4, Launcher

LANGUAGES = PROGRAMS / "languages"
PREFIX = Path(sys.prefix)
LAST = 400  # step of all programs; they print "step K" before, and the result after it


def heat2d(where: Path, output: str) -> Result:
    """The last residual and the mean of the solver's field."""
    residual = extract.last(rf"^step {LAST} residual (\S+)$", output, "last residual")
    return Result(texts={"residual": residual, "mean": extract.last(r"done, mean (\S+)$", output, "mean")})


@dataclass(frozen=True)
class Program:
    """One program.

    name: for people and for --only. mpi: its own, under which it runs natively. source: in tests/programs/languages,
    or an empty text for the solver of mpi4py. compiler: a command and its options. library: what the command needs to
    link; where its file is missing, the program is not in the matrix.
    """

    name: str
    mpi: Launcher
    source: str = ""
    compiler: tuple[str, ...] = ()
    library: Path | None = None
    extract: Callable[[Path, str], Result] = extract.named_values

    @property
    def missing(self) -> str:
        """Why it cannot be built or run here; empty if it can."""
        if self.compiler and shutil.which(self.compiler[0]) is None:
            return f"no {self.compiler[0]}"
        if self.library and not self.library.exists():
            return f"no {self.library}"
        return "" if self.mpi.is_there else f"no {self.mpi.mpirun[0]} ({self.mpi.install})"

    def build(self, where: Path) -> list[str]:
        """Its command, after it has been compiled into a directory. ResultError: the compiler refuses."""
        if not self.source:
            solver = [str(PROGRAMS / "steps/heat2d.py"), "--n", "96", "--steps", str(LAST), "--every", "20"]
            return [sys.executable, *solver, "--pause", "0.005"]
        program = where / re.sub(r"\W+", "-", self.name)
        command = [*self.compiler, str(LANGUAGES / self.source), "-O1", "-w", "-o", str(program)]
        linked = [str(self.library), "-Wl,--allow-shlib-undefined"] if self.library else []
        done = subprocess.run([*command, *linked], capture_output=True, text=True, check=False)
        if done.returncode:
            raise ResultError(f"{self.compiler[0]}: {done.stderr.strip().splitlines()[-1:]}")
        return [str(program)]


def _fortran(title: str, mpi: Launcher, compiler: str) -> tuple[Program, ...]:
    """The three ways in which Fortran programs use an MPI."""
    ways = {"mpif.h": ("-DMPIFH", "-fallow-argument-mismatch"), "use mpi": (), "use mpi_f08": ("-DF08",)}
    return tuple(
        Program(f"{title} {way}", mpi, "plate_fortran.F90", (compiler, *options)) for way, options in ways.items()
    )


C = ("gcc", "-std=gnu11")
KNOWN = (
    Program("mpi4py wheel", MPICH, extract=heat2d),
    Program("C for MPICH", MPICH, "plate_c.c", (*C, f"-I{PREFIX}/include"), PREFIX / "lib/libmpi.so.12"),
    Program("C for Open MPI", OPEN_MPI_4, "plate_c.c", ("mpicc.openmpi", "-std=gnu11")),
    Program(
        "C for the standard ABI",
        MPICH,
        "plate_c.c",
        (*C, f"-I{PREFIX}/include", "-DMPI_ABI"),
        PREFIX / "lib/libmpi_abi.so.1",
    ),
    *_fortran("Fortran", DEBIAN_MPICH, "mpifort.mpich"),
    *_fortran("Open MPI's Fortran", OPEN_MPI_4, "mpifort.openmpi"),
)
