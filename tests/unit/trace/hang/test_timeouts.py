"""The cost of limits in jobs of many ranks: what it takes for one rank does not grow with the number of ranks."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from manapy.trace.hang.hang import verdicts
from manapy.trace.hang.timeouts import FLOOR, Expected, Memory
from manapy.trace.model import match
from manapy.trace.model.events import EVENT, NO_PEER, Communicator, Op, Rank, Trace
from manapy.trace.model.verdict import State
from traces import SECOND, STEP, Builder

CALLS = 1024


def full(ranks: int) -> Trace:
    """All ranks have made the same calls, each a second after the one before; the rank's number makes it longer."""
    events = np.zeros(ranks * CALLS, EVENT)
    events["rank"] = np.repeat(np.arange(ranks), CALLS)
    events["seq"] = events["context"] = np.tile(np.arange(1, CALLS + 1), ranks)
    events["op"], events["peer"], events["tag"] = int(Op.ALLREDUCE), NO_PEER, -1
    events["enter"] = events["seq"].astype(np.int64) * (SECOND + events["rank"])
    events["exit"] = events["enter"] + 1000
    world = Communicator(1, 1, np.arange(ranks, dtype=np.int32))
    return Trace(events, [world], ranks, {rank: Rank(rank) for rank in range(ranks)}, CALLS * 2 * SECOND)


def peak(work: Callable[[], object]) -> int:
    """The memory that some work takes, bytes: that of the records at which it looks."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_for_one_rank_its_own_records_are_looked_at() -> None:
    trace = full(64)
    memory = Memory()
    expected = Expected(trace, match.match(trace), memory)
    at = CALLS * 40 - 1
    one = CALLS * EVENT.itemsize
    assert peak(lambda: expected.outside(at)) < 2 * one
    assert expected.outside(at) == (SECOND + 39 - 1000, 2 * (SECOND + 39 - 1000))
    expected.awaited(at - 1)
    assert peak(lambda: memory.learn(trace)) < 8 * one
    assert memory.longest == {(39, int(Op.ALLREDUCE), 1, NO_PEER, -1): SECOND + 39 - 1000}


def test_of_a_rank_that_was_active_just_now_no_limit_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Builder(2)
    for rank in range(2):
        job.call(rank, Op.BARRIER, STEP, 2 * STEP)
    job.call(0, Op.BARRIER, 3 * STEP)
    memory = Memory()
    monkeypatch.setattr(Expected, "outside", lambda self, event: pytest.fail("a limit was asked"))
    found = verdicts(job.trace(2 * STEP + FLOOR), memory=memory)
    assert [verdict.state for verdict in found] == [State.HEALTHY]
    assert list(memory.away) == [1]
