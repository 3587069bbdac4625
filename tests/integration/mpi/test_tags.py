"""Large message tags, restarted under an MPI library with a lower MPI_TAG_UB."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import PROGRAMS, Job
from launchers import DEBIAN_MPICH
from restarts import check, restart

TAG = 2**28 + 5  # Debian's MPICH 4.0 has tags up to 2**28 - 1, the environment's up to 2**29 - 1


@pytest.fixture
def tagged(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> Callable[..., Job]:
    """Starts the program on two ranks and waits until its receives are posted."""
    DEBIAN_MPICH.skip_if_missing()

    def start(*arguments: str) -> Job:
        job = make_job(2)
        job.env["STATE_GO"] = str(job.where / "go")
        job.start(c_program(PROGRAMS / "mpi/tags.c"), *arguments)
        job.wait_for(lambda text: text.count("ready") == 2)
        job.checkpoint()
        return job

    return start


def test_the_largest_tag(tagged: Callable[..., Job]) -> None:
    job = tagged()
    job.mpirun = DEBIAN_MPICH.mpirun
    restart(job)
    check(job, job.where / "go", 2)


def test_a_tag_that_the_other_library_lacks(tagged: Callable[..., Job]) -> None:
    """The program did not ask for MPI_TAG_UB. The checkpoint can still be used."""
    job = tagged(str(TAG))
    here = job.mpirun
    job.kill()
    job.mpirun = DEBIAN_MPICH.mpirun
    job.restart()
    assert job.wait() == 1
    assert f"has the tag {TAG}, but this MPI library has tags up to {2**28 - 1} only" in job.output()
    job.mpirun = here
    job.restart()
    check(job, job.where / "go", 2)
