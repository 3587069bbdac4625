"""Programs in Fortran (mpif.h, "use mpi", "use mpi_f08": tests/programs/languages/fortran_*) and C++ (namespace MPI:
cxx_bindings.cpp), built with the wrappers of Debian's MPICH.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from compiling import build
from jobs import PROGRAMS, Job
from restarts import check, restart

RANKS = 3
SOURCES = {
    "f08": ["mpifort.mpich", "fortran_f08.f90"],
    "use mpi": ["mpifort.mpich", "fortran_mpi.F90"],
    "mpif.h": ["mpifort.mpich", "-DMPIFH", "fortran_mpi.F90"],
    "C++": ["mpicxx.mpich", "cxx_bindings.cpp"],
}


@pytest.fixture
def program(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    wrapper, *flags, source = SOURCES[request.param]
    if shutil.which(wrapper) is None or shutil.which("gfortran") is None:
        pytest.skip("no Fortran or C++ compiler for MPI (apt install gfortran g++ libmpich-dev)")
    return build(tmp_path / "program", PROGRAMS / "languages" / source, "-O1", "-g", *flags, compiler=wrapper)


@pytest.mark.parametrize("program", SOURCES, indirect=True)
def test_restart(make_job: Callable[..., Job], program: Path) -> None:
    job = make_job(RANKS)
    go = job.where / "go"
    job.env["STATE_GO"] = str(go)
    job.start(program)
    job.wait_for(lambda text: text.count("ready") == RANKS)
    job.checkpoint()
    restart(job)
    job.checkpoint()
    restart(job)
    check(job, go, RANKS)


@pytest.mark.parametrize("program", SOURCES, indirect=True)
def test_native(make_job: Callable[..., Job], program: Path) -> None:
    job = make_job(RANKS)
    go = job.where / "go"
    go.touch()
    job.env["STATE_GO"] = str(go)
    job.spawn(["mpiexec.mpich", "-n", str(RANKS), program])
    assert job.finish().count("ok") == RANKS, job.report()
