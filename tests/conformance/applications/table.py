"""The table of what applications have shown, for a terminal and in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rich.table import Table

from .record import Record, Run
from .results import Agreement, compare

COLUMNS = (
    "program",
    "MPI, ranks",
    "native",
    "under manapy",
    "time, manapy : native",
    "checkpoint, SIGKILL, restart",
    "result",
)


@dataclass(frozen=True)
class Row:
    """One application. good: nothing is wrong."""

    cells: tuple[str, ...]
    good: bool


def rows(records: Iterable[Record], tolerances: Mapping[str, float]) -> list[Row]:
    """A row for each record."""
    return [row(record, tolerances.get(record.name, 0.0)) for record in records]


def row(record: Record, tolerance: float) -> Row:
    """The row of one application. A cause of a failure stands in the column of the run that has failed."""
    head = (record.name, f"{record.abi}, {record.ranks}")
    if record.missing:
        return Row((*head, f"not run: {record.missing}", "", "", "", ""), True)
    result, good = verdict(record, tolerance)
    ways = _seconds(record.native), _seconds(record.manapy)
    return Row((*head, *ways, ratio(record.ratios), _restarts(record), result), good)


def ratio(ratios: list[float]) -> str:
    """Median and spread: 1.02 (0.98 to 1.07; 3 pairs)."""
    if not ratios:
        return ""
    middle = f"{statistics.median(ratios):.2f}"
    return middle if len(ratios) == 1 else f"{middle} ({min(ratios):.2f} to {max(ratios):.2f}; {len(ratios)} pairs)"


def verdict(record: Record, tolerance: float) -> tuple[str, bool]:
    """How well the results agree, and whether that is right.

    A program whose native runs are equal bit for bit must give the same result in each run under manapy, too, and after
    a restart. MPICH may add up in another order than the program's own MPI, so between these the tolerance counts.
    """
    runs = [*record.manapy, *([record.restarted] if record.restarted else [])]
    if not record.manapy or any(run.result is None for run in runs):
        return "", False
    if any(run.result is None for run in record.native):
        here = _worst(runs[1:], runs[0], tolerance)
        return f"under manapy {here[0]}", here[0] is not Agreement.DIFFERENT
    own = _worst(record.native[1:], record.native[0], tolerance)
    across = _worst(record.manapy, record.native[0], tolerance)
    again = [*record.manapy[1:], *([record.restarted] if record.restarted else [])]
    here = _worst(again, record.manapy[0], tolerance)
    if Agreement.DIFFERENT in (across[0], here[0]):
        which = f"native: {across[1]}" if across[0] is Agreement.DIFFERENT else f"restarted: {here[1]}"
        return f"differs; {which}", False
    if across[0] is here[0] is Agreement.EXACT:
        return "equal bit for bit", True
    if here[0] is Agreement.EXACT:
        return f"restart bit for bit; native {_within(across[1], tolerance)}", True
    if own[0] is Agreement.EXACT and len(record.native) > 1:
        return f"differs; reproducible natively, here {here[1]}", False
    return f"{_within(max(across[1], here[1], key=len), tolerance)}; not reproducible natively", True


def _within(deviation: str, tolerance: float) -> str:
    return deviation if not deviation[:1].isdigit() else f"to {deviation} (tolerance {tolerance:.0e})"


def _worst(runs: Iterable[Run], expected: Run, tolerance: float) -> tuple[Agreement, str]:
    order = list(Agreement)
    found = [(Agreement.EXACT, "")]
    for run in runs:
        if run.result and expected.result:
            found.append(compare(expected.result, run.result, tolerance))
    return max(found, key=lambda one: order.index(one[0]))


def _seconds(runs: list[Run]) -> str:
    """The median time, or the cause of the first failure."""
    for run in runs:
        if run.result is None:
            return f"fails: {run.cause}"
    return f"{statistics.median(run.seconds for run in runs):.1f} s" if runs else ""


def _restarts(record: Record) -> str:
    if record.restarted is None:
        return ""
    under = [moment.under for moment in record.moments]
    counts = ", ".join(f"{under.count(name)} under {name}" for name in dict.fromkeys(under))
    if record.restarted.result is None:
        return f"fails after {len(under)} restarts: {record.restarted.cause}"
    return f"{len(under)}: {counts}"


def table(found: Iterable[Row]) -> Table:
    """The table for a terminal."""
    shown = Table(*COLUMNS)
    for one in found:
        shown.add_row(*one.cells, style=None if one.good else "red")
    return shown


def markdown(found: Iterable[Row]) -> str:
    """The table in Markdown."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for one in found:
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in one.cells)} |")
    return "\n".join(lines) + "\n"
