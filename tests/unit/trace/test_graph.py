"""Longest path, slack, critical path and counterfactuals against brute force: every path of a small graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manapy.trace.graph import Graph, Timing, graph_of
from manapy.trace.schedule import KINDS, Schedule


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    kind = draw(st.sampled_from(KINDS))
    pp = draw(st.integers(2 if kind == "interleaved" else 1, 3))
    micro = draw(st.integers(1, 2)) * pp if kind == "interleaved" else draw(st.integers(1, 4))
    return Schedule(draw(st.integers(1, 2)), pp, draw(st.integers(1, 2)), micro, kind, 2 if kind == "interleaved" else 1)


def timing(schedule: Schedule, layers: int, seed: int) -> Timing:
    rng, blocks, stages, size = np.random.default_rng(seed), schedule.pp * schedule.blocks, schedule.pp, (schedule.dp, schedule.tp)
    return Timing(
        rng.exponential(1, (blocks, layers + 1, *size)), rng.exponential(0.1, (blocks, layers, schedule.dp)), rng.exponential(0.3, (blocks, *size)), rng.exponential(0.01, (blocks, *size)),
        rng.exponential(0.5, (stages, *size)), rng.exponential(0.5, (stages, *size)), rng.exponential(0.5, (stages, schedule.tp)), 0.25,
    )  # fmt: skip


def brute(graph: Graph, t: Timing) -> float:
    """Recursion over single ranks and calls, without levels."""
    s = graph.schedule
    memo: dict[tuple[int, int], np.ndarray] = {}

    def end(vertex: int, replica: int) -> np.ndarray:
        if (vertex, replica) not in memo:
            stage, place = divmod(vertex, graph.blocks)
            at = list(t.ready[stage, replica]) if place == 0 else list(end(vertex - 1, replica) + t.send[vertex - 1, replica])
            source = s.source(stage, s.blocks_of(stage)[place])
            if source is not None:
                v = source[0] * graph.blocks + s.place_of(*source)
                at = [max(a, b) for a, b in zip(at, end(v, replica) + t.transfer[vertex, replica], strict=True)]
            for k in range(t.compute.shape[1]):
                at = [a + c for a, c in zip(at, t.compute[vertex, k, replica], strict=True)]
                if k < t.collective.shape[1]:
                    at = [max(at) + t.collective[vertex, k, replica]] * s.tp
            memo[vertex, replica] = np.array(at)
        return memo[vertex, replica]

    ends = []
    for stage in range(s.pp):
        last = (stage + 1) * graph.blocks - 1
        for shard in range(s.tp):
            ends.append(max(end(last, d)[shard] + t.send[last, d, shard] + t.closing[stage, d, shard] for d in range(s.dp)) + t.reduce[stage, shard])
    return max(ends) + t.norm


@settings(max_examples=60, deadline=None)
@given(schedules(), st.integers(0, 3), st.integers(0, 1000))
def test_the_makespan_is_the_longest_path(schedule: Schedule, layers: int, seed: int) -> None:
    graph, t = graph_of(schedule), timing(schedule, layers, seed)
    times = graph.times(t)
    assert times.makespan == pytest.approx(brute(graph, t))
    assert graph.replica_ends(t) == pytest.approx(times.replicas)


@settings(max_examples=40, deadline=None)
@given(schedules(), st.integers(0, 2), st.integers(0, 1000), st.data())
def test_slack_is_what_a_block_can_lose_and_no_more(schedule: Schedule, layers: int, seed: int, data: st.DataObject) -> None:
    graph, t = graph_of(schedule), timing(schedule, layers, seed)
    times = graph.times(t)
    slack = graph.slack(t, times)
    assert slack.min() == pytest.approx(0, abs=1e-9)
    vertex, replica = data.draw(st.integers(0, graph.count - 1)), data.draw(st.integers(0, schedule.dp - 1))
    for more, longer in ((slack[vertex, replica] * 0.999, 0.0), (slack[vertex, replica] + 0.5, 0.5)):
        compute = t.compute.copy()
        compute[vertex, 0, replica] += more  # on all its ranks: the block begins its work later
        changed = Timing(compute, t.collective, t.transfer, t.send, t.ready, t.closing, t.reduce, t.norm)
        assert graph.times(changed).makespan - times.makespan == pytest.approx(longer, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(schedules(), st.integers(0, 2), st.integers(0, 1000))
def test_the_critical_path_has_no_slack_and_is_connected(schedule: Schedule, layers: int, seed: int) -> None:
    graph, t = graph_of(schedule), timing(schedule, layers, seed)
    path, slack = graph.critical(t), graph.slack(t)
    assert max(slack[step.vertex, step.replica] for step in path) == pytest.approx(0, abs=1e-9)
    for before, step in zip(path, path[1:], strict=False):
        assert before.vertex in (step.vertex - 1, graph.source[step.vertex])
    assert len({step.replica for step in path}) == 1


@settings(max_examples=30, deadline=None)
@given(schedules(), st.integers(0, 2), st.integers(0, 1000))
def test_a_counterfactual_needs_only_the_changed_replica(schedule: Schedule, layers: int, seed: int) -> None:
    graph, t = graph_of(schedule), timing(schedule, layers, seed)
    compute = t.compute.copy()
    compute[:, :, 0] *= 0.5
    changed = Timing(compute, t.collective, t.transfer, t.send, t.ready, t.closing, t.reduce, t.norm)
    assert graph.without(graph.times(t), changed.replicas([0]), [0]) == pytest.approx(graph.times(changed).makespan)


def test_one_pass_over_4096_ranks_takes_milliseconds() -> None:
    """A bound ten times above what it takes on one of two busy processors."""
    import time

    schedule = Schedule(2, 4, 512, 8)
    graph, t = graph_of(schedule), timing(schedule, 4, 1)
    best = 1.0
    for _ in range(5):
        begin = time.perf_counter()
        graph.times(t)
        best = min(best, time.perf_counter() - begin)
    assert best < 0.05
