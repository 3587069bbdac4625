"""Intervals of few and of many samples in the tables of `manapy bench`."""

from __future__ import annotations

import pytest
from manapy.bench.shared import report
from manapy.bench.shared.samples import CLOCK, NATIVE, Row, estimate


def row(rounds: int) -> Row:
    native = {n: 10.0 for n in range(rounds)}
    return Row("calls", f"{rounds} rounds", "ns", samples={NATIVE: native, CLOCK: {n: 11.0 + n for n in range(rounds)}})


@pytest.mark.parametrize(
    ("rounds", "how", "difference", "ratio"),
    [(1, "", "+1.0 ns", "1.10"), (3, " (min to max)", "+2.0 (+1.0 to +3.0) ns", "1.20 (1.10 to 1.30)")],
)
def test_few_samples_have_no_interval(rounds: int, how: str, difference: str, ratio: str) -> None:
    rows = [row(rounds)]
    assert report.columns(rows)[3:5] == [f"cc − native{how}", f"cc : native{how}"]
    assert report.lines(rows)[0][3:5] == [difference, ratio]


def test_six_samples_have_one() -> None:
    assert report.columns([row(6)])[3] == "cc − native [95 %]"
    cell = report.lines([row(6)])[0][3]
    assert cell.startswith("+3.5 [+") and "to" not in cell
    assert report.columns([row(6), row(3)])[3] == "cc − native [95 %] or (min to max)"


def test_a_range_holds_all_of_few_samples() -> None:
    found = estimate([3.0, 1.0, 2.0, 9.0, 2.5])
    assert found and (found.low, found.median, found.high, found.count) == (1.0, 2.5, 9.0, 5)
    assert estimate([]) is None
