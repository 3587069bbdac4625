"""When to take checkpoints: before the end of an allocation, and how often.

Pure functions; all times in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

MARGIN = 1.5  # a checkpoint may take so much longer than the slowest of the last three
SETTLE = 5.0  # seconds to stop the job and to request the next allocation
UNKNOWN_SHARE, UNKNOWN_MIN, UNKNOWN_MAX = 0.2, 15.0, 300.0  # lead before the first measurement
TRIAL_SHARE, TRIAL_MAX = 0.25, 600.0  # time of the first checkpoint of a chain, which measures its cost
ASSUMED_MTBF = 86400.0  # if the user names neither an interval nor a mean time between failures
ASSUMED_LEAST = 1800.0  # between two checkpoints then: manapy does not know for how many of them the disk has room
ON_TIME = 5.0  # an end that is so much before the deadline is not caused by the time limit
START = 10.0  # seconds until a program can be checkpointed at the earliest


def measured(checkpoints: Sequence[Mapping[str, Any]]) -> tuple[list[float], float | None]:
    """Times from the events of a chain's checkpoints: the seconds that each took, and the seconds of the last copy from
    local storage to the job directory. 0: no copies are made; None: no copy was complete then."""
    return [float(event["seconds"]) for event in checkpoints], (checkpoints[-1].get("flush", 0.0) if checkpoints else 0)


def lead(measured: Sequence[float], whole: float, margin: float = MARGIN, copy: float | None = 0.0) -> float:
    """How long before its end an allocation of length ``whole`` must be left, after checkpoints that took ``measured``.
    ``copy``: seconds for which the last one is copied before its ranks end; None: not known yet. Times that were not
    measured are estimated. If possible, half of the allocation remains for work.
    """
    if measured:
        takes = margin * (max(measured[-3:]) + (copy or 0.0))
        known = max(min(takes + SETTLE, whole / 2), takes)
        return known if copy is not None else max(known, lead((), whole))
    return min(max(UNKNOWN_SHARE * whole, UNKNOWN_MIN), UNKNOWN_MAX, whole / 2)


def trial(whole: float) -> float:
    """The time of the first checkpoint, which measures its cost, after the start of an allocation."""
    return min(TRIAL_SHARE * whole, TRIAL_MAX)


def shortest(estimate: float | None, margin: float = MARGIN) -> float:
    """The shortest allocation in which a program starts, works and is saved, if a checkpoint takes ``estimate``.

    It consists of the restart (which reads what a checkpoint writes), the same time for work, and the lead.
    """
    if estimate is None:
        return START + UNKNOWN_MIN
    return START + 2 * estimate + lead([estimate], math.inf, margin)


def young(cost: float, mtbf: float) -> float:
    """Young's interval between checkpoints: sqrt(2 C M) (J. W. Young, CACM 17(9), 1974)."""
    return math.sqrt(2 * cost * mtbf)


def daly(cost: float, mtbf: float) -> float:
    """Daly's interval: sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + (C / 2M) / 9) - C for C < 2M, else M (J. T. Daly, FGCS 22,
    2006, eq. 37)."""
    if cost >= 2 * mtbf:
        return mtbf
    x = cost / (2 * mtbf)
    return math.sqrt(2 * cost * mtbf) * (1 + math.sqrt(x) / 3 + x / 9) - cost
