"""Programs in Fortran (mpif.h, "use mpi", "use mpi_f08": tests/programs/languages/fortran_*) and C++ (namespace MPI:
cxx_bindings.cpp), built with the compilers of Debian's MPICH and Open MPI. Both kinds run on both libraries. A program
in Fortran may also call the C interface of the standard ABI (fortran_bind_c.f90); Intel MPI's Fortran library of that
ABI is refused.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from compiling import Programs, build
from jobs import PROGRAMS, Job, oks, run
from launchers import DEBIANS, ENVIRONMENT, INTEL_MPI, MPICH, OPEN_MPI_4, Launcher
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


# MPI_Comm_dup and MPI_Barrier in Fortran, with the number of MPI_COMM_WORLD in the standard ABI.
DUPLICATED = """
program duplicated
  integer :: made(2), ierror
  made = -1
  call mpi_init(ierror)
  call mpi_comm_dup(257, made(1), ierror)
  print '(a,l2)', 'overwritten', made(2) /= -1
  call mpi_barrier(made(1), ierror)
  print '(a)', 'passed'
end program
"""


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
    assert oks(job.finish()) == RANKS, job.report()


def test_the_c_interface_of_the_standard_abi(make_job: Callable[..., Job], tmp_path: Path) -> None:
    library = Path(sys.prefix) / "lib/libmpi_abi.so.1"
    source = PROGRAMS / "languages/fortran_bind_c.f90"
    program = build(tmp_path / "program", source, f"-J{tmp_path}", library, compiler="gfortran")
    through_restart(make_job(RANKS), program)


def test_intels_fortran_of_the_standard_abi(make_job: Callable[..., Job], tmp_path: Path) -> None:
    """Its mpif.h and module `mpi` write handles of 8 bytes into INTEGERs, and read 4 bytes again: without manapy, too.
    If Intel mends it, manapy has to serve it."""
    INTEL_MPI.skip_if_missing()
    source = tmp_path / "duplicated.f90"
    source.write_text(DUPLICATED)
    libraries = [INTEL_MPI.library.with_name(f"lib{name}_abi.so.1") for name in ("mpifort", "mpi")]
    program = build(tmp_path / "program", source, f"-J{tmp_path}", *libraries, compiler="gfortran")
    native = run([*INTEL_MPI.mpirun, "-n", "1", program], env={**os.environ, **INTEL_MPI.native})
    assert "overwritten T" in native.stdout and "passed" not in native.stdout, native
    job = make_job(1, env={"LD_LIBRARY_PATH": str(INTEL_MPI.library.parent)})
    job.start(program)
    assert job.wait() != 0
    assert "libmpifort_abi.so.1: Intel MPI's Fortran for the standard ABI" in job.output(), job.report()
