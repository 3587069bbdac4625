"""Fixtures that start real jobs. All processes that a test has started are ended after it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import emulated
import pytest
import slurm
from compiling import Programs, mpi_programs
from jobs import BIN, PROGRAMS, Job
from manapy.bench.shared.cluster import Cluster
from solver import PAUSE, SOLVER, in_c


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder start MPI jobs."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.mpi)


@pytest.fixture(scope="session", autouse=True)
def installed() -> None:
    """Integration tests need an installation: tools/test makes one."""
    for name in ("manapy", "manapy-launch", "manapy-restart", "mpirun"):
        if not (BIN / name).exists():
            pytest.skip(f"{BIN / name} is missing: run the tests with tools/test")


@pytest.fixture
def make_job(tmp_path: Path, heat2d: Path) -> Iterator[Callable[..., Job]]:
    """Makes jobs, each in its own directory."""
    yield from _making(tmp_path, heat2d)


@pytest.fixture(scope="module")
def make_shared_job(tmp_path_factory: pytest.TempPathFactory, heat2d: Path) -> Iterator[Callable[..., Job]]:
    """The same for jobs that several tests of a module share."""
    yield from _making(tmp_path_factory.mktemp("jobs"), heat2d)


def _making(below: Path, solver: Path) -> Iterator[Callable[..., Job]]:
    made: list[Job] = []

    def make(ranks: int = 2, **settings: object) -> Job:
        where = below / f"job-{len(made)}"
        where.mkdir()
        made.append(Job(where, ranks, solver=solver, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for job in made:
        job.end()


@pytest.fixture(scope="session")
def heat2d() -> Path:
    """The solver in C."""
    return in_c()


@pytest.fixture(scope="session")
def mostly_idle(c_program: Programs) -> Path:
    """A program that changes little of its memory from one step to the next."""
    return c_program(PROGRAMS / "moments/mostly_idle.c")


@pytest.fixture
def job(make_job: Callable[..., Job]) -> Job:
    """A job of 2 ranks, not yet started."""
    return make_job(2)


@pytest.fixture
def trace_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The trace root of this test."""
    where = tmp_path / "traces"
    where.mkdir()
    monkeypatch.setenv("MANAPY_TRACE_ROOT", str(where))
    return where


@pytest.fixture(scope="session")
def program_folder(shared_folder: Path) -> Path:
    """The folder of compiled programs."""
    where = shared_folder / "programs"
    where.mkdir(exist_ok=True)
    return where


@pytest.fixture(scope="session")
def c_program() -> Programs:
    """Compiles an MPI program."""
    return mpi_programs()


@pytest.fixture(scope="session")
def make_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., slurm.Cluster]]:
    """Starts Slurm clusters (slurm.py describes the settings). They live until the end of all tests, or until they are
    stopped."""
    if reason := slurm.missing():
        pytest.skip(reason)
    made: list[slurm.Cluster] = []

    def make(**settings: object) -> slurm.Cluster:
        made.append(slurm.Cluster(tmp_path_factory.mktemp("slurm"), **settings))  # type: ignore[arg-type]
        return made[-1].start()

    yield make
    for cluster in made:
        cluster.stop()


@pytest.fixture(scope="session")
def cluster(make_cluster: Callable[..., slurm.Cluster]) -> slurm.Cluster:
    """Three Slurm nodes of four processors. They are shared: a test must leave them as it found them."""
    return make_cluster(nodes=3)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The final field of a run without manapy. The result doesn't depend on the number of ranks."""
    out = tmp_path_factory.mktemp("undisturbed") / "field.npy"
    solver = [a if a != PAUSE else "0" for a in SOLVER]
    subprocess.run(
        [str(BIN / "mpirun"), "-n", "1", sys.executable, str(PROGRAMS / "steps/heat2d.py"), *solver, "--out", str(out)],
        check=True,
        capture_output=True,
    )
    return out.read_bytes()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with 40 MB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40m", "manapy-test", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def nodes() -> Iterator[Cluster]:
    """Three emulated nodes."""
    with emulated.cluster((*emulated.NODES, emulated.SPARE)) as nodes:
        yield nodes
