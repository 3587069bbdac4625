"""Waits of real processes for a processor, and the waits that samples give to an interval."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from traces import SECOND, STEP, Builder

from manapy.core.proc import START, stat_fields
from manapy.trace.host.runqueue import Delays, Sampler
from manapy.trace.model.events import Op, Trace
from waiting import until

CODES = {"busy": "while True: pass", "asleep": "import time; time.sleep(999)"}


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start two busy processes on one processor, and one that sleeps. Each has its own code."""
    here = min(os.sched_getaffinity(0))
    pinned = f"import os; os.sched_setaffinity(0, {{{here}}}); print(flush=True); "
    started = [
        subprocess.Popen([sys.executable, "-c", f"{pinned}\n{CODES[kind]}"], stdout=subprocess.PIPE)
        for kind in ("busy", "busy", "asleep")
    ]
    try:
        for child in started:
            assert child.stdout is not None and child.stdout.readline()
        yield started
    finally:
        for child in started:
            child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()


def ranks_of(children: list[subprocess.Popen[bytes]]) -> Trace:
    """Return a trace of the present whose ranks are these processes."""
    job = Builder(len(children))
    for rank, child in enumerate(children):
        start = int(stat_fields(Path(f"/proc/{child.pid}"))[START])
        job.ranks[rank] = replace(job.ranks[rank], host=socket.gethostname(), pid=child.pid, pid_start=start)
        job.call(rank, Op.BARRIER, 0, STEP)
    return replace(job.trace(50 * SECOND), monotonic_ns=time.clock_gettime_ns(time.CLOCK_MONOTONIC))


def test_who_shares_a_processor_waits_and_who_sleeps_does_not(children: list[subprocess.Popen[bytes]]) -> None:
    trace = ranks_of(children)
    with Sampler() as sampler:
        sampler.watch(trace)
        until(
            lambda: (
                all(sampler.delays(trace).share(rank) > 0.2 for rank in (0, 1))
                and len(sampler.delays(trace).ranks[2][0]) >= 10
            ),
            lambda: sampler.delays(trace),
        )
        found = sampler.delays(trace)
    assert found.share(2) < 0.1
    moments, sums = found.ranks[0]
    assert found.waited(0, int(moments[0]), int(moments[-1])) == sums[-1] > 0
    assert moments[0] >= trace.now and (np.diff(sums) >= 0).all()


def test_of_a_job_that_is_over_or_elsewhere_nothing_is_known(children: list[subprocess.Popen[bytes]]) -> None:
    trace = ranks_of(children[:1])
    sampler = Sampler()
    sampler.watch(replace(trace, ranks={0: replace(trace.ranks[0], host="elsewhere")}))
    sampler.sample()
    assert sampler.delays(trace).ranks == {}
    sampler.watch(trace)
    sampler.sample()
    assert sampler.delays(replace(trace, monotonic_ns=0)).ranks == {}
    children[0].kill()
    children[0].wait()
    for _ in range(3):
        sampler.sample()
    assert sampler.delays(trace).ranks[0][1].max() == 0


def test_a_time_has_the_waits_of_all_samples_around_it() -> None:
    found = Delays({0: (np.array([100, 200, 300, 400]), np.array([0, 50, 60, 60]))})
    assert found.waited(0, 110, 190) == 50
    assert found.waited(0, 190, 210) == 20  # the longest possible wait
    assert found.waited(0, 310, 390) == 0
    assert found.waited(0, 99, 200) is None and found.waited(0, 350, 401) is None and found.waited(1, 110, 190) is None
    assert found.about(0, 0, 1000) == 200 and found.about(1, 0, 1000) == 0
