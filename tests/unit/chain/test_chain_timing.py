"""When checkpoints are taken, compared with the models from which the formulas come."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manapy.chain import timing

seconds = st.floats(0.01, 1e5)
measured = st.lists(seconds, min_size=1, max_size=8)


@given(measured, st.floats(1, 1e6), st.floats(1, 5))
def test_lead_is_longer_than_what_was_measured(measured: list[float], whole: float, margin: float) -> None:
    assert timing.lead(measured, whole, margin) >= margin * max(measured[-3:])
    assert timing.lead(measured, 1e9, margin) > margin * max(measured[-3:])


@given(measured, st.floats(1, 10), st.floats(1, 5))
def test_lead_grows_with_what_was_measured(measured: list[float], factor: float, margin: float) -> None:
    assert timing.lead([m * factor for m in measured], 100, margin) >= timing.lead(measured, 100, margin)
    assert timing.lead(measured, 100, margin + 1) >= timing.lead(measured, 100, margin)


@given(measured, seconds)
def test_only_the_last_three_count(measured: list[float], old: float) -> None:
    if len(measured) >= 3:
        assert timing.lead([old, *measured], 100) == timing.lead(measured, 100)


@given(measured, st.floats(0, 1e4), st.floats(1, 1e6))
def test_lead_holds_the_copy_to_the_job_directory(measured: list[float], copy: float, whole: float) -> None:
    assert timing.lead(measured, whole, copy=copy) >= timing.MARGIN * (max(measured[-3:]) + copy)
    unknown = timing.lead(measured, whole, copy=None)
    assert unknown >= timing.lead(measured, whole) and unknown >= timing.lead([], whole)


def test_what_a_history_says_of_copies() -> None:
    assert timing.measured([]) == ([], 0)
    assert timing.measured([{"seconds": 2, "flush": 9.0}, {"seconds": 3}]) == ([2.0, 3.0], 0)
    assert timing.measured([{"seconds": 2}, {"seconds": 3, "flush": None}]) == ([2.0, 3.0], None)


@given(st.floats(0.1, 1e7))
def test_unmeasured_lead_leaves_time_for_work(whole: float) -> None:
    assert 0 < timing.lead([], whole) <= min(whole / 2, timing.UNKNOWN_MAX)
    assert 0 < timing.trial(whole) <= whole - timing.lead([], whole), "the measurement comes before the end"


def expected_seconds(interval: float, cost: float, mtbf: float) -> float:
    """Daly's complete model (his eq. 20, without constant factors): failures are exponentially distributed, and
    checkpoints are a fixed amount of work apart."""
    return math.expm1((interval + cost) / mtbf) / interval


@pytest.mark.parametrize("mtbf", [60.0, 3600.0, 86400.0])
@pytest.mark.parametrize("part", [1e-4, 1e-3, 1e-2, 0.1, 0.5])
def test_daly_is_near_the_best(mtbf: float, part: float) -> None:
    cost = part * mtbf
    candidates = [mtbf * 10 ** (x / 500) for x in range(-2500, 800)]
    best = min(expected_seconds(t, cost, mtbf) for t in candidates if t < 50 * mtbf)
    assert expected_seconds(timing.daly(cost, mtbf), cost, mtbf) <= best * 1.002


@given(st.floats(0.001, 1e4), st.floats(1, 1e7))
def test_young_is_the_first_order(cost: float, mtbf: float) -> None:
    """Young's interval minimises the overhead cost/t + t/2M. For small costs it differs from Daly's by no more than the
    cost."""
    young = timing.young(cost, mtbf)
    overhead = [cost / t + t / (2 * mtbf) for t in (young / 1.01, young, young * 1.01)]
    assert overhead[1] == min(overhead)
    if cost < mtbf / 1000:
        assert young - cost <= timing.daly(cost, mtbf) <= young


def test_values() -> None:
    assert timing.young(5 * 60, 24 * 3600) == pytest.approx(120 * 60)
    assert timing.daly(5 * 60, 24 * 3600) == pytest.approx(60 * (120 * (1 + 1 / 72 + 1 / 5184) - 5))


@given(st.floats(0.1, 1e4), st.floats(2, 100))
def test_when_checkpoints_take_longer_than_two_failures(mtbf: float, factor: float) -> None:
    assert timing.daly(factor * mtbf, mtbf) == mtbf


@given(seconds)
def test_shortest_holds_start_restart_work_and_end(cost: float) -> None:
    shortest = timing.shortest(cost)
    assert shortest >= timing.START + 2 * cost + timing.lead([cost], math.inf)
    assert timing.shortest(cost, 3.0) > shortest
    assert timing.shortest(None) >= timing.START + timing.lead([], timing.shortest(None))
