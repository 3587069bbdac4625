"""One-sided communication at random moments: windows of all flavors, epochs open, locks held and waited for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import BIN, PROGRAMS, Job, JobError, oks
from phases import answer, request
from restarts import check, restart
from rounds import rounds
from test_random_moments import (
    ENV,
    SEED,
    STEPS,
    TOO_LATE,
    ended,
    generations,
    goes_on,
    in_output,
    native,
)
from waiting import until

PROGRAM = "rma_stress.py"


@pytest.mark.parametrize("ranks", [1, 4])
def test_and_go_on(make_job: Callable[..., Job], ranks: int) -> None:
    goes_on(make_job(ranks, env=ENV), SEED, STEPS, PROGRAM)


@pytest.mark.parametrize("ranks", [2, 4])
def test_and_restart(make_job: Callable[..., Job], ranks: int) -> None:
    job = make_job(ranks, env=ENV)
    generations(job, SEED, STEPS, rounds(2, 4), PROGRAM)
    assert in_output(job, native(SEED, ranks, STEPS, PROGRAM)), job.report()


def test_the_holder_of_a_lock_is_parked(make_job: Callable[..., Job]) -> None:
    steps, published = 400, 0
    job = make_job(4, env=ENV).start_python("moments/rma_parked.py", str(steps), options=["--keep", "2"])
    job.wait_for("round 0")
    while published < 9 and not ended(job):
        try:
            job.checkpoint()
        except JobError as error:
            assert ended(job) or TOO_LATE.search(str(error).splitlines()[0]), error
            break
        published += 1
        if published % 3 == 0:
            with contextlib.suppress(JobError):  # it has just ended by itself
                job.kill()
                job.restart()
        time.sleep(0.05)
    job.finish()
    assert published >= 3
    assert "parked ranks to go on" not in (job.dir / "coordinator.log").read_text(), "a stall time-out was needed"
    assert in_output(job, f"sum {2 * steps}"), job.report()


def test_a_parked_rank_carries_out_many_sums(make_job: Callable[..., Job]) -> None:
    """The rank that flushes them cannot stop before."""
    job = make_job(2)
    go, end = job.where / "go", job.where / "end"
    job.start_python("moments/many_sums.py", "20000", go, end)
    job.wait_for("flushes")
    asked = request(job)
    until(lambda: job.status()["phase"] == "waiting for a safe moment", job.report)
    go.touch()
    code, _, errors = answer(asked)
    assert code == 0, errors
    job.kill()
    job.restart()
    end.touch()
    assert oks(job.finish()) == 2


def test_under_another_version(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    """Started under MPICH 5, continued under Debian's MPICH 4.0, whose layouts and answers differ in some respects."""
    debian = Path("/usr/bin/mpiexec.mpich")
    if not debian.exists():
        pytest.skip("no Debian MPICH (apt install mpich)")
    # atomics fail there also without manapy
    states = "create allocate shared alone dynamic locks pscw requests belongings errors".split()
    job = make_job(4)
    go = job.where / "go"
    job.env["STATE_GO"] = str(go)
    job.start(c_program(PROGRAMS / "surface/objects/surface_rma.c"), *states)
    job.wait_for(lambda text: text.count("ready") == job.ranks)
    for runner in (debian, BIN / "mpirun", debian):
        job.checkpoint()
        job.mpirun = [runner]
        restart(job)
    check(job, go, job.ranks)


def test_window_that_fails_half_way(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    assert "ok" in make_job(1).start(c_program(PROGRAMS / "mpi/failing_windows.c")).finish().splitlines()
