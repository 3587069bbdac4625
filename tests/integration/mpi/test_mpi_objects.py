"""MPI objects of every kind after several restarts (tests/programs/mpi/state_mpi.c)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import BIN, PROGRAMS, Job
from restarts import check, restart, through_restart


@pytest.fixture(scope="session")
def program(c_program: Callable[[Path], Path]) -> Path:
    return c_program(PROGRAMS / "mpi/state_mpi.c")


def begin(job: Job, program: Path) -> tuple[Job, Path]:
    go = job.where / "go"
    job.env["STATE_GO"] = str(go)
    job.start(program)
    job.wait_for(lambda text: text.count("ready") == job.ranks)
    return job, go


def start(make_job: Callable[..., Job], program: Path, ranks: int) -> tuple[Job, Path]:
    return begin(make_job(ranks), program)


def test_undisturbed(make_job: Callable[..., Job], program: Path) -> None:
    job, go = start(make_job, program, 3)
    check(job, go, 3)


def test_after_a_checkpoint(make_job: Callable[..., Job], program: Path) -> None:
    job, go = start(make_job, program, 3)
    job.checkpoint()
    check(job, go, 3)


def test_after_restarts(make_job: Callable[..., Job], program: Path) -> None:
    job, go = start(make_job, program, 3)
    for _ in range(3):
        job.checkpoint()
        restart(job)
    check(job, go, 3)


@pytest.mark.parametrize("first", ["wheel", "debian"])
def test_under_another_version(make_job: Callable[..., Job], program: Path, first: str) -> None:
    """Nothing that is rebuilt depends on handles or codes being the same in MPICH 5 and MPICH 4."""
    debian = Path("/usr/bin/mpiexec.mpich")
    if not debian.exists():
        pytest.skip("no Debian MPICH (apt install mpich)")
    runners: list[list[str | Path]] = [[BIN / "mpirun"], [debian]]
    job = make_job(3, mpirun=runners[first == "debian"])
    job, go = begin(job, program)
    for runner in (runners[first == "wheel"], job.mpirun):
        job.checkpoint()
        job.mpirun = runner
        restart(job)
    check(job, go, 3)


def test_freed_partitioned_requests(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    through_restart(make_job(2), c_program(PROGRAMS / "mpi/freed_partitioned.c"))


def test_freed_persistent_reductions(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    through_restart(make_job(2), c_program(PROGRAMS / "mpi/freed_reductions.c"))


def test_infos_before_init(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    """There a restart loads the real library only when it is called."""
    job = make_job(2)
    go = job.where / "go"
    job.env["STATE_GO"] = str(go)
    job.start(c_program(PROGRAMS / "mpi/early_infos.c"))
    job.wait_for(lambda text: text.count("ready") == 2)
    job.checkpoint()
    job.kill()
    job.restart()
    check(job, go, 2)


def test_thread_level(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    """MPI_Init gives what a variable of the environment says; a restart does not give less."""
    job = make_job(2, env={"MPIR_CVAR_DEFAULT_THREAD_LEVEL": "MPI_THREAD_MULTIPLE"})
    through_restart(job, c_program(PROGRAMS / "mpi/thread_level.c"))
