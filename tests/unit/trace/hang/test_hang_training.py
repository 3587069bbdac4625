"""Verdicts on simulated training jobs: rank, cause and place in the schedule of one fault; and verdicts on healthy
jobs."""

from __future__ import annotations

import random

import pytest

from manapy.bench.trace import simulate
from manapy.trace.hang import hang
from manapy.trace.model import schedule, stages
from manapy.trace.model.verdict import Phase, State
from manapy.bench.trace.simulate import Fault, Kind, Model

SCHEDULES = (
    "tp=2,pp=4,dp=2,micro=8",
    "tp=2,pp=3,dp=1,micro=5",
    "tp=2,pp=2,dp=2,micro=4,kind=gpipe",
    "tp=2,pp=4,dp=1,micro=8,kind=interleaved",
)
HANGS = [kind for kind in Kind if kind.hangs]


def draw(random: random.Random, model: Model, kind: Kind) -> Fault:
    """Draw a fault at any place of the run where it can happen."""
    plan = model.schedule
    backward = random.random() < 0.5
    phase = Phase.TRANSFER if kind in (Kind.SKIP_RECV, Kind.DROP) else Phase.BACKWARD if backward else Phase.FORWARD
    if kind is Kind.SKIP_RECV:
        places = [
            (s, b.chunk, b.micro)
            for s in range(plan.pp)
            for b in plan.blocks_of(s)
            if b.backward == backward and plan.source(s, b) is not None
        ]
    else:
        places = simulate.positions(plan, phase, backward)
    stage, chunk, micro = random.choice(places)
    return Fault(
        kind,
        int(random.choice(plan.ranks[stage].ravel().tolist())),
        random.randrange(model.iterations),
        micro,
        phase,
        backward,
        chunk,
        segment=1,
    )


@pytest.mark.parametrize("kind", HANGS)
def test_rank_cause_and_place_are_right(kind: Kind) -> None:
    drawn = random.Random(kind.value)
    for seed in range(6):
        model = Model(schedule.parse(drawn.choice(SCHEDULES)), synchronous=seed % 2 == 1)
        fault = draw(drawn, model, kind)
        trace = simulate.simulate(model, (fault,), seed=seed).trace
        assert trace is not None
        (found,) = hang.verdicts(trace, labels=stages.label(trace, model.schedule))
        state = State.LATE if kind in (Kind.SPIN, Kind.DROP) else State.HUNG  # only its duration shows a LATE fault
        assert found.state is state and found.cause is fault.cause, (fault, found.sentence)
        assert fault.rank in ((found.rank, found.peer) if kind is Kind.DROP else (found.rank,)), (fault, found.sentence)
        assert (found.phase, found.micro, found.iteration) == (fault.phase, fault.micro, fault.iteration), (
            fault,
            found.sentence,
        )
        # without the schedule, the first iteration does not show which rank should have received
        (blind,) = hang.verdicts(trace)
        assert blind.state is state
        assert blind.rank == found.rank or (kind is Kind.SKIP_RECV and fault.iteration == 0 and blind.rank is None), (
            fault,
            blind.sentence,
        )


def test_between_two_iterations_the_first_forward_pass_is_named_and_the_optimizer_too() -> None:
    model = Model(schedule.parse(SCHEDULES[0]))
    trace = simulate.simulate(model, (Fault(Kind.SPIN, 2, 3, 0, Phase.FORWARD, segment=0),)).trace
    assert trace is not None
    (found,) = hang.verdicts(trace, labels=stages.label(trace, model.schedule))
    assert (found.rank, found.phase, found.micro, found.iteration) == (2, Phase.FORWARD, 0, 3)
    assert any("optimizer of iteration 2" in text for text in found.alternatives)


def test_a_message_on_a_dropped_link_is_named_not_the_one_after_it() -> None:
    """Its sender has already gone on to the Wait before the next message."""
    model = Model(schedule.parse(SCHEDULES[0]), synchronous=True)
    trace = simulate.simulate(model, (Fault(Kind.DROP, 10, 3, 5, Phase.TRANSFER),), seed=1).trace
    assert trace is not None
    (found,) = hang.verdicts(trace, labels=stages.label(trace, model.schedule))
    assert ({found.rank, found.peer}, found.phase, found.micro, found.iteration) == ({10, 14}, Phase.TRANSFER, 5, 3), (
        found.sentence
    )


def test_healthy_ones_and_two_faults_at_once() -> None:
    for seed, text in enumerate(SCHEDULES):
        trace = simulate.simulate(Model(schedule.parse(text)), seed=seed).trace
        assert trace is not None
        assert [v.state for v in hang.verdicts(trace)] == [State.HEALTHY]
    model = Model(schedule.parse("tp=1,pp=2,dp=2,micro=4"))
    # the faults are in two replicas that meet only at the end
    faults = [Fault(Kind.SPIN, rank, 3, 1, Phase.BACKWARD) for rank in (2, 3)]
    trace = simulate.simulate(model, faults).trace
    assert trace is not None
    assert sorted(v.rank or 0 for v in hang.verdicts(trace)) == [2, 3]
