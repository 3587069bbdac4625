"""Programs of the MPI-5 standard ABI (libmpi_abi.so.1): natively on MPICH 5, and through checkpoints, SIGKILL and
restarts on each MPI, also under another one."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from compiling import SHARED, Programs, build
from jobs import BIN, PROGRAMS, Job, run
from launchers import ENVIRONMENT, MPICH, DEBIAN_MPICH, OPEN_MPI_4, OPEN_MPI_5, STANDARD, Launcher
from restarts import check, through_restart
from solver import LAST, SOLVER, after
from surface import SURFACE, Group, groups, name_of_group, patience, program_of

from manapy.core import files

COMPILER = BIN / "mpicc_abi"
STRICT = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-pthread")
STATES = [PROGRAMS / "fronts/front.c", PROGRAMS / "fronts/front_standard.c"]
OUTSIDE = ("surface_io", "surface_query", "surface_rma")  # use MPI_Fint, which mpi_abi.h doesn't have
# MPICH 5.0.2's library of this ABI ends these with SIGSEGV.
BROKEN = (
    "surface_comm", "surface_errors", "surface_nbc", "surface_partitioned", "surface_persistent_p2p", "surface_tools",
)  # fmt: skip
RANKS = 4
CHANGES = [
    (DEBIAN_MPICH, DEBIAN_MPICH),
    (OPEN_MPI_4, OPEN_MPI_4),
    (OPEN_MPI_5, OPEN_MPI_5),
    (MPICH, OPEN_MPI_4),
    (OPEN_MPI_4, MPICH),
    (DEBIAN_MPICH, OPEN_MPI_5),
    (OPEN_MPI_5, DEBIAN_MPICH),
    (MPICH, DEBIAN_MPICH),
    (DEBIAN_MPICH, MPICH),
    (STANDARD, STANDARD),
    (OPEN_MPI_4, STANDARD),
]


# The programs of each job.
ALL = [*((path,) for path in STATES), *groups(path for path in SURFACE if path.stem not in OUTSIDE)]
WORKING = [*((path,) for path in STATES), *groups(path for path in SURFACE if path.stem not in (*OUTSIDE, *BROKEN))]


def compiled(where: Path, source: Path | str, *options: str | Path) -> Path:
    return build(where, source, *STRICT, *options, "-lm", compiler=COMPILER)


@pytest.fixture(scope="module")
def program(program_folder: Path) -> Programs:
    return Programs(program_folder / "standard", COMPILER, STRICT, ("-lm",))


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("group", WORKING, ids=name_of_group)
def test_native(make_job: Callable[..., Job], program: Programs, group: Group) -> None:
    """What the states expect is what MPICH's library of this ABI does."""
    job = make_job(RANKS)
    job.env |= {"STATE_GO": str(job.where / "go"), "STATE_NATIVE": "1"}
    job.spawn([BIN / "mpirun", "-n", str(RANKS), program_of(program, group)])
    check(job, job.where / "go", RANKS, patience(group))


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("group", ALL, ids=name_of_group)
def test_restart(make_job: Callable[..., Job], program: Programs, group: Group) -> None:
    through_restart(make_job(RANKS), program_of(program, group), timeout=patience(group))


@pytest.mark.parametrize(("first", "second"), CHANGES, ids=lambda m: m.name)
@pytest.mark.parametrize("source", STATES, ids=lambda path: path.stem)
def test_restart_under_another_mpi(
    make_job: Callable[..., Job],
    program: Programs,
    source: Path,
    first: Launcher,
    second: Launcher,
) -> None:
    first.skip_if_missing()
    second.skip_if_missing()
    through_restart(make_job(RANKS, mpirun=first.mpirun, env=dict(ENVIRONMENT)), program(source), second)


@pytest.mark.parametrize("preloaded", [False, True], ids=["linked", "preloaded"])
def test_a_profiling_tool(make_job: Callable[..., Job], tmp_path: Path, preloaded: bool) -> None:
    """It defines MPI_Barrier and calls PMPI_Barrier (MPI-5 15.2). In LD_PRELOAD it is loaded into mpirun, too."""
    library = compiled(tmp_path / "libtool.so", PROGRAMS / "mpi/counting_tool.c", *SHARED)
    options = () if preloaded else (library, f"-Wl,-rpath,{tmp_path}")
    program = compiled(tmp_path / "program", PROGRAMS / "mpi/counted_barrier.c", *options)
    job = make_job(2, env={"LD_PRELOAD": str(library)} if preloaded else {})
    through_restart(job, program)
    assert job.output().count("counted 1") == 2  # after the last restart


@pytest.mark.parametrize("other", ["libmpi.so.12", "libmpi.so.40"])
def test_a_program_with_two_mpis(make_job: Callable[..., Job], tmp_path: Path, other: str) -> None:
    libraries = [
        build(tmp_path / name, f"int in_{re.sub(r'[^a-z0-9]', '_', name)};", *SHARED, f"-Wl,-soname,{name}")
        for name in (other, "libmpi_abi.so.1")
    ]
    text = '#include <stdio.h>\nint main(void) { return puts("it has started") < 0; }'
    program = build(tmp_path / "program", text, "-Wl,--no-as-needed", *libraries)
    job = make_job(2).start(program)
    assert job.wait() != 0
    said = [line for line in job.output().splitlines() if "link everything with one MPI" in line]
    assert said and all("libmpi_abi.so.1" in line and other in line for line in said), job.output()
    assert "it has started" not in job.output()


