"""A watch measures only what is new since its last look, says the same as who looks for the first time, and keeps no more than it sees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from manapy.trace import alarms, iterations, stages
from manapy.trace.events import Trace
from manapy.trace.iterations import SAME, Measured
from manapy.trace.schedule import parse
from manapy.trace.simulate import Fault, Kind, Model, simulate
from manapy.trace.verdict import Phase, State

SCHEDULE = parse("tp=2,pp=2,dp=2,micro=4")
MODEL = Model(SCHEDULE, iterations=40, forward=0.0026, backward=0.0052, closing=0.0002, optimizer=0.0012)
LONG = Fault(Kind.COMPUTE, 5, 30, 3, Phase.BACKWARD, seconds=1.0)


@pytest.fixture
def trace() -> Trace:
    found = simulate(MODEL, [LONG], 4).trace
    assert found is not None
    return found


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the iterations that are measured."""
    numbers: list[int] = []
    measure = iterations._measure

    def counting(*arguments: Any) -> Any:
        numbers.append(arguments[-1])
        return measure(*arguments)

    monkeypatch.setattr(iterations, "_measure", counting)
    return numbers


def until(trace: Trace, moment: int) -> Trace:
    """What had ended by then."""
    events = trace.events
    return replace(trace, events=events[events["exit"] <= moment], now=moment)


def ends(trace: Trace) -> list[int]:
    """When each iteration ended."""
    return [one.end for one in iterations.iterations(stages.label(trace, SCHEDULE))]


def test_a_look_measures_what_is_new_and_says_the_same(trace: Trace, counted: list[int]) -> None:
    at, before = ends(trace), Measured()
    for number in (20, 29, 30, 38):
        seen = until(trace, at[number])
        fresh = alarms.verdicts(seen, SCHEDULE)
        counted.clear()
        assert alarms.verdicts(seen, SCHEDULE, before=before) == fresh
        assert fresh[0].state is (State.SLOW if number >= 30 else State.HEALTHY)
        new = number - {20: -1, 29: 20, 30: 29, 38: 30}[number]
        assert [n for n in counted if n] == [n for n in range(number - new + 1, number + 1) if n]
        assert len(before) == number


def test_times_that_a_better_clock_has_moved_are_the_same_and_others_are_not(trace: Trace, counted: list[int]) -> None:
    before = Measured()
    alarms.verdicts(trace, SCHEDULE, before=before)
    for moved, new in ((SAME // 2, 0), (100 * SAME, 2)):  # in the iteration itself, and in the next, which begins at its end
        events = trace.events.copy()
        last = events["exit"] == ends(trace)[10]
        events["exit"][last] += moved
        other = replace(trace, events=events)
        fresh = ends(other)
        counted.clear()
        found = [one.end for one in iterations.iterations(stages.label(other, SCHEDULE), before)]
        assert found == fresh and len([n for n in counted if n]) == new


def test_what_is_forgotten_is_not_kept(trace: Trace) -> None:
    before = Measured()
    alarms.verdicts(trace, SCHEDULE, before=before)
    whole = len(before)
    moment = ends(trace)[30]
    ranks = {rank: replace(known, lost=1, first_ns=moment) for rank, known in trace.ranks.items()}
    newer = replace(trace, events=trace.events[trace.events["enter"] > moment], ranks=ranks)
    alarms.verdicts(newer, SCHEDULE, before=before)
    assert 0 < len(before) < whole // 2
    assert np.array_equal(sorted(before._now), range(min(before._now), 40))
