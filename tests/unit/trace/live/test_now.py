"""What each rank is doing now, and what it did since an earlier look."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from traces import SECOND, Builder

from manapy.trace.live import rank_rows
from manapy.trace.live.rank_rows import State
from manapy.trace.model import schedule, stages
from manapy.trace.model.events import ANY, Flag, Op, Trace
from manapy.trace.model.verdict import Phase
from manapy.bench.trace.simulate import Fault, Kind, Model, simulate, snapshot

PLAN = schedule.parse("tp=2,pp=4,dp=2,micro=8")


def hung() -> Trace:
    trace = simulate(Model(PLAN, iterations=24), [Fault(Kind.SPIN, 9, 20, 3, Phase.BACKWARD, segment=1)], seed=3).trace
    assert trace is not None
    return trace


def test_every_state() -> None:
    job = Builder(7, hosts=2)
    for rank in range(6):
        job.call(rank, Op.BARRIER, 0, SECOND)
    job.call(1, Op.RECV, 2 * SECOND, peer=0, tag=3)
    job.call(5, Op.RECV, 2 * SECOND, peer=3, tag=3)
    job.call(3, Op.SEND, 3 * SECOND, peer=5, tag=3)  # the message has been sent, so only the transfer is left
    job.call(2, Op.RECV, 3 * SECOND, peer=0, tag=4)
    job.ranks[2] = replace(job.ranks[2], process="T")
    job.ranks[4] = replace(job.ranks[4], process="dead")
    del job.ranks[6]
    job.ranks[0] = replace(job.ranks[0], process="S")
    rows = rank_rows.rows(None, job.trace(5 * SECOND))
    expected = [
        State.AWAITED,
        State.WAITING,
        State.STOPPED,
        State.TRANSFER,
        State.DEAD,
        State.TRANSFER,
        State.UNRECORDED,
    ]
    assert [row.state for row in rows] == expected
    assert [row.since_ns for row in rows] == [
        4 * SECOND,
        3 * SECOND,
        2 * SECOND,
        2 * SECOND,
        4 * SECOND,
        3 * SECOND,
        None,
    ]
    assert rows[0].awaited_by == 1, "a stopped rank waits for nobody"
    assert rows[1].waits_for == (0,) and rows[1].call == "MPI_Recv from rank 0, tag 3"
    assert all(not row.waits_for for row in rows if row.rank != 1)
    assert (rows[6].host, rows[6].calls_s, rows[6].waited) == ("", None, None)
    assert [row.rank for row in sorted(rows, key=rank_rows.SORTS["state"])] == [4, 2, 0, 6, 5, 3, 1]
    assert [row.rank for row in sorted(rows, key=rank_rows.SORTS["wait"])][0] == 1


def test_computing_and_finished() -> None:
    job = Builder(2)
    for rank in range(2):
        job.call(rank, Op.BARRIER, 0, SECOND)
    job.call(1, Op.FINALIZE, 2 * SECOND, 3 * SECOND)
    job.ranks[1] = replace(job.ranks[1], ended=True, process="dead")
    trace = job.trace(5 * SECOND)
    assert [row.state for row in rank_rows.rows(None, trace)] == [State.COMPUTING, State.FINISHED]
    assert not rank_rows.over(trace)
    job.ranks[0] = replace(job.ranks[0], process="dead")
    assert rank_rows.over(job.trace(5 * SECOND))


def test_who_takes_a_message_from_anybody_waits_for_nobody_in_particular() -> None:
    job = Builder(3)
    job.call(1, Op.RECV, SECOND, peer=ANY, tag=3)
    job.call(0, Op.BARRIER, 0, SECOND, comm=job.comm(0))
    rows = rank_rows.rows(None, job.trace(5 * SECOND))
    assert rows[1].state is State.WAITING and rows[1].waits_for == ()
    assert rows[0].state is State.COMPUTING and rows[0].awaited_by == 0


def test_shares_and_rates_are_of_the_time_since_the_earlier_look() -> None:
    job = Builder(3)
    job.call(0, Op.SEND, 1 * SECOND, 1 * SECOND + 1, peer=1, tag=1, bytes=10**6)
    job.call(1, Op.RECV, 0, 1 * SECOND + 2, peer=0, tag=1, bytes=10**6)
    job.call(1, Op.RECV, 8 * SECOND, peer=0, tag=1)
    before = job.trace(10 * SECOND)
    job.rows[1, 0].pop()
    job.call(1, Op.RECV, 8 * SECOND, 14 * SECOND, peer=0, tag=1, bytes=500)  # it still waits for 4 s after the look
    job.call(0, Op.SEND, 14 * SECOND, 14 * SECOND, peer=1, tag=1, bytes=500)
    job.call(0, Op.ALLREDUCE, 15 * SECOND, 15 * SECOND + 1, comm=job.comm(0), bytes=1500)
    job.call(2, Op.RECV, 15 * SECOND, peer=1, tag=1)  # it still waits
    rows = rank_rows.rows(before, job.trace(20 * SECOND))
    assert [row.waited for row in rows] == pytest.approx([0, 0.4, 0.5])
    assert [row.sent_s for row in rows] == pytest.approx([200, 0, 0])
    assert [row.calls_s for row in rows] == pytest.approx([0.2, 0.0, 0.1])
    whole = rank_rows.rows(None, job.trace(20 * SECOND))
    assert [row.waited for row in whole] == pytest.approx([0, 7 / 20, 5 / 20])
    assert whole[0].sent_s == pytest.approx((10**6 + 2000) / 20)


def test_one_call_waits_once_however_many_requests_it_completes() -> None:
    job = Builder(2)
    for request in (1, 2, 3):
        job.call(1, Op.RECV, 0, 1, peer=0, tag=request, flags=Flag.NONBLOCKING, request=request)
        job.call(0, Op.SEND, 4 * SECOND, 4 * SECOND + 1, peer=1, tag=request)
    for request in (1, 2, 3):
        job.call(
            1, Op.WAITALL, 0, 4 * SECOND, peer=0, tag=request, flags=Flag.MORE if request < 3 else 0, request=request
        )
    rows = rank_rows.rows(None, job.trace(10 * SECOND))
    assert rows[1].waited == pytest.approx(0.4)


def test_rates_of_a_rank_whose_records_are_lost_are_those_of_the_time_that_is_known() -> None:
    job = Builder(2)
    for second in range(10):
        job.call(0, Op.SEND, second * SECOND, second * SECOND + 1, peer=1, tag=1, bytes=1000)
    before = replace(job.trace(5 * SECOND))
    before = replace(before, events=before.events[:5])
    job.lose(0, 8)
    rows = rank_rows.rows(before, job.trace(10 * SECOND))
    assert rows[0].sent_s == pytest.approx(1000), "two of them in two seconds"
    assert rows[0].calls_s == pytest.approx(1.0), "counted by their numbers"


def test_a_rank_whose_recording_is_paused() -> None:
    job = Builder(2)
    job.call(1, Op.BARRIER, 0, 1)
    job.pause(1, SECOND)
    row = rank_rows.rows(None, job.trace(3 * SECOND))[1]
    assert (row.state, row.since_ns, row.calls_s, row.waited) == (State.PAUSED, 2 * SECOND, None, None)


def test_nothing_recorded() -> None:
    assert [row.state for row in rank_rows.rows(None, Builder(2).trace(SECOND))] == [State.COMPUTING, State.COMPUTING]


def test_queue_pairs() -> None:
    """The earlier look has seen one queue pair, one is new, and one rank has none."""
    job = Builder(2)
    job.call(0, Op.BARRIER, 0, 1, comm=job.comm(0))
    job.call(0, Op.RDMA_QP, SECOND, SECOND, thread=1, comm=71, request=90, context=64, bytes=10**6)
    before = job.trace(2 * SECOND)
    job.call(0, Op.RDMA_QP, 3 * SECOND, 3 * SECOND, thread=1, comm=71, request=100, context=99, bytes=5 * 10**6)
    job.call(0, Op.RDMA_QP, 3 * SECOND, 3 * SECOND, thread=1, comm=72, request=5, context=5, bytes=10**6)
    job.call(0, Op.RDMA_QP, 4 * SECOND, 4 * SECOND, thread=1, comm=72, request=9, context=6, bytes=2 * 10**6)
    rows = rank_rows.rows(before, job.trace(4 * SECOND))
    assert rows[0].rdma == rank_rows.Rdma(2, 4, 2_500_000.0) and rows[1].rdma is None
    assert rows[0].calls_s == 0, "these are no calls"
    assert rank_rows.rows(None, job.trace(4 * SECOND))[0].rdma == rank_rows.Rdma(2, 4, 1_250_000.0)
    assert rank_rows.rows(before, before)[1].rdma is None


def test_a_training_job_that_hangs() -> None:
    trace = hung()
    last = snapshot(trace, trace.now - 4 * SECOND)
    rows = rank_rows.rows(last, trace, stages.label(trace, PLAN))
    worst = min(rows, key=rank_rows.SORTS["state"])
    assert (worst.rank, worst.state) == (9, State.AWAITED) and worst.awaited_by >= 1
    assert {row.iteration for row in rows} == {20}
    waiting = [row for row in rows if row.rank != 9]
    assert all(row.state is State.WAITING and row.waited == pytest.approx(1.0) and row.calls_s == 0 for row in waiting)
    assert worst.waited == 0
    found = rank_rows.hosts(rows)
    assert [(host.host, host.ranks) for host in found] == [("node00", 8), ("node01", 8)]
    assert found[0].states == {State.WAITING: 8} and found[1].states == {State.AWAITED: 1, State.WAITING: 7}
    assert found[1].waited == pytest.approx(7 / 8)


def test_waits_that_are_only_aligned_are_those_that_were() -> None:
    """A trace whose older records are gone shows the same shares as the complete trace."""
    trace = simulate(Model(PLAN, iterations=24), seed=3).trace
    assert trace is not None
    before = snapshot(trace, trace.now // 3 * 2)
    whole = rank_rows.rows(before, trace)
    first = np.searchsorted(trace.events["rank"], np.arange(PLAN.size + 1))
    keep = np.concatenate([np.arange(a + (b - a) // 3, b) for a, b in zip(first, first[1:], strict=False)])
    events = trace.events[keep]
    ranks = {
        r: replace(known, lost=1000, first_ns=int(events["enter"][events["rank"] == r][0]))
        for r, known in trace.ranks.items()
    }
    window = rank_rows.rows(before, replace(trace, events=events, ranks=ranks))
    assert max(row.waited or 0 for row in whole) > 0.1
    assert [row.waited for row in window] == pytest.approx([row.waited for row in whole], abs=0.01)
    assert [row.sent_s for row in window] == pytest.approx([row.sent_s for row in whole])
