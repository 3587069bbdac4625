"""The results of a run of the benchmarks: lines for a table, and a file with every sample."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...core.units import first_and_more
from .samples import CLOCK, FCDP, FEWEST, MANAPY, NATIVE, RECORDED, SHIFT, TWO_PHASE, UNTRACED, Estimate, Row

SPREAD = "quartiles apart"  # if there is nothing to compare with
FORMAT = 2  # 1: with one baseline and one manapy variant


def columns(rows: Sequence[Row]) -> list[str]:
    """Head of the table of one job; two-phase commit has columns only if it was measured."""
    if methods := _methods(rows):
        return ["", *methods, "goal"]
    ours = _ours(rows)
    how = _interval(rows)
    two_phase = ["2pc", f"2pc : native{how}"] if _measured(rows, TWO_PHASE) else []
    native = ["native", f"{ours} − native{how}", f"{ours} : native{how}"] if _measured(rows, NATIVE) else []
    spread = [] if native or ours != SHIFT else [SPREAD]
    untraced = ["without recording", f"without : native{how}"] if _measured(rows, UNTRACED) else []
    both = 2 if native else 1
    return ["", *native[:1], *two_phase[:both], ours, *spread, *native[1:], *untraced[:both], "goal"]


def lines(rows: Sequence[Row]) -> list[list[str]]:
    """Cells for `columns`."""
    if methods := _methods(rows):
        return [[row.name, *(_compared(row, method) for method in methods), row.goal] for row in rows]
    ours = _ours(rows)
    two_phase, native, untraced = (_measured(rows, variant) for variant in (TWO_PHASE, NATIVE, UNTRACED))
    result = []
    for row in rows:
        cells = [row.name]
        if native:
            cells.append(
                _value(row, NATIVE)
                + (f" ({row.baseline})" if row.baseline != NATIVE and row.samples.get(NATIVE) else "")
            )
        if two_phase:
            cells.append(_value(row, TWO_PHASE))
            if native:
                cells.append(_ratio(row, TWO_PHASE))
        cells.append(_value(row, ours))
        if not native and ours == SHIFT:
            cells.append(_spread(row, ours))
        if native:
            cells += [_difference(row, ours), _ratio(row, ours)]
        if untraced:
            cells.append(_value(row, UNTRACED))
            if native:
                cells.append(_ratio(row, UNTRACED))
        result.append([*cells, row.goal])
    return result


def record(
    rows: Sequence[Row],
    left_out: dict[str, str],
    seconds: dict[str, float],
    facts: dict[str, str],
    setting: dict[str, Any],
) -> dict[str, Any]:
    """The whole result, as JSON. seconds: duration of each job. The samples of a variant are a list with one entry per
    round, null if a run failed."""
    return {
        "format": FORMAT,
        "time": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": facts,
        "setting": setting,
        "left out": left_out,
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "rows": [_row(row) for row in rows],
    }


def write(where: Path, result: dict[str, Any]) -> Path:
    """Write result.json into the directory."""
    path = where / "result.json"
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    return path


def failures(rows: Sequence[Row]) -> list[str]:
    """One line for each failure, with the rows that are missing because of it."""
    affected: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        for variant, why in row.failures.items():
            affected.setdefault((row.job, variant, why), []).append(row.name)
    return [
        f"{job}: {variant}: {why} ({first_and_more(names, what='rows')})"
        for (job, variant, why), names in affected.items()
    ]


def _row(row: Row) -> dict[str, Any]:
    variants = list(row.samples)
    rounds = range(1 + max((number for samples in row.samples.values() for number in samples), default=-1))
    compared = [variant for variant in variants if variant != NATIVE and NATIVE in row.samples]
    return {
        "job": row.job,
        "name": row.name,
        "unit": row.unit,
        "baseline": row.baseline,
        "goal": row.goal,
        "samples": {variant: [row.samples[variant].get(number) for number in rounds] for variant in variants},
        "difference": {variant: _plain(row.difference(variant)) for variant in compared},
        "ratio": {variant: _plain(row.ratio(variant)) for variant in compared if row.unit != "%"},
        "failures": row.failures,
    }


def _methods(rows: Sequence[Row]) -> list[str]:
    """The variants in the columns, if methods or strategies are compared; otherwise empty."""
    found = list(dict.fromkeys(variant for row in rows for variant in (*row.samples, *row.failures)))
    return found if MANAPY in found or FCDP in found else []


def _ours(rows: Sequence[Row]) -> str:
    return next((variant for variant in (SHIFT, RECORDED) if _measured(rows, variant)), CLOCK)


def _measured(rows: Sequence[Row], variant: str) -> bool:
    return any(variant in row.samples or variant in row.failures for row in rows)


def _interval(rows: Sequence[Row]) -> str:
    """What stands behind the medians of a table: [the 95 % interval], or (the least to the greatest) of few samples."""
    counts = [len(samples) for row in rows for samples in row.samples.values() if len(samples) > 1]
    kinds = ["[95 %]"] * any(count >= FEWEST for count in counts)
    kinds += ["(min to max)"] * any(count < FEWEST for count in counts)
    return f" {' or '.join(kinds)}" if kinds else ""


def _around(e: Estimate, text: Callable[[float], str]) -> str:
    """The interval or the range, with a blank before it; nothing for a single sample."""
    if e.count == 1:
        return ""
    low, high = text(e.low), text(e.high)
    return f" ({low} to {high})" if e.count < FEWEST else f" [{low}, {high}]"


def _value(row: Row, variant: str) -> str:
    if variant in row.failures:
        return "failed"
    value = row.value(variant)
    return "" if value is None else number(value.median, row.unit)


def _compared(row: Row, method: str) -> str:
    """A method's value. A ratio also has its interval."""
    e = row.value(method) if row.unit == "×" else None
    return _value(row, method) + (_around(e, "{:.2f}".format) if e else "")


def _spread(row: Row, variant: str) -> str:
    e = row.value(variant)
    return "" if e is None or len(row.samples[variant]) < 2 else number(e.iqr, row.unit)


def _difference(row: Row, variant: str) -> str:
    e = row.difference(variant)
    if e is None:
        return ""
    scale, digits, unit = _shape(e.median, row.unit)

    def text(value: float) -> str:
        return f"{value * scale:+.{digits}f}"

    return f"{text(e.median)}{_around(e, text)} {unit}"


def _ratio(row: Row, variant: str) -> str:
    e = None if row.unit == "%" else row.ratio(variant)
    digits = 4 if variant == RECORDED else 2  # recorders should cost at most 0.2 %
    text = f"{{:.{digits}f}}".format
    return "" if e is None else text(e.median) + _around(e, text)


def number(value: float, unit: str) -> str:
    """Return a value as text, with as many digits as are meaningful."""
    scale, digits, unit = _shape(value, unit)
    return f"{value * scale:.{digits}f} {unit}".rstrip()


def _shape(value: float, unit: str) -> tuple[float, int, str]:
    """Factor, digits after the point, and unit with which a value is shown."""
    if unit == "ns" and abs(value) >= 10_000:
        return 1e-3, 1, "µs"
    if not unit and float(value).is_integer():
        return 1.0, 0, unit
    return (
        1.0,
        {
            "s": 3,
            "ms": 2,
            "µs": 2,
            "W": 3,
            "×": 3,
            "GiB": 2,
            "GB/s": 2,
            "MB": 1 if abs(value) >= 1 else 4,
            "/s": 0 if abs(value) >= 100 else 1,
        }.get(unit, 1),
        unit,
    )


def _plain(e: Estimate | None) -> dict[str, float] | None:
    return None if e is None else dataclasses.asdict(e)
