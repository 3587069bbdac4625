"""Messages in flight, outstanding requests and probed messages through several restarts
(tests/programs/steps/p2p_*.py)."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import BIN, PROGRAMS, Job, oks

# program, ranks, steps (each pauses, so that there are messages in flight as long as the checkpoints take)
CASES = [
    ("ring", 3, 160),
    ("wildcards", 4, 100),
    ("probes", 3, 60),
    ("many", 3, 24),
    ("modes", 4, 30),
    ("threads", 2, 80),
]
PAUSE = "0.0125"
GENERATIONS = 4


def digest(output: str) -> set[str]:
    return {line for line in output.splitlines() if line.startswith("digest ")}


@pytest.mark.parametrize(("name", "ranks", "steps"), CASES)
def test_same_digest(make_job: Callable[..., Job], name: str, ranks: int, steps: int) -> None:
    program = f"p2p_{name}.py"
    native = subprocess.run(
        [BIN / "mpirun", "-n", str(ranks), sys.executable, PROGRAMS / "steps" / program, str(steps)],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    expected = digest(native.stdout)
    assert len(expected) == 1

    job, moments = make_job(ranks), random.Random(name)
    go = job.hold(steps - 1)
    job.start_python(f"steps/{program}", str(steps), "--pause", PAUSE)
    job.wait_for("step")
    for generation in range(GENERATIONS):
        time.sleep(moments.uniform(0.05, 0.5))
        job.checkpoint()
        if generation % 2:  # sometimes continue, so that the store outlives a checkpoint without a restart
            job.kill()
            job.restart()
            job.wait_until_it_runs()
    go.touch()
    assert digest(job.finish()) == expected


def test_slots_are_used_again(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    """A thread that completes a request of another thread gives the slots back to that thread."""
    job = make_job(1)
    job.start(c_program(PROGRAMS / "mpi/handed_requests.c"), "500")
    highest = re.search(r"^highest (\d+)$", job.finish(), re.M)
    assert highest is not None
    # Of 50000: 100 at a time, and less than two magazines of 64 that each of two threads keeps.
    assert int(highest[1]) < 500


def test_alternate_signal_stack(make_job: Callable[..., Job]) -> None:
    """What the checkpoint runs on the program's first thread traps, while this thread is in a signal handler."""
    job = make_job(2)
    go = job.where / "go"
    job.start_python("mpi/alternate_stack.py", go)
    job.wait_for(lambda text: text.count("ready") == 2)
    for _ in range(2):
        job.checkpoint()
    job.kill()
    job.restart()
    job.wait_until_it_runs()
    go.touch()
    assert job.finish().count("right") == 2


def test_what_is_not_cancelled(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    """Sends and receives of matched messages go on. MPICH 5.0.2 itself crashes in MPI_Cancel."""
    job = make_job(2)
    job.start(c_program(PROGRAMS / "mpi/cancelled.c"))
    assert oks(job.finish()) == job.ranks


def test_waits_make_progress(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    """The messages of a rank go on while it waits for something that isn't a message."""
    job = make_job(2)
    job.start(c_program(PROGRAMS / "mpi/progress.c"), job.where / "received")
    assert oks(job.finish()) == job.ranks


def test_two_threads_receive_a_stored_message(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    job = make_job(2)
    go = job.where / "go"
    job.start(c_program(PROGRAMS / "mpi/stored_for_two.c"), go)
    job.wait_for(lambda text: text.count("ready") == 2)
    job.checkpoint()
    go.touch()
    assert oks(job.finish()) == job.ranks


def test_disconnecting_waits_for_freed_sends(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    job = make_job(2)
    job.start(c_program(PROGRAMS / "mpi/disconnected.c"))
    assert oks(job.finish()) == job.ranks


def test_whose_error_handler(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    job = make_job(1)
    job.start(c_program(PROGRAMS / "mpi/whose_handler.c"))
    assert oks(job.finish()) == job.ranks