def test_a_function_that_is_not_supported(make_job: Callable[..., Job], tmp_path: Path) -> None:
    """An extension of MPICH's library."""
    text = """
        #include <mpi.h>
        int MPIX_Type_iov_len(MPI_Datatype, MPI_Count, MPI_Count *, MPI_Count *);
        int main(int argc, char **argv) {
            MPI_Count n, bytes;
            return MPI_Init(&argc, &argv) || MPIX_Type_iov_len(MPI_INT, -1, &n, &bytes);
        }"""
    job = make_job(2).start(compiled(tmp_path / "program", text))
    assert job.wait() != 0
    assert "MPIX_Type_iov_len is not supported by this version of manapy" in job.output()


def test_calls_before_init(make_job: Callable[..., Job], tmp_path: Path) -> None:
    text = """
        #include <mpi.h>
        int main(void) {
            int major, minor, version, subversion, flag;
            MPI_Abi_get_version(&major, &minor);
            MPI_Get_version(&version, &subversion);
            MPI_Initialized(&flag);
            if (major != 1 || minor != 0 || version != MPI_VERSION || subversion != MPI_SUBVERSION || flag) return 1;
            return MPI_Barrier(MPI_COMM_WORLD);
        }"""
    job = make_job(1).start(compiled(tmp_path / "program", text))
    assert job.wait() != 0
    assert "(internal_Barrier) before initializing" in job.output()


@pytest.mark.parametrize(("wish", "library"), [("mpiabi", "libmpi_abi.so.1"), ("MPI ABI", "libmpi_abi.so.1"),
                                               ("openmpi", "libmpi.so.12"), (None, "libmpi.so.12")])  # fmt: skip
def test_what_mpi4py_is_told(make_job: Callable[..., Job], wish: str | None, library: str) -> None:
    """Its wheel has a module for each ABI. The user may ask for the standard one."""
    text = (
        "import ctypes, os; name = os.environ['MPI4PY_LIBMPI']; print(os.environ['MPI4PY_MPIABI'], name); "
        "version = ctypes.c_int(); ctypes.CDLL(name).MPI_Abi_get_version(ctypes.byref(version), "
        "ctypes.byref(ctypes.c_int())); print('version', version.value)"
    )
    env = {} if wish is None else {"MPI4PY_MPIABI": wish}
    output = make_job(1, env=env).start(sys.executable, "-c", text).finish()
    standard = library == "libmpi_abi.so.1"
    assert f"{'mpiabi' if standard else 'mpich'} {Path(sys.prefix) / 'lib/manapy/upper' / library}" in output
    assert f"version {1 if standard else -1}" in output


@pytest.fixture(scope="module")
def mpi4py() -> Path:
    """A folder with mpi4py, built from its source for this ABI. The user's cache directory keeps it for the tests of
    other checkouts: the build takes 40 seconds of processor time."""
    python = f"py{sys.version_info.major}.{sys.version_info.minor}"
    where = files.cache_directory() / f"mpi4py-{version('mpi4py')}-mpich-{version('mpich')}-{python}-standard"
    if where.exists():
        return where
    where.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=where.parent, prefix="making-") as scratch:
        built = Path(scratch) / "mpi4py"
        pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-cache-dir", "--no-binary", "mpi4py"]
        env = {**os.environ, "MPICC": str(COMPILER), "CFLAGS": "-O0"}
        done = run([*pip, "--target", built, f"mpi4py=={version('mpi4py')}"], env=env, timeout=900)
        if done.returncode != 0:
            pytest.skip(f"pip cannot build mpi4py: {done.stderr.strip().splitlines()[-1]}")
        try:
            built.rename(where)
        except OSError:  # another run of the tests has built it meanwhile
            if not where.exists():
                raise
    return where


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("first", "second"), [(MPICH, OPEN_MPI_4), (OPEN_MPI_5, DEBIAN_MPICH), (DEBIAN_MPICH, MPICH)], ids=lambda m: m.name
)
def test_mpi4py_of_this_abi(
    make_job: Callable[..., Job], undisturbed: bytes, mpi4py: Path, first: Launcher, second: Launcher
) -> None:
    first.skip_if_missing()
    second.skip_if_missing()
    job = make_job(2, mpirun=first.mpirun, env={**ENVIRONMENT, "PYTHONPATH": str(mpi4py)})
    job.hold(LAST)
    job.start_python("steps/heat2d.py", *SOLVER, "--out", "field.npy")
    job.wait_for(after(100))
    maps = Path(f"/proc/{job.pids()[0]}/maps").read_text()
    assert str(mpi4py) in maps and "upper/libmpi_abi.so.1" in maps
    for mpirun in (second.mpirun, first.mpirun):
        job.checkpoint()
        job.kill()
        job.mpirun = mpirun
        job.restart()
        job.wait_until_it_runs()
    job.finish()
    assert (job.where / "field.npy").read_bytes() == undisturbed


def test_doctor(tmp_path: Path) -> None:
    program = compiled(tmp_path / "program", "#include <mpi.h>\nint main(void) { return MPI_Init(0, 0); }")
    done = run([BIN / "manapy", "doctor", program], env={**os.environ, "COLUMNS": "200"})
    assert (
        "libmpi_abi.so.1" in done.stdout and "the MPI-5 standard ABI: manapy's library takes its place" in done.stdout
    )
