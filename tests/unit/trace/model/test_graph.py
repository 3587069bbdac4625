"""Longest path, slack, critical path and counterfactuals, compared with brute force over every path of a small
graph."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import calls_of

from manapy.trace.model.graph import Graph, Timing, graph_of
from manapy.trace.model.schedule import KINDS, Schedule, ScheduleBlock


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    kind = draw(st.sampled_from(KINDS))
    pp = draw(st.integers(2 if kind == "interleaved" else 1, 3))
    micro = draw(st.integers(1, 2)) * pp if kind == "interleaved" else draw(st.integers(1, 4))
    return Schedule(
        draw(st.integers(1, 2)), pp, draw(st.integers(1, 2)), micro, kind, 2 if kind == "interleaved" else 1
    )


def timing(schedule: Schedule, layers: int, seed: int, synchronous: float = 0.0) -> Timing:
    """Return a random timing. synchronous: the share of messages for which their senders wait, in some cases until they
    have arrived; 0: senders never wait."""
    rng, blocks, stages, size = (
        np.random.default_rng(seed),
        schedule.pp * schedule.blocks,
        schedule.pp,
        (schedule.dp, schedule.tp),
    )
    release = (
        np.where(rng.random((blocks, *size)) < synchronous, rng.normal(0, 0.2, (blocks, *size)), -np.inf)
        if synchronous
        else None
    )
    landing = (
        rng.exponential(0.2, (blocks, *size))
        * rng.integers(0, 2, (blocks, *size))
        * (graph_of(schedule).source >= 0)[:, None, None]
    )
    return Timing(
        rng.exponential(1, (blocks, layers + 1, *size)), rng.exponential(0.1, (blocks, layers, schedule.dp)),
        rng.exponential(0.3, (blocks, *size)),
        landing, rng.exponential(0.01, (blocks, *size)),
        rng.exponential(0.5, (stages, *size)), rng.exponential(0.5, (stages, *size)),
        rng.exponential(0.5, (stages, schedule.tp)), 0.25, release,
    )  # fmt: skip


def brute(graph: Graph, t: Timing) -> float:
    """Return the makespan by recursion over single ranks and calls, without levels."""
    s = graph.schedule

    def vertex_of(stage: int, block: ScheduleBlock) -> int:
        return stage * graph.blocks + s.place_of(stage, block)

    @functools.cache
    def begin(vertex: int, replica: int) -> list[float]:
        stage, place = divmod(vertex, graph.blocks)
        at = (
            list(t.ready[stage, replica])
            if place == 0
            else [a + b for a, b in zip(end(vertex - 1, replica), t.send[vertex - 1, replica], strict=True)]
        )
        source = s.source(stage, s.blocks_of(stage)[place])
        if source is not None:
            for shard, sent in enumerate(end(vertex_of(*source), replica)):
                at[shard] = max(
                    at[shard] + t.landing[vertex, replica, shard], sent + t.transfer[vertex, replica, shard]
                )
        return at

    @functools.cache
    def end(vertex: int, replica: int) -> list[float]:
        stage, place = divmod(vertex, graph.blocks)
        at = begin(vertex, replica)
        for k in range(t.compute.shape[1]):
            at = [a + c for a, c in zip(at, t.compute[vertex, k, replica], strict=True)]
            if k < t.collective.shape[1]:
                at = [max(at) + t.collective[vertex, k, replica]] * s.tp
        ways = messages(stage, place)
        target = s.target(stage, s.blocks_of(stage)[place])
        way = (target[0], s.blocks_of(stage)[place].backward) if target is not None else None
        return released(at, ways[way], replica) if way in ways else at

    def messages(stage: int, until: int) -> dict[object, int]:
        """Return for each way the last message before a place, as the vertex that waits for it."""
        found = {}
        for block in s.blocks_of(stage)[:until]:
            if (target := s.target(stage, block)) is not None:
                found[target[0], block.backward] = vertex_of(*target)
        return found

    def released(at: list[float], message: int, replica: int) -> list[float]:
        if t.release is None:
            return at
        return [
            max(a + max(r, 0), b + r)
            for a, b, r in zip(at, begin(message, replica), t.release[message, replica], strict=True)
        ]

    ends = []
    for stage in range(s.pp):
        last = (stage + 1) * graph.blocks - 1
        come = []
        for d in range(s.dp):
            at = [a + b for a, b in zip(end(last, d), t.send[last, d], strict=True)]
            for message in messages(stage, graph.blocks).values():
                at = released(at, message, d)
            come.append(np.array(at) + t.closing[stage, d])
        ends += list(np.max(come, axis=0) + t.reduce[stage])
    return max(ends) + t.norm


SYNCHRONOUS = st.sampled_from([0.0, 0.5, 1.0])


@settings(max_examples=60, deadline=None)
@given(schedules(), st.integers(0, 3), st.integers(0, 1000), SYNCHRONOUS)
def test_the_makespan_is_the_longest_path(schedule: Schedule, layers: int, seed: int, synchronous: float) -> None:
    graph, t = graph_of(schedule), timing(schedule, layers, seed, synchronous)
    times = graph.times(t)
    assert times.makespan == pytest.approx(brute(graph, t))
    assert graph.replica_ends(t) == pytest.approx(times.replicas)


@settings(max_examples=40, deadline=None)
@given(schedules(), st.integers(0, 2), st.integers(0, 1000), st.data())
def test_slack_is_what_a_block_can_lose_and_no_more(
    schedule: Schedule, layers: int, seed: int, data: st.DataObject
) -> None:
    graph, t = graph_of(schedule), timing(schedule, layers, seed, data.draw(SYNCHRONOUS))
    times = graph.times(t)
    slack = graph.slack(t, times)
    assert slack.min() == pytest.approx(0, abs=1e-9)
    vertex, replica = data.draw(st.integers(0, graph.count - 1)), data.draw(st.integers(0, schedule.dp - 1))
    for more, longer in ((slack[vertex, replica] * 0.999, 0.0), (slack[vertex, replica] + 0.5, 0.5)):
        assert graph.times(later(graph, t, vertex, replica, more)).makespan - times.makespan == pytest.approx(
            longer, abs=1e-9
        )


def later(graph: Graph, t: Timing, vertex: int, replica: int, seconds: float) -> Timing:
    """Return the same timing, with one block that begins later on all its ranks."""
    changed = replace(t, transfer=t.transfer.copy(), landing=t.landing.copy(), ready=t.ready.copy(), send=t.send.copy())
    if graph.source[vertex] >= 0:
        changed.transfer[vertex, replica] += seconds
        changed.landing[vertex, replica] += seconds
    elif vertex % graph.blocks == 0:
        changed.ready[vertex // graph.blocks, replica] += seconds
    else:
        changed.send[vertex - 1, replica] += seconds
    return changed


@settings(max_examples=40, deadline=None)
@given(schedules(), st.integers(0, 2), st.integers(0, 1000), SYNCHRONOUS)
def test_the_critical_path_is_connected_and_as_long_as_the_iteration(
    schedule: Schedule, layers: int, seed: int, synchronous: float
) -> None:
    graph, t = graph_of(schedule), timing(schedule, layers, seed, synchronous)
    path, slack, times = graph.critical(t), graph.slack(t), graph.times(t)
    assert max(slack[step.vertex, step.replica] for step in path if step.begins) == pytest.approx(0, abs=1e-9)
    assert path[0].begins and len({step.replica for step in path}) == 1
    for before, step in zip(path, path[1:], strict=False):
        since = times.end[before.vertex] if before.ends else times.begin[before.vertex]
        until = times.begin[step.vertex] if step.begins else times.end[step.vertex]
        assert (
            before.vertex == graph.held[step.vertex] and not before.ends
            if not step.begins
            else before.vertex in (step.vertex - 1, graph.source[step.vertex]) and before.ends
        )
        assert (
            step.begins
            or until[step.replica, step.shard]
            == since[step.replica, before.shard] + t.release[before.vertex, step.replica, step.shard]
        )


@settings(max_examples=30, deadline=None)
@given(schedules(), st.integers(0, 2), st.integers(0, 1000))
def test_a_counterfactual_needs_only_the_changed_replica(schedule: Schedule, layers: int, seed: int) -> None:
    graph, t = graph_of(schedule), timing(schedule, layers, seed, 0.5)
    compute = t.compute.copy()
    compute[:, :, 0] *= 0.5
    changed = replace(t, compute=compute)
    assert graph.without(graph.times(t), changed.replicas([0]), [0]) == pytest.approx(graph.times(changed).makespan)


def test_one_pass_over_4096_ranks_has_as_many_steps_as_over_eight() -> None:
    """Every step works on arrays over all replicas; Schedule(2, 4, 512, 8) takes some milliseconds."""

    def steps(replicas: int) -> int:
        schedule = Schedule(2, 4, replicas, 8)
        graph, t = graph_of(schedule), timing(schedule, 4, 1)
        return calls_of(lambda: graph.times(t))

    assert steps(512) == steps(1) < 1000
