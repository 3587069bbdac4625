"""What a timeline draws: every call if there is room, otherwise the same sums in fewer marks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from traces import Builder

from manapy.trace.model.events import OPEN, Flag, Op, Trace
from manapy.trace.model.match import match
from manapy.trace.model.schedule import parse
from manapy.trace.model.waits import classify
from manapy.trace.report.timeline_bins import Marks, marks
from manapy.bench.trace.simulate import Fault, Kind, Model, simulate


def drawn(trace: Trace, limit: int = 10**6, lanes: int = 10**6, named: Sequence[int] = ()) -> Marks:
    return marks(trace, classify(trace, match(trace)), limit, lanes, named)


@pytest.fixture(scope="module")
def trace() -> Trace:
    found = simulate(Model(parse("tp=2,pp=4,dp=2,micro=8"), iterations=4), [Fault(Kind.SPIN, 5, 3, 2)], 1).trace
    assert found is not None
    return found


def test_where_there_is_room_every_call_is_a_mark(trace: Trace) -> None:
    found = drawn(trace)
    assert found.grain == 0 and found.left_out == 0 and len(found.lanes) == 16
    assert found.event.tolist() == list(range(len(trace.events))) and (found.calls == 1).all()
    assert found.begin.tolist() == trace.events["enter"].tolist()
    closed = trace.events["exit"] != OPEN
    assert (found.end[closed] == trace.events["exit"][closed]).all() and (found.end[~closed] == trace.now).all()


@pytest.mark.parametrize("limit", [2000, 500, 64, 1])
def test_fewer_marks_add_up_to_the_same(trace: Trace, limit: int) -> None:
    every, few = drawn(trace), drawn(trace, limit)
    assert 16 <= len(few.lane) <= max(limit, 4 * 16) and few.grain > 0
    assert len(few.lane) > limit / 4 or limit < 64
    for lane in range(16):
        for name in ("calls", "inside", "waited"):
            assert getattr(few, name)[few.lane == lane].sum() == getattr(every, name)[every.lane == lane].sum(), name
    own = trace.events["exit"] == OPEN
    assert set(np.flatnonzero(own)) <= set(few.event[few.calls == 1]), "an open call is a mark of its own"
    assert (few.inside <= few.end - few.begin).all() and (few.waited <= few.inside).all()
    assert (few.begin[1:] >= few.end[:-1])[few.lane[1:] == few.lane[:-1]].all(), "marks of a lane don't overlap"
    long = trace.events["exit"] - trace.events["enter"] >= few.grain
    assert set(np.flatnonzero(long)) <= set(few.event[few.calls == 1])


def test_lanes_that_are_named_are_drawn_and_others_evenly(trace: Trace) -> None:
    found = drawn(trace, lanes=4, named=[5, 6])
    ranks = [rank for rank, _ in found.lanes]
    assert len(ranks) == 4 and found.left_out == 12 and {0, 5, 6, 15} == set(ranks)
    assert set(trace.events["rank"][found.event]) == set(ranks)
    assert len(drawn(trace, lanes=3, named=range(16)).lanes) == 3


def test_threads_have_lanes_and_a_call_of_several_records_is_one() -> None:
    job = Builder(2)
    for peer, more in ((1, Flag.MORE), (1, 0)):
        job.call(0, Op.RECV, 10, 11, peer=peer, tag=0, request=peer + int(more), flags=Flag.NONBLOCKING)
    for request, more in ((1, Flag.MORE), (5, 0)):
        job.call(0, Op.WAITALL, 20, 50, request=request, flags=int(more))
    job.call(0, Op.MARK, 60, 60, comm=-1)
    job.call(0, Op.BARRIER, 15, 18, thread=3)
    found = drawn(job.trace(100))
    assert found.lanes == [(0, 0), (0, 3)]
    assert found.calls.tolist() == [1, 1, 1, 1] and found.inside.tolist() == [1, 1, 30, 3]


def test_nothing() -> None:
    found = drawn(Builder(2).trace(0), limit=1)
    assert found.lanes == [] and len(found.event) == 0
