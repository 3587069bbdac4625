"""Long nonblocking reductions with an operation of the program: how much memory they take, and that no rank has to call
a wait so that another one can proceed (tests/programs/mpi/long_reductions.c). surface_fold*.c in test_surface.py test
all their forms, and checkpoints in the middle of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from jobs import PROGRAMS, Job, oks

# The calls in which the other ranks are.
CALLS = ("Recv", "Ssend", "Probe", "Waitany", "Test", "Barrier", "Allreduce", "Comm_dup", "Win_fence", "Win_lock")


def test_memory_is_bounded(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    job = make_job(8)
    job.start(c_program(PROGRAMS / "mpi/long_reductions.c"), "memory")
    output = job.finish()
    assert oks(output) == 8 and "FAILED" not in output, output


def test_a_rank_waits_while_others_need_it(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    """It also goes on through checkpoints and restarts at any moment."""
    generations, moments = 4, random.Random(5)
    job = make_job(3)
    stop = job.where / "stop"
    job.start(c_program(PROGRAMS / "mpi/long_reductions.c"), stop)
    for generation in range(generations):
        job.wait_for("step")
        time.sleep(moments.uniform(0.05, 0.5))
        job.checkpoint()
        if generation % 2:
            job.kill()
            job.restart()
    stop.touch()
    assert oks(job.finish()) == 3
    output = "".join(job.output(run) for run in range(len(job.runs)))
    assert "FAILED" not in output, output
    assert all(f"in {call}\n" in output for call in CALLS), output
