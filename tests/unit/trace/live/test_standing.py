"""What a watch reports, withdraws and acts on, look by look."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manapy.trace.live.standing import StandingVerdicts
from manapy.trace.model.verdict import PARKED, SPEED, Cause, State, Verdict

HEALTHY = Verdict(State.HEALTHY, "healthy")
ASLEEP = Verdict(State.HUNG, "rank 1 is stuck", Cause.COMPUTE, 1, call="MPI_Barrier", since_ns=5, confidence=0.95)
LATE = replace(ASLEEP, state=State.LATE, sentence="rank 1 is late")
KNOT = Verdict(State.HUNG, "deadlock", Cause.DEADLOCK, since_ns=5, confidence=0.98)
SLOW = Verdict(State.SLOW, "rank 1 is slow", Cause.COMPUTE, 1, confidence=0.8)


def acted(standing: StandingVerdicts, *looks: tuple[float, Verdict]) -> list[float]:
    """Return the moments at which the watch acted."""
    return [moment for moment, verdict in looks if standing.look([verdict], moment).act]


@pytest.mark.parametrize(
    ("verdict", "at"),
    [
        (ASLEEP, [300.0]),
        (LATE, [300.0]),
        (KNOT, [2.0]),
        (replace(KNOT, cause=Cause.STOPPED, rank=2), [2.0]),
        (replace(KNOT, confidence=0.7), []),
        (SLOW, [0.0]),
    ],
)
def test_nothing_is_acted_on_before_it_is_sure_and_has_stood(verdict: Verdict, at: list[float]) -> None:
    assert (
        acted(StandingVerdicts(300.0), *((float(moment), verdict) for moment in (*range(10), 299, 300, 301, 302))) == at
    )


def test_three_looks_in_a_row_whatever_the_patience() -> None:
    standing = StandingVerdicts(0.0)
    looks = [
        ASLEEP,
        ASLEEP,
        HEALTHY,
        ASLEEP,
        replace(ASLEEP, since_ns=10**9),
        replace(ASLEEP, since_ns=10**9),
        replace(ASLEEP, since_ns=10**9),
    ]
    assert acted(standing, *enumerate(looks)) == [6]  # type: ignore[arg-type]


def test_a_job_of_which_only_the_speed_is_unknown_goes_on() -> None:
    standing = StandingVerdicts(0.0)
    standing.look([KNOT], 0.0)
    assert [verdict for verdict, _ in standing.stands] == [KNOT]
    assert standing.look([Verdict(State.UNKNOWN, "?", detail=SPEED)], 1.0).back == ((KNOT, 1.0),)
    assert standing.worst is State.HEALTHY and not standing.stands


def test_who_cannot_tell_neither_takes_back_nor_counts() -> None:
    standing = StandingVerdicts(0.0)
    standing.look([KNOT], 0.0)
    for blind in (Verdict(State.UNKNOWN, "?"), replace(HEALTHY, detail=PARKED)):
        news = standing.look([blind], 1.0)
        assert not (news.new or news.back or news.act) and standing.worst is State.HUNG
    assert not standing.look([KNOT], 2.0).act and standing.look([KNOT], 3.0).act


def test_what_was_wrong_is_taken_back_and_said_again_if_it_comes_again() -> None:
    standing = StandingVerdicts(300.0)
    assert standing.look([LATE], 0.0).new == (LATE,) and not standing.look([LATE], 1.0).new
    assert standing.worst is State.LATE
    assert standing.look([HEALTHY], 4.0).back == ((LATE, 4.0),) and standing.worst is State.HEALTHY
    assert not standing.look([HEALTHY], 5.0).back
    assert standing.look([LATE], 6.0).new == (LATE,)


def test_a_rank_that_is_late_and_then_asleep_or_dead_is_not_taken_back() -> None:
    standing = StandingVerdicts(300.0)
    standing.look([LATE], 0.0)
    news = standing.look([ASLEEP], 1.0)
    assert news.new == (ASLEEP,) and not news.back
    dead = Verdict(State.HUNG, "rank 1 is dead", Cause.DEAD, 1)
    news = standing.look([dead], 2.0, last=True)
    assert not news.back and news.act == (dead,) and standing.worst is State.HUNG


def test_slow_is_said_once_and_stays_true() -> None:
    standing = StandingVerdicts(300.0)
    assert standing.look([SLOW], 0.0).act == (SLOW,)
    for moment in (1.0, 50.0, 100.0):
        assert standing.look([SLOW], moment).new == ()
    news = standing.look([HEALTHY], 101.0)
    assert not news.back and standing.worst is State.SLOW


def test_a_slow_job_is_acted_on_while_it_lasts() -> None:
    """Only if the watch is sure, and the fault costs a tenth of the time."""
    lasts = replace(SLOW, confidence=0.95, share=0.1)
    for verdict, expected in (
        (lasts, [10.0, 11.0, 12.0]),
        (replace(lasts, share=0.09), []),
        (replace(lasts, share=None), []),
        (replace(lasts, confidence=0.8), []),
    ):
        standing = StandingVerdicts(10.0)
        moments = [float(moment) for moment in range(13)]
        assert [moment for moment in moments if standing.look([verdict], moment).lasting == (verdict,)] == expected
    standing = StandingVerdicts(0.0)
    looks = [lasts, lasts, lasts, HEALTHY, lasts, lasts, lasts]
    found = [
        (bool(standing.look([verdict], float(moment)).lasting), standing.suspects)
        for moment, verdict in enumerate(looks)
    ]
    new, sure, well = (False, True), (True, False), (False, False)
    assert found == [new, new, sure, well, new, new, sure]
