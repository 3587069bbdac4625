"""Hosts that were asked for the time: the error of an offset never exceeds the stated bound."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from manapy.trace.capture import clocks
from manapy.trace.capture.clocks import SECOND, Line, Meeting, Sample
from manapy.trace.model.events import EVENT, Op
from traces import calls_of

START = 1_700_000_000 * SECOND


class Host:
    """A host whose clock is `ahead` ns ahead, and gains `drift` for each ns of true time (ns since 0). Its ticks are
    the ns of its monotonic clock."""

    def __init__(self, name: str, ahead: int, drift: float) -> None:
        self.name, self.ahead, self.drift = name, ahead, drift

    def monotonic(self, true: int) -> int:
        return 10**12 + round(true * (1 + self.drift))

    def sample(self, true: int) -> Sample:
        return Sample(self.monotonic(true), START + self.ahead + self.monotonic(true), self.monotonic(true))

    def line(self) -> Line:
        return Line(self.name, [self.sample(0)], 1.0)

    def own(self, true: int) -> int:
        return self.sample(0).realtime + self.monotonic(true) - self.monotonic(0)


def event(host: Host, enter: int, exit: int, number: int) -> np.ndarray:
    found = np.zeros(1, EVENT)
    found["op"], found["context"], found["enter"], found["exit"] = Op.BARRIER, number, host.own(enter), host.own(exit)
    return found


half_drift = st.floats(-clocks.DRIFT / 2.1, clocks.DRIFT / 2.1)
times = st.integers(0, 1000 * SECOND)
asked = st.lists(st.tuples(times, st.integers(1000, 10**6), st.floats(-1, 1)), min_size=1, max_size=5)


@given(
    st.integers(-(10**13), 10**13),
    half_drift,
    half_drift,
    asked,
    asked,
    st.lists(times, min_size=1, max_size=5),
    st.booleans(),
    st.booleans(),
)
def test_the_uncertainty_holds(
    ahead: int, drift: float, other: float, asked: list, asked_base: list, calls: list[int], base_asks: bool, meet: bool
) -> None:
    """This holds for any asking host, for any delay of an answer, and with or without collectives in between."""
    base, there, asking = Host("base", 0, drift), Host("there", ahead, other), Host("asking", 77, 0.0)
    if base_asks:
        asking = base

    def answers(host: Host, asked: list) -> list[Meeting]:
        return [
            Meeting(host.name, host.sample(true), asking.monotonic(true) + round(share * doubt * 0.99), doubt)
            for true, doubt, share in asked
        ]

    found = [base.line(), there.line()]
    own = (
        [Meeting("base", base.sample(t), base.monotonic(t), 0) for t, _, _ in asked_base]
        if base_asks
        else answers(base, asked_base)
    )
    clocks.meet(found, [*own, *answers(there, asked)])
    assert [len(line.meetings) for line in found] == [len(asked_base), len(asked)]
    barriers = (
        [event(host, true, true + 50_000, i) for host in (base, there) for i, true in enumerate(calls)]
        if meet
        else [event(there, true, true, i) for i, true in enumerate(calls)]
    )
    of = np.array([0] * len(calls) + [1] * len(calls) if meet else [1] * len(calls))
    clocks.align(found, 0, of, np.concatenate(barriers))
    line = found[1]
    assert not line.problems
    for true in calls:
        away = int(line.shifted(np.array([there.own(true)]))[0]) - base.own(true)
        assert abs(away) <= line.uncertainty + 2 * clocks.SAMPLE_ERROR, (away, line.uncertainty)


def test_an_answer_is_better_than_a_slow_collective_and_a_fast_one_better_than_it() -> None:
    def uncertainty(*, took: int, barrier: int | None) -> int:
        base, there = Host("base", 0, 0.0), Host("there", 5 * SECOND, 0.0)
        found = [base.line(), there.line()]
        clocks.meet(
            found,
            [
                Meeting("base", base.sample(0), base.monotonic(0), 0),
                Meeting("there", there.sample(0), base.monotonic(0), took),
            ],
        )
        events = [event(host, 1000, 1000 + barrier, 1) for host in (base, there)] if barrier else [np.empty(0, EVENT)]
        clocks.align(found, 0, np.array([0, 1] if barrier else [], int), np.concatenate(events))
        return found[1].uncertainty

    alone = uncertainty(took=100_000, barrier=None)
    assert 100_000 <= alone <= 110_000
    assert uncertainty(took=100_000, barrier=10**9) <= alone + 1 + 10**9 * clocks.DRIFT
    assert uncertainty(took=100_000, barrier=20_000) <= 21_000


def test_an_answer_that_no_collective_allows_is_told() -> None:
    base, there = Host("base", 0, 0.0), Host("there", 0, 0.0)
    found = [base.line(), there.line()]
    wrong = Meeting("there", there.sample(0), base.monotonic(0) + 10**7, 1000)
    clocks.meet(found, [Meeting("base", base.sample(0), base.monotonic(0), 0), wrong])
    clocks.align(found, 0, np.array([0, 1]), np.concatenate([event(host, 0, 1000, 1) for host in (base, there)]))
    assert "contradict each other by up to" in found[1].problems[0] and found[1].uncertainty >= 4 * 10**6


def test_another_machine_of_that_name_is_not_the_one_that_was_asked() -> None:
    there = Host("there", 0, 0.0)
    line = there.line()
    line.add([there.sample(SECOND)])
    clocks.meet([line], [Meeting("there", Sample(5, START, 10**15), 0, 1), Meeting("elsewhere", there.sample(0), 0, 1)])
    assert not line.meetings


def watched(count: int, hosts: int = 2) -> list[Meeting]:
    """The meetings of a watch that asks all hosts every ten seconds, one host after the other."""
    return [
        Meeting(f"node{i}", Sample(t, t, t), t, 100_000 + 1000 * (k % 7))
        for i in range(hosts)
        for k in range(count)
        for t in [(10 * k + 1) * SECOND + i * 1_000_000]
    ]


def test_the_meetings_that_are_kept_are_few_and_cover_all_of_the_time() -> None:
    both: list[list[Meeting]] = []
    for host in (0, 1):
        kept: list[Meeting] = []
        for meeting in watched(9000)[host * 9000 : (host + 1) * 9000]:
            kept = clocks.kept([*kept, meeting])
            assert len(kept) <= clocks.MOST
        assert kept[-clocks.NEWEST :] == watched(9000)[(host + 1) * 9000 - clocks.NEWEST : (host + 1) * 9000]
        both.append(kept)
    at = np.array([meeting.at for meeting in both[0]])
    assert at[0] == SECOND and np.diff(at).max() <= at[-1] / 16
    assert [meeting.at + 1_000_000 for meeting in both[0]] == [meeting.at for meeting in both[1]]


def of_hosts(count: int) -> tuple[list[Line], list[Meeting]]:
    found, _ = clocks.lines([(f"node{i}", [Sample(t, t, t) for t in (1, SECOND)], SECOND, True) for i in range(2)])
    return found, watched(count)


def test_the_cost_of_meetings_grows_with_their_number_only() -> None:
    def cost(count: int) -> int:
        found, meetings = of_hosts(count)
        return calls_of(lambda: clocks.meet(found, meetings))

    assert cost(4000) < 2.5 * cost(2000)
    found, meetings = of_hosts(2000)
    clocks.meet(found, meetings)
    tracemalloc.start()
    clocks.align(found, 0, np.zeros(0, int), np.empty(0, EVENT))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2 << 20  # bytes
    assert found[1].uncertainty < 1_000_000


@given(st.lists(times, min_size=1, max_size=9), st.lists(times, min_size=1, max_size=9))
def test_the_nearest_time(at: list[int], among: list[int]) -> None:
    found = clocks._nearest(np.array(at), np.array(among))
    assert [abs(t - among[i]) for t, i in zip(at, found, strict=True)] == [min(abs(t - o) for o in among) for t in at]
