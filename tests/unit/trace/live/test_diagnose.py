"""The diagnosis of a trace: stuck, else slow, else healthy; with labels by a schedule that is given, that is found, or
that doesn't fit."""

from __future__ import annotations

import json
from dataclasses import replace

from manapy.bench.trace import simulate
from manapy.trace.live.diagnose import as_json, diagnose, state
from manapy.trace.model import schedule
from manapy.trace.model.events import Trace
from manapy.trace.model.verdict import Cause, Phase, State
from manapy.bench.trace.simulate import Fault, Kind, Model

PLAN = schedule.parse("tp=2,pp=4,dp=2,micro=8")


def trace_of(*faults: Fault, iterations: int = 24) -> Trace:
    trace = simulate.simulate(Model(PLAN, iterations=iterations), faults, seed=3).trace
    assert trace is not None
    return trace


def test_stuck_in_a_place_that_the_schedule_names_and_so_it_does_if_it_is_found_by_itself() -> None:
    trace = trace_of(Fault(Kind.SPIN, 9, 20, 3, Phase.BACKWARD, segment=1))
    for plan in (PLAN, None):
        (found,) = diagnose(trace, plan)
        assert (found.state, found.cause, found.rank, found.phase, found.micro) == (
            State.LATE,
            Cause.COMPUTE,
            9,
            Phase.BACKWARD,
            3,
        )
        assert found.sentence.startswith(
            "rank 9 (node01) is late in backward of micro-batch 3 in iteration 20: it has not called MPI_Allreduce"
        )


def test_a_schedule_that_does_not_fit_is_said_and_not_used() -> None:
    found = diagnose(
        trace_of(Fault(Kind.SPIN, 9, 20, 3, Phase.BACKWARD, segment=1)), schedule.parse("tp=2,pp=2,dp=2,micro=8")
    )[0]
    assert (found.rank, found.phase) == (9, Phase.UNKNOWN) and "8 ranks" in found.evidence[-1]


def test_slow_and_healthy() -> None:
    assert state(diagnose(trace_of(), PLAN)) is State.HEALTHY
    found = diagnose(trace_of(Fault(Kind.COMPUTE, 5, 21, 4, Phase.FORWARD, seconds=2.0)), PLAN)[0]
    assert (found.state, found.rank, found.micro) == (State.SLOW, 5, 4)
    assert diagnose(trace_of(iterations=2))[0].state is State.UNKNOWN  # too few to judge its speed


def test_the_first_to_die_of_a_job_that_is_over() -> None:
    trace = trace_of(iterations=2)
    trace = replace(
        trace, ranks={rank: replace(known, process="dead", ended=False) for rank, known in trace.ranks.items()}
    )
    assert diagnose(trace)[0].state is State.UNKNOWN
    found = diagnose(trace, died=6)[0]
    assert (found.state, found.cause, found.rank) == (State.HUNG, Cause.DEAD, 6)


def test_a_verdict_as_data() -> None:
    said = json.loads(json.dumps(as_json(diagnose(trace_of(Fault(Kind.DEAD, 9, 20, 3, Phase.BACKWARD)))[0])))
    assert (said["state"], said["cause"], said["rank"]) == ("hung", "dead process", 9)
