"""Sums over several looks: the counters of `manapy trace serve`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import SECOND, Builder

from manapy.trace.live import rank_rows
from manapy.trace.live.totals import Totals, iteration_seconds
from manapy.trace.model import schedule, stages
from manapy.trace.model.events import Op, Trace
from manapy.bench.trace.simulate import Model, simulate, snapshot

PLAN = schedule.parse("tp=2,pp=2,dp=1,micro=4")


def healthy() -> Trace:
    trace = simulate(Model(PLAN, iterations=12), [], seed=5).trace
    assert trace is not None
    return trace


HEALTHY = healthy()


def added(*looks: Trace) -> Totals:
    """The sums over these looks."""
    totals, before = Totals(looks[0].size), None
    for look in looks:
        totals.add(look, rank_rows.rows(before, look))
        before = look
    return totals


def test_who_waits_and_for_whom() -> None:
    job = Builder(2)
    job.call(0, Op.BARRIER, 0, 3 * SECOND)
    job.call(1, Op.BARRIER, 2 * SECOND, 3 * SECOND)
    job.call(0, Op.RECV, 4 * SECOND, peer=1, tag=3)
    first = job.trace(5 * SECOND)
    assert [row.mostly_for for row in rank_rows.rows(None, first)] == [1, None]
    job.rows[0, 0][-1]["exit"] = 9 * SECOND
    job.call(1, Op.SEND, 8 * SECOND, 9 * SECOND, peer=0, tag=3, bytes=800)
    totals = added(first, job.trace(10 * SECOND))
    assert totals.waited.tolist() == pytest.approx([2 + 1 + 3, 0])
    assert totals.caused.tolist() == pytest.approx([0, 6])
    assert totals.observed.tolist() == pytest.approx([10, 10])
    assert totals.sent.tolist() == pytest.approx([0, 800])
    assert totals.calls.tolist() == [2, 2] and not totals.lost.any() and not totals.failovers.any()


@settings(deadline=None, max_examples=20)
@given(st.lists(st.floats(0.1, 0.95), max_size=4))
def test_however_often_one_looks(shares: list[float]) -> None:
    begin = int(HEALTHY.events["enter"].min())
    moments = sorted(begin + int(share * (HEALTHY.now - begin)) for share in shares)
    often, once = added(*(snapshot(HEALTHY, moment) for moment in moments), HEALTHY), added(HEALTHY)
    assert often.calls.tolist() == once.calls.tolist()
    for name in ("observed", "sent", "waited"):
        assert getattr(often, name) == pytest.approx(getattr(once, name), rel=1e-3), name
    assert (often.caused <= once.caused * 1.001 + 1e-9).all(), "an open wait for several ranks has no culprit yet"


def test_overwritten_records_are_lost_but_counted() -> None:
    job = Builder(1)
    for i in range(10):
        job.call(0, Op.BARRIER, i * SECOND, i * SECOND + 1)
    first = job.trace(10 * SECOND)
    first.ranks = dict(first.ranks)
    for i in range(10, 40):
        job.call(0, Op.BARRIER, i * SECOND, i * SECOND + 1)
    job.lose(0, 25)
    later = job.trace(40 * SECOND)
    totals = added(first, later)
    assert totals.calls.tolist() == [40] and totals.lost.tolist() == [15]
    assert totals.observed.tolist() == pytest.approx([10 + 15])


def test_what_a_restart_undoes_stays_counted() -> None:
    job = Builder(1)
    for i in range(10):
        job.call(0, Op.BARRIER, i * SECOND, i * SECOND + 1)
    whole = job.trace(10 * SECOND)
    undone = replace(whole, events=whole.events[:4], now=11 * SECOND)
    assert added(whole, undone).calls.tolist() == [10]


def test_failovers() -> None:
    job = Builder(2)
    for second, device in enumerate((0, 0, 1, 1, 0)):
        job.call(1, Op.RDMA_QP, second * SECOND, second * SECOND, thread=1, comm=71, tag=device)
        job.call(1, Op.RDMA_QP, second * SECOND, second * SECOND, thread=1, comm=72, tag=0)
    trace = replace(job.trace(9 * SECOND), devices=["mlx5_0", "mlx5_1"])
    half = replace(trace, rdma=trace.rdma[trace.rdma["enter"] < 3 * SECOND], now=3 * SECOND)
    renamed = replace(trace, devices=["mlx5_1", "mlx5_0"])
    renamed.rdma["tag"] = 1 - renamed.rdma["tag"]
    totals = added(half, renamed)
    assert totals.failovers.tolist() == [0, 2] and totals.calls.tolist() == [0, 0]


def test_iterations() -> None:
    labels = stages.label(HEALTHY, PLAN)
    ends = [int(HEALTHY.events["exit"][labels.iteration == number].max()) for number in range(11)]
    assert iteration_seconds(labels) == pytest.approx(float(np.median(np.diff(ends))) * 1e-9)
    assert iteration_seconds(stages.label(snapshot(HEALTHY, ends[0]), PLAN)) is None
