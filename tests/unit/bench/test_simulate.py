"""The simulator's calls are those of a possible execution, and its recorded truth agrees with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from manapy.trace.model import stages
from manapy.trace.model.events import OPEN, Op
from manapy.trace.model.graph import graph_of
from manapy.trace.model.iterations import iterations
from manapy.trace.model.schedule import parse
from manapy.trace.model.verdict import Phase
from manapy.bench.trace.simulate import Fault, Kind, Model, simulate

SCHEDULES = [
    "tp=2,pp=4,dp=2,micro=8",
    "tp=2,pp=3,dp=2,micro=4,kind=gpipe",
    "tp=2,pp=2,dp=2,micro=4,kind=interleaved",
    "tp=1,pp=3,dp=2,micro=4,order=tp-pp-dp",
    "tp=4,pp=1,dp=2",
    "tp=2,pp=2,micro=3",
]
MODEL = Model(parse("tp=2,pp=4,dp=2,micro=8"))


@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("text", SCHEDULES)
def test_an_iteration_is_as_long_as_its_longest_path(text: str, synchronous: bool) -> None:
    run = simulate(
        Model(parse(text), iterations=3, synchronous=synchronous), [Fault(Kind.LINK, 1, 2, factor=100)], seed=4
    )
    graph = graph_of(run.model.schedule)
    assert [graph.times(timing).makespan for timing in run.timings] == pytest.approx(run.lengths.tolist())
    assert run.trace is not None
    # the recorded calls suffice to compute the same timings
    for one, timing in zip(iterations(stages.label(run.trace, run.model.schedule)), run.timings, strict=True):
        assert graph.times(one.timing).makespan == pytest.approx(one.seconds, abs=1e-7)
        if synchronous and run.model.schedule.pp > 1:
            assert one.timing.release is not None and timing.release is not None
            has = graph.source >= 0
            assert one.timing.release[has] == pytest.approx(
                timing.release[has], abs=1e-8
            ) and one.timing.transfer == pytest.approx(timing.transfer, abs=1e-8)
        else:
            assert one.timing.release is None


@pytest.mark.parametrize("text", [text for text in SCHEDULES if "pp=1" not in text])
def test_a_synchronous_message_is_received_before_the_next_one_goes_the_same_way(text: str) -> None:
    model = Model(parse(text), iterations=2, synchronous=True)
    trace = simulate(model, [Fault(Kind.LINK, 1, 1, factor=100)], seed=1).trace
    assert trace is not None
    events, places, ways, late = trace.events, model.schedule.places, {}, 0
    received = {
        (*key, number): event for key, some in messages(events, Op.RECV).items() for number, event in enumerate(some)
    }
    for key, some in messages(events, Op.SSEND).items():
        for number, event in enumerate(some):
            backward = model.schedule.blocks_of(int(places[key[1], 0]))[key[2]].backward
            ways.setdefault((*key[:2], backward), []).append((event["enter"], received[*key, number]["exit"]))
    for times in ways.values():
        times.sort()
        for (_, arrived), (sent, _) in zip(times, times[1:], strict=False):
            assert arrived <= sent
            late += arrived == sent
    assert late, "no sender had to wait"


def messages(events: np.ndarray, op: Op) -> dict[tuple[int, int, int], list[np.void]]:
    """Return the messages of each (sender, receiver, tag), in order."""
    found: dict[tuple[int, int, int], list[np.void]] = {}
    for event in events[events["op"] == op]:
        pair = (event["peer"], event["rank"]) if op == Op.RECV else (event["rank"], event["peer"])
        found.setdefault((*map(int, pair), int(event["tag"])), []).append(event)  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("text", SCHEDULES)
def test_calls_follow_each_other_and_messages_are_sent_before_they_come(text: str, synchronous: bool) -> None:
    trace = simulate(Model(parse(text), iterations=2, synchronous=synchronous), seed=1).trace
    assert trace is not None
    events = trace.events
    same = events["rank"][1:] == events["rank"][:-1]
    assert (np.diff(events["rank"]) >= 0).all() and (np.diff(events["seq"].astype(int))[same] == 1).all()
    assert (events["enter"][1:][same] >= events["exit"][:-1][same]).all() and (events["exit"] >= events["enter"]).all()
    sends, recvs = messages(events, Op.SSEND if synchronous else Op.SEND), messages(events, Op.RECV)
    assert sends.keys() == recvs.keys()
    for key, sent in sends.items():
        assert len(sent) == len(recvs[key]) == 2
        assert all(s["enter"] < r["exit"] for s, r in zip(sent, recvs[key], strict=True))
    for comm in range(len(trace.comms)):
        for seq in np.unique(events["context"][(events["comm"] == comm) & (events["op"] == Op.ALLREDUCE)]):
            calls = events[(events["comm"] == comm) & (events["op"] == Op.ALLREDUCE) & (events["context"] == seq)]
            assert (
                sorted(calls["rank"]) == sorted(trace.comms[comm].members)
                and calls["enter"].max() <= calls["exit"].min()
            )


def test_a_fault_changes_nothing_but_what_depends_on_it() -> None:
    fault = Fault(Kind.COMPUTE, 9, iteration=3, micro=2, phase=Phase.BACKWARD, seconds=1.0)
    healthy, faulty = simulate(MODEL, seed=7), simulate(MODEL, [fault], seed=7)
    assert (healthy.lengths[:3] == faulty.lengths[:3]).all()
    assert faulty.lengths[3] - healthy.lengths[3] == pytest.approx(1.0, abs=0.3)
    assert faulty.lengths[4:] == pytest.approx(healthy.lengths[4:])


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind.hangs])
def test_a_hang_leaves_open_calls(kind: Kind) -> None:
    phase = Phase.TRANSFER if kind in (Kind.SKIP_RECV, Kind.DROP) else Phase.FORWARD
    run = simulate(MODEL, [Fault(kind, 9, iteration=2, micro=3, phase=phase)], seed=1)
    assert run.trace is not None and len(run.timings) == 2
    events = run.trace.events
    waiting = set(events["rank"][events["exit"] == OPEN].tolist())
    outside = set(range(16)) - waiting
    assert outside == ({9} if kind in (Kind.SPIN, Kind.SLEEP, Kind.STOP, Kind.DEAD) else set())
    assert run.trace.ranks[9].process == {Kind.SLEEP: "S", Kind.STOP: "T", Kind.DEAD: "dead"}.get(kind, "R")


@pytest.mark.parametrize("synchronous", [False, True])
def test_a_skipped_recv_is_not_there_and_its_sender_waits(synchronous: bool) -> None:
    run = simulate(
        replace(MODEL, synchronous=synchronous),
        [Fault(Kind.SKIP_RECV, 9, iteration=1, micro=3, phase=Phase.TRANSFER)],
        seed=1,
    )
    assert run.trace is not None
    events = run.trace.events
    waiting = events[
        (events["exit"] == OPEN) & (events["op"] == (Op.WAIT if synchronous else Op.SEND)) & (events["rank"] == 5)
    ]
    sender = (
        events[(events["rank"] == 5) & (events["request"] == waiting["request"][0]) & (events["op"] == Op.SSEND)]
        if synchronous
        else waiting
    )
    assert len(waiting) == 1 and sender["peer"].tolist() == [9]
    received = events[(events["rank"] == 9) & (events["op"] == Op.RECV) & (events["tag"] == sender["tag"][0])]
    assert len(received) == 1  # only the message of the iteration before


def test_a_throttled_node_slows_all_its_ranks() -> None:
    healthy, faulty = (
        simulate(MODEL, seed=3),
        simulate(MODEL, [Fault(Kind.NODE, 9, iteration=2, factor=2.0, until=4)], seed=3),
    )
    assert faulty.lengths[2] > 1.5 * healthy.lengths[2] and faulty.lengths[4] == pytest.approx(
        healthy.lengths[4], rel=0.01
    )
    assert (faulty.timings[2].compute[32:48, 0, :, :] == 2 * healthy.timings[2].compute[32:48, 0, :, :]).all()
