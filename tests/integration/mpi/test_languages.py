"""Programs in Fortran (mpif.h, "use mpi", "use mpi_f08": tests/programs/languages/fortran_*) and C++ (namespace MPI:
cxx_bindings.cpp), built with the compilers of Debian's MPICH and Open MPI. Both kinds run on both libraries.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from compiling import Programs
from jobs import PROGRAMS, Job
from launchers import DEBIANS, ENVIRONMENT, MPICH, OPEN_MPI_4, Launcher
from restarts import through_restart

RANKS = 3
FORTRAN = {
    "mpif.h": ["-fallow-argument-mismatch", "-DMPIFH", "fortran_mpi.F90"],
    "use mpi": ["fortran_mpi.F90"],
    "f08": ["fortran_f08.f90"],
}
SOURCES = {
    **{f"{way} mpich": ["mpifort.mpich", *words] for way, words in FORTRAN.items()},
    **{f"{way} openmpi": ["mpifort.openmpi", "-DOPEN_MPI", *words] for way, words in FORTRAN.items()},
    "C++": ["mpicxx.mpich", "cxx_bindings.cpp"],
}
NATIVE = {"openmpi": (str(DEBIANS), "--oversubscribe"), "mpich": ("mpiexec.mpich",)}
# What starts the ranks, first and after a checkpoint.
WAYS = [(OPEN_MPI_4, OPEN_MPI_4), (OPEN_MPI_4, MPICH), (MPICH, OPEN_MPI_4)]


@pytest.fixture
def program(program_folder: Path, request: pytest.FixtureRequest) -> Path:
    wrapper, *flags, source = SOURCES[request.param]
    if shutil.which(wrapper) is None or shutil.which("gfortran") is None:
        pytest.skip("no Fortran or C++ compiler for MPI (apt install gfortran g++ libmpich-dev libopenmpi-dev)")
    compiled = Programs(program_folder / request.param.replace(" ", "-"), wrapper, ("-O1", "-g", *flags))
    return compiled(PROGRAMS / "languages" / source)


@pytest.mark.parametrize("program", SOURCES, indirect=True)
def test_restart(make_job: Callable[..., Job], program: Path) -> None:
    through_restart(make_job(RANKS), program)


@pytest.mark.parametrize(("first", "second"), WAYS, ids=lambda launcher: launcher.name)
@pytest.mark.parametrize("program", [name for name in SOURCES if name.endswith("openmpi")], indirect=True)
def test_fortran_of_open_mpi(make_job: Callable[..., Job], program: Path, first: Launcher, second: Launcher) -> None:
    OPEN_MPI_4.skip_if_missing()
    through_restart(make_job(RANKS, mpirun=first.mpirun, env=dict(ENVIRONMENT)), program, second)


@pytest.mark.parametrize("program", ["f08 mpich", "mpif.h mpich"], indirect=True)
def test_fortran_of_mpich_on_open_mpi(make_job: Callable[..., Job], program: Path) -> None:
    OPEN_MPI_4.skip_if_missing()
    through_restart(make_job(RANKS, mpirun=OPEN_MPI_4.mpirun, env=dict(ENVIRONMENT)), program, OPEN_MPI_4)


@pytest.mark.parametrize(("program", "name"), [(name, name) for name in SOURCES], indirect=["program"])
def test_native(make_job: Callable[..., Job], program: Path, name: str) -> None:
    """What the programs expect is what the libraries do."""
    job = make_job(RANKS, env=dict(ENVIRONMENT))
    go = job.where / "go"
    go.touch()
    job.env["STATE_GO"] = str(go)
    job.spawn([*NATIVE["openmpi" if name.endswith("openmpi") else "mpich"], "-n", str(RANKS), program])
    assert job.finish().count("ok") == RANKS, job.report()
