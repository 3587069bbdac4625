"""Labels of calls, and schedules that are found from calls."""

from __future__ import annotations

import numpy as np
import pytest
from traces import Builder

from manapy.trace.model import stages
from manapy.trace.model.events import Flag, Op, Trace
from manapy.trace.model.graph import graph_of
from manapy.trace.model.iterations import iterations
from manapy.trace.model.schedule import ScheduleError, parse
from manapy.trace.model.verdict import Phase
from manapy.bench.trace.simulate import Fault, Kind, Model, simulate

SCHEDULES = [
    "tp=2,pp=4,dp=2,micro=8", "tp=2,pp=4,dp=2,micro=8,kind=gpipe", "tp=2,pp=2,dp=1,micro=4,kind=interleaved,chunks=2",
    "tp=2,pp=4,dp=2,micro=4,kind=interleaved,chunks=3",
    "tp=1,pp=3,dp=2,micro=4,order=tp-pp-dp", "tp=1,pp=2,dp=2,micro=3", "tp=2,pp=2,dp=1,micro=3",
    "tp=4,pp=1,dp=2,micro=1",
]  # fmt: skip


def simulated(text: str, *faults: Fault, iterations: int = 4, seed: int = 2) -> Trace:
    trace = simulate(Model(parse(text), iterations=iterations), faults, seed).trace
    assert trace is not None
    return trace


@pytest.mark.parametrize("text", SCHEDULES)
def test_the_schedule_is_found_in_the_calls_alone(text: str) -> None:
    assert str(stages.infer(simulated(text))) == text


@pytest.mark.parametrize("text", SCHEDULES)
def test_iterations_are_measured_as_they_were(text: str) -> None:
    run = simulate(Model(parse(text), iterations=4), seed=2)
    assert run.trace is not None
    found = list(iterations(stages.label(run.trace, run.model.schedule)))
    assert [one.number for one in found] == [0, 1, 2, 3]
    assert [one.seconds for one in found[1:]] == pytest.approx(run.lengths[1:].tolist(), abs=1e-7)
    graph = graph_of(run.model.schedule)
    for one, truth in zip(found[1:], run.timings[1:], strict=True):
        assert graph.times(one.timing).makespan == pytest.approx(one.seconds, rel=0.005)
        # without TP, a last stage's forward and backward pass are one block, because no call separates them
        if run.model.schedule.tp > 1:
            # From vertex 1 on, because the optimizer is part of the first stage's first block. The tolerance covers the
            # 20 us at a block's end, which are part of the next block if nothing is sent.
            assert np.abs(one.timing.compute - truth.compute)[1:, :-1].max() < 3e-5


def test_labels_say_phase_and_micro_batch() -> None:
    trace = simulated("tp=2,pp=2,dp=1,micro=3")
    labels = stages.label(trace, parse("tp=2,pp=2,dp=1,micro=3"))
    own = slice(labels.starts[2], labels.starts[3])  # stage 1: F0 B0 F1 B1 F2 B2
    assert labels.micro[own][:10].tolist() == [0] * 10 and labels.micro[own][10] == 1
    assert [stages.PHASES[i] for i in labels.phase[own][:10]] == [
        Phase.TRANSFER,
        *[Phase.FORWARD] * 4,
        *[Phase.BACKWARD] * 4,
        Phase.TRANSFER,
    ]
    assert stages.PHASES[labels.phase[own][-1]] is Phase.REDUCE and labels.iteration[own][-1] == 3
    assert set(labels.stage[own]) == {1}


@pytest.mark.parametrize("kind", [Kind.SPIN, Kind.STOP])
@pytest.mark.parametrize(
    ("phase", "backward"), [(Phase.FORWARD, False), (Phase.BACKWARD, True), (Phase.TRANSFER, True)]
)
def test_the_position_of_a_hung_rank(kind: Kind, phase: Phase, backward: bool) -> None:
    trace = simulated("tp=2,pp=4,dp=2,micro=8", Fault(kind, 9, 2, 5, phase, backward, segment=2))
    assert stages.label(trace, parse("tp=2,pp=4,dp=2,micro=8")).now(9) == stages.Position(phase, 2, 2, 5)


