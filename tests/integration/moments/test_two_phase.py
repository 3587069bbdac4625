"""manapy-launch --protocol 2pc: the same results, checkpoints and restarts; a rank that waits in the inserted barrier
can be interrupted."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from jobs import Job
from rounds import rounds
from test_random_moments import ENV, SEED, STEPS, generations, in_output, native

OPTIONS = ["--protocol", "2pc"]


@pytest.mark.parametrize(
    ("ranks", "program", "more"), [(3, "stress.py", ["--blocking"]), (3, "threads.py", []), (3, "rma_stress.py", [])]
)
def test_random_moments(make_job: Callable[..., Job], ranks: int, program: str, more: list[str]) -> None:
    job = make_job(ranks, env=ENV)
    generations(job, SEED, STEPS, rounds(2, 4), program, OPTIONS, more)
    assert in_output(job, native(SEED, ranks, STEPS, program)), job.report()


def test_interrupted_in_the_barrier(make_job: Callable[..., Job]) -> None:
    """One rank computes until it is told to stop. The others are in the barrier before a collective: no rank has to be
    waited for."""
    job = make_job(3, env=ENV)
    files = job.where / "go", job.where / "end"
    job.start_python("moments/moments.py", "compute", *map(str, files), options=OPTIONS)
    job.wait_for("in compute")
    for _ in range(2):
        job.checkpoint()
        assert job.status()["protocol"] == "2pc"
        job.kill()
        job.restart()
    for file in files:
        file.touch()
    assert "ok" in job.finish().splitlines()


def test_it_is_chosen_for_the_life_of_the_job(make_job: Callable[..., Job]) -> None:
    """A new program that the rank's process execs keeps the protocol. A function that the protocol lacks ends the job
    with one line that says so."""
    program = "from mpi4py import MPI; MPI.COMM_WORLD.Ibarrier().Wait()"
    job = make_job(2, env=ENV).start("sh", "-c", f"exec {sys.executable} -c '{program}'", options=OPTIONS)
    assert job.wait() != 0
    assert "MPI_Ibarrier: two-phase commit (--protocol 2pc) has no nonblocking" in job.output()
    assert "--protocol cc" in job.output()
    other = make_job(2, env=ENV).start(sys.executable, "-c", program, options=["--protocol", "cc"])
    other.finish()
