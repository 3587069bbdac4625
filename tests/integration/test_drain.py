"""The drain of a checkpoint: it goes on while anything moves, and gives up when nothing can come any more."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import emulated
import pytest
from jobs import PROGRAMS, Job, manapy
from manapy.bench.cluster import Cluster

NODES = emulated.names(2)
BITS = 8e6  # of a slow link
NEVER = r"a message from rank 0 can't be received \(was its communicator freed before\?\)"
PERIOD = 2  # seconds without a move that a drain waits for


@pytest.fixture
def nodes() -> Iterator[Cluster]:
    with emulated.cluster(NODES, BITS) as nodes:
        yield nodes


@pytest.fixture
def slow_job(make_job: Callable[..., Job], nodes: Cluster) -> Job:
    """Ranks of which the last is behind a slow link, not yet started. In their votes no rank talks to the one that it sends to."""
    env = {"UCX_TLS": "tcp,self", "UCX_RNDV_THRESH": "8192", "MANAPY_DRAIN_SECONDS": str(PERIOD)}
    return make_job(4, mpirun=emulated.mpirun(NODES[0], f"{NODES[0]}:3,{NODES[1]}:1"), inside=emulated.inside(NODES[0]), env=env)


def start(job: Job, megabytes: int, how: str) -> Path:
    """slow_message.py, until all ranks wait for the file that is returned."""
    go = job.where / "go"
    job.start_python("slow_message.py", str(megabytes), how, go)
    job.wait_for(lambda text: all(f"rank {rank}: tick" in text for rank in range(job.ranks)))
    return go


def ends_well(job: Job) -> None:
    assert job.finish().count("ok") == job.ranks  # not lines: those of ranks may mix


@pytest.mark.slow
@pytest.mark.parametrize("how", ["asked", "unasked"])
def test_a_slow_message_is_waited_for(slow_job: Job, how: str) -> None:
    """It takes many periods, in which nothing is completed."""
    go = start(slow_job, 8 * PERIOD, how)
    slow_job.checkpoint()
    slow_job.kill()
    go.touch()
    ends_well(slow_job.restart())


def test_what_nobody_can_receive_is_given_up(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    """By all ranks together; the program goes on, and so it is the next time."""
    job = make_job(3, env={"MANAPY_DRAIN_SECONDS": str(PERIOD)})
    go = job.where / "go"
    job.start(c_program(PROGRAMS / "never_received.c"), go)
    job.wait_for(lambda text: text.count("waiting") == job.ranks)
    for _ in range(2):
        done = manapy("checkpoint", job.dir)
        assert done.returncode == 1
        # Whoever is the first to say it.
        assert re.search(f"rank 1: {NEVER}|rank [02]: another rank could not empty the network", done.stderr), done.stderr
    go.touch()
    ends_well(job)