@pytest.mark.parametrize("text", ["tp=1,pp=1,dp=4,micro=1", "tp=2,pp=1,dp=2,micro=1"])
def test_the_position_of_a_rank_without_pipeline_stages(text: str) -> None:
    """If the only calls are gradient reductions, only iterations can be counted."""
    labels = stages.label(simulated(text, Fault(Kind.SPIN, 2, 2)), parse(text))
    where = labels.now(2)
    assert (where.phase, where.iteration, where.micro) == (
        (Phase.FORWARD, 2, 0) if labels.items[0] else (Phase.UNKNOWN, 4, None)
    )


def test_a_skipped_recv_shifts_no_label() -> None:
    trace = simulated("tp=2,pp=4,dp=2,micro=8", Fault(Kind.SKIP_RECV, 9, 2, 5, Phase.TRANSFER, True))
    labels = stages.label(trace, parse("tp=2,pp=4,dp=2,micro=8"))
    own = slice(labels.starts[9], labels.starts[10])
    tags = trace.events["tag"][own][trace.events["op"][own] == Op.RECV]
    blocks = labels.schedule.blocks_of(2)
    assert [blocks[tag].micro for tag in tags] == labels.micro[own][trace.events["op"][own] == Op.RECV].tolist()


def test_calls_that_are_lost_at_the_begin_cost_one_iteration() -> None:
    text = "tp=2,pp=4,dp=2,micro=8"
    trace = simulated(text)
    whole = stages.label(trace, parse(text))
    kept = np.ones(len(trace.events), bool)
    kept[whole.starts[3] : whole.starts[3] + 50] = False  # in the middle of an iteration
    trace.events = trace.events[kept]
    trace.ranks[3].lost = 50
    labels = stages.label(trace, parse(text))
    numbers = whole.iteration[kept]
    assert (labels.iteration == numbers)[labels.iteration >= 0].all() and (
        labels.iteration[numbers > 0] == numbers[numbers > 0]
    ).all()
    assert [one.number for one in iterations(labels)] == [1, 2, 3]


def test_other_calls_are_left_alone() -> None:
    """There is a barrier before the first iteration, and one in the middle of an iteration."""
    text = "tp=2,pp=2,dp=2,micro=4"
    trace = simulated(text)
    parts = []
    for rank in range(8):
        own = trace.events[trace.events["rank"] == rank]
        barrier = own[-1:].copy()
        barrier["op"], barrier["enter"], barrier["exit"] = Op.BARRIER, own["enter"][0] - 2, own["enter"][0] - 1
        inside = barrier.copy()
        inside["enter"], inside["exit"] = own["exit"][6] + 1, own["exit"][6] + 2
        parts += [barrier, own[:7], inside, own[7:]]
    trace.events = np.concatenate(parts)
    labels = stages.label(trace, parse(text))
    assert (labels.item[trace.events["op"] == Op.BARRIER] == stages.NONE).all() and (
        labels.item[trace.events["op"] != Op.BARRIER] != stages.NONE
    ).all()
    assert len(list(iterations(labels))) == 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tp=2,pp=4,dp=4,micro=8", "32 ranks, but the trace has 16"),
        ("tp=4,pp=4,dp=1,micro=8", "should be a TP group"), ("tp=2,pp=4,dp=2,micro=6", "doesn't fit"),
        ("tp=2,pp=4,dp=2,micro=8,kind=gpipe", "doesn't fit"), ("tp=2,pp=2,dp=4,micro=8", "doesn't fit"),
    ],
)  # fmt: skip
def test_a_schedule_that_does_not_fit_is_told_where(text: str, says: str) -> None:
    with pytest.raises(ScheduleError) as raised:
        stages.label(simulated("tp=2,pp=4,dp=2,micro=8"), parse(text))
    assert says in str(raised.value) and "\n" not in str(raised.value)


def test_no_schedule_is_seen_where_there_is_none() -> None:
    trace = simulated("tp=2,pp=4,dp=2,micro=8")
    kept = np.random.default_rng(1).random(len(trace.events)) < 0.5
    trace.events = trace.events[kept]
    with pytest.raises(ScheduleError, match="no schedule can be seen"):
        stages.infer(trace)


