"""A watch measures only iterations that are new since its last look, and compares only these with the expectations. It
gives the same verdicts as a first look, and keeps no more than it sees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from manapy.trace.host.runqueue import Delays
from manapy.trace.model import iterations, stages
from manapy.trace.model.events import Trace
from manapy.trace.model.iterations import SAME
from manapy.trace.model.schedule import parse
from manapy.trace.model.verdict import Cause, Phase, State, Verdict
from manapy.bench.trace.simulate import Fault, Kind, Model, simulate
from manapy.trace.slow import alarms, slow
from manapy.trace.slow.monitor import Monitor
from rounds import rounds

pytestmark = pytest.mark.slow  # the whole file

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
    """The numbers of the measured iterations."""
    numbers: list[int] = []
    measure = iterations._measure

    def counting(*arguments: Any) -> Any:
        numbers.append(arguments[-1])
        return measure(*arguments)

    monkeypatch.setattr(iterations, "_measure", counting)
    return numbers


def until(trace: Trace, moment: int) -> Trace:
    """Return the part of a trace that had ended by then."""
    events = trace.events
    return replace(trace, events=events[events["exit"] <= moment], now=moment)


def ends(trace: Trace) -> list[int]:
    """Return when each iteration ended."""
    return [one.end for one in iterations.iterations(stages.label(trace, SCHEDULE))]


def gist(verdicts: list[Verdict]) -> list[tuple[State, Cause, int | None, int | None]]:
    """Return verdicts without figures. Figures differ slightly, because the expectations were made at another
    moment."""
    return [(said.state, said.cause, said.rank, said.iteration) for said in verdicts]


def test_a_look_measures_what_is_new_and_says_the_same(trace: Trace, counted: list[int]) -> None:
    at, looks = ends(trace), slow.WatchState()
    for number in (20, 29, 30, 38):
        seen = until(trace, at[number])
        fresh = alarms.verdicts(seen, SCHEDULE)
        counted.clear()
        assert gist(alarms.verdicts(seen, SCHEDULE, looks=looks)) == gist(fresh)
        assert fresh[0].state is (State.SLOW if number >= 30 else State.HEALTHY)
        new = number - {20: -1, 29: 20, 30: 29, 38: 30}[number]
        assert [n for n in counted if n] == [n for n in range(number - new + 1, number + 1) if n]
        assert len(looks.measured) == number


@pytest.fixture
def measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An iteration is the same in all beginnings of one trace. To measure it takes most of the time of a look."""
    known: dict[tuple[int, int | None], iterations.Iteration] = {}
    measure = iterations._measure

    def once(labels: Any, columns: Any, previous: int | None, number: int) -> iterations.Iteration | None:
        if (number, previous) not in known:
            if (found := measure(labels, columns, previous, number)) is None:
                return None
            known[number, previous] = found
        return known[number, previous]

    monkeypatch.setattr(iterations, "_measure", once)


@pytest.mark.usefixtures("measured_once")
@pytest.mark.parametrize("seed", range(rounds(1, 6)))
@pytest.mark.parametrize(
    "faults",
    [
        [],
        [Fault(Kind.COMPUTE, 5, i, 3, Phase.BACKWARD, seconds=0.06) for i in range(60, 150)],
        [Fault(Kind.RANK, 3, 50, factor=1.4)],
        [Fault(Kind.LINK, 6, 70, factor=30.0)],
        [
            Fault(Kind.COMPUTE, 5, 90, 3, Phase.BACKWARD, seconds=1.0),
            Fault(Kind.COMPUTE, 2, 91, 1, Phase.FORWARD, seconds=1.0),
        ],
    ],
    ids=["healthy", "again-and-again", "throttled", "link", "two"],
)
def test_who_has_watched_from_the_beginning_says_what_a_newcomer_says(
    faults: list[Fault], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = simulate(replace(MODEL, iterations=150), faults, seed).trace
    assert trace is not None
    fed: list[int] = []
    feed = Monitor.feed
    monkeypatch.setattr(Monitor, "feed", lambda self, numbers, *rest: fed.extend(numbers) or feed(self, numbers, *rest))
    looks, least = slow.WatchState(), 0
    for moment in ends(trace)[3::7]:
        seen = until(trace, moment)
        said = alarms.verdicts(seen, SCHEDULE, looks=looks)
        again, fed[:] = fed[:], []
        fresh = alarms.verdicts(seen, SCHEDULE)
        assert {(v.state, v.cause, v.rank) for v in said} == {(v.state, v.cause, v.rank) for v in fresh}
        assert len(again) in (7, len(fed))
        least += len(again) < len(fed)
        fed.clear()
    assert least > 10, "all of them again only after they have become twice as many"


def test_a_restart_that_takes_back_iterations_is_looked_at_anew(trace: Trace) -> None:
    looks = slow.WatchState()
    assert alarms.verdicts(trace, SCHEDULE, looks=looks)[0].state is State.SLOW
    other = simulate(MODEL, [], 5).trace
    assert other is not None
    assert gist(alarms.verdicts(until(other, ends(other)[35]), SCHEDULE, looks=looks)) == [
        (State.HEALTHY, Cause.NONE, None, None)
    ]


def test_samples_that_come_later_than_the_calls_count_at_the_next_look(trace: Trace) -> None:
    """Samples of another host come late. Until then it isn't known whether the rank had to wait for a processor."""
    at, looks = ends(trace), slow.WatchState()

    def sampled(until_: int) -> Delays:
        moments = np.arange(int(trace.events["enter"].min()) - 10**8, until_, 10**7)
        return Delays({rank: (moments, np.zeros_like(moments)) for rank in trace.ranks})

    states = []
    for number, known in ((28, at[29]), (30, at[29]), (32, at[33])):
        (said,) = alarms.verdicts(until(trace, at[number]), SCHEDULE, delays=sampled(known), looks=looks)
        states.append((said.state, said.rank))
    assert states == [(State.HEALTHY, None), (State.HEALTHY, None), (State.SLOW, 5)]


def test_times_that_a_better_clock_has_moved_are_the_same_and_others_are_not(trace: Trace, counted: list[int]) -> None:
    looks = slow.WatchState()
    before = looks.measured
    alarms.verdicts(trace, SCHEDULE, looks=looks)
    # the large move changes the iteration itself and the next one, which begins at its end
    for moved, new in ((SAME // 2, 0), (100 * SAME, 2)):
        events = trace.events.copy()
        last = events["exit"] == ends(trace)[10]
        events["exit"][last] += moved
        other = replace(trace, events=events)
        fresh = ends(other)
        counted.clear()
        found = [one.end for one in iterations.iterations(stages.label(other, SCHEDULE), before)]
        assert found == fresh and len([n for n in counted if n]) == new


def test_what_is_forgotten_is_not_kept(trace: Trace) -> None:
    looks = slow.WatchState()
    before = looks.measured
    alarms.verdicts(trace, SCHEDULE, looks=looks)
    whole = len(before)
    moment = ends(trace)[30]
    ranks = {rank: replace(known, lost=1, first_ns=moment) for rank, known in trace.ranks.items()}
    newer = replace(trace, events=trace.events[trace.events["enter"] > moment], ranks=ranks)
    alarms.verdicts(newer, SCHEDULE, looks=looks)
    assert 0 < len(before) < whole // 2
    assert np.array_equal(sorted(before._now), range(min(before._now), 40))
