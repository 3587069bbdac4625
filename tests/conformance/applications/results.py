"""A result: what a program has computed, and how well two results agree."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class ResultError(Exception):
    """The output of a program has no result."""


@dataclass(frozen=True)
class Result:
    """What a run has computed.

    numbers: agree within a tolerance. texts: are equal in all correct runs, for example "PASSED". digests: of files
    and blocks of text with many numbers; they tell only whether two results are equal bit for bit.
    """

    numbers: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)


class Agreement(enum.StrEnum):
    """How well two results agree."""

    EXACT = "bit for bit"
    WITHIN = "within the tolerance"
    DIFFERENT = "different"


def compare(expected: Result, found: Result, tolerance: float) -> tuple[Agreement, str]:
    """How well a result agrees with the expected one, and the largest deviation or the reason.

    tolerance: relative, and absolute for numbers below 1.
    """
    if expected == found:
        return Agreement.EXACT, ""
    for kind in ("numbers", "texts", "digests"):
        names, others = getattr(expected, kind).keys(), getattr(found, kind).keys()
        if names != others:
            return Agreement.DIFFERENT, f"{', '.join(sorted(names ^ others))} in one of them only"
    for name, text in expected.texts.items():
        if found.texts[name] != text:
            return Agreement.DIFFERENT, f"{name}: {found.texts[name]!r}, not {text!r}"
    worst, where = 0.0, ""
    for name, number in expected.numbers.items():
        deviation = abs(found.numbers[name] - number) / max(1.0, abs(number))
        if not deviation <= worst:  # also for NaN
            worst, where = deviation, f"{name}: {found.numbers[name]!r}, not {number!r}"
    if not worst <= tolerance:
        return Agreement.DIFFERENT, where
    return Agreement.WITHIN, f"{worst:.0e}" if worst else "equal as printed"