def test_a_ring_of_messages_is_no_pipeline() -> None:
    """Each rank sends, receives and then reduces, as a stage does."""
    job = Builder(3)
    for i in range(6):
        for rank in range(3):
            job.call(rank, Op.SEND, 1000 * i + 1, 1000 * i + 9, peer=(rank + 1) % 3, tag=1, flags=Flag.MORE)  # Sendrecv
            job.call(rank, Op.RECV, 1000 * i + 1, 1000 * i + 9, peer=(rank - 1) % 3, tag=1)
            job.call(rank, Op.BCAST, 1000 * i + 20, 1000 * i + 29, peer=0)
            job.call(rank, Op.ALLREDUCE, 1000 * i + 30, 1000 * i + 39)
    with pytest.raises(ScheduleError, match="no schedule can be seen"):
        stages.infer(job.trace(6000))


def test_a_tree_of_messages_is_no_pipeline() -> None:
    """As in mpi4py's allreduce of objects: rank 0 only receives."""
    job = Builder(4)
    for i in range(6):
        for a, b in ((1, 0), (3, 2), (2, 0)):
            job.call(a, Op.SEND, 1000 * i + 10 * a, 1000 * i + 10 * a + 9, peer=b, tag=1)
            job.call(b, Op.RECV, 1000 * i + 10 * a, 1000 * i + 10 * a + 9, peer=a, tag=1)
        for rank in range(4):
            job.call(rank, Op.BCAST, 1000 * i + 50, 1000 * i + 59, peer=0)
    with pytest.raises(ScheduleError, match="no schedule can be seen"):
        stages.infer(job.trace(6000))


@pytest.mark.parametrize(
    "text",
    [
        "tp=2,pp=4,dp=2,micro=8",
        "tp=2,pp=2,dp=2,micro=4,kind=interleaved,chunks=2",
        "tp=2,pp=4,dp=1,micro=8,kind=gpipe",
        "tp=2,pp=2,dp=1,micro=4",
    ],
)
@pytest.mark.parametrize("given", [True, False])
def test_first_and_last_stage_have_more_calls(text: str, given: bool) -> None:
    """As in Megatron-LM, each forward pass of these stages begins with three Broadcasts of its data, and has an
    embedding or a loss."""
    model = Model(parse(text), iterations=6, layers=24, data=3, embedding=1, loss=(3, 1))
    run = simulate(model, seed=3)
    assert run.trace is not None
    labels = stages.label(run.trace, model.schedule) if given else stages.inferred(run.trace)
    assert str(labels.schedule) == text and not any(
        sequence.strays for sequence in labels.sequences if sequence is not None
    )
    graph = graph_of(model.schedule)
    for one, truth in zip(iterations(labels), run.timings, strict=True):
        assert graph.times(one.timing).makespan == pytest.approx(one.seconds, rel=0.005)
        own, real = (
            timing.compute.sum(axis=1).reshape(model.schedule.pp, -1).sum(axis=1) for timing in (one.timing, truth)
        )
        assert one.first or own[1:] == pytest.approx(real[1:], rel=0.01)


def test_calls_on_a_tp_group_after_the_last_block_belong_to_it() -> None:
    """An example is the reduction of a layer norm's gradients. No iteration begins with such a call."""
    text = "tp=2,pp=2,dp=2,micro=4"
    trace = simulated(text)
    parts = []
    for rank in range(8):
        own = trace.events[trace.events["rank"] == rank]
        for iteration in np.split(
            own, np.flatnonzero(own["comm"] == 0)[own["op"][own["comm"] == 0] == Op.ALLREDUCE] + 1
        ):
            if len(iteration):
                more = iteration[np.flatnonzero(iteration["op"] == Op.ALLREDUCE)[:1]].copy()
                more["enter"], more["exit"] = iteration["exit"][-3] + 1, iteration["exit"][-3] + 2
                parts += [iteration[:-2], more, iteration[-2:]]
    trace.events = np.concatenate(parts)
    labels = stages.label(trace, parse(text))
    assert (labels.item != stages.NONE).all() and len(list(iterations(labels))) == 4
