"""The marks with which a timeline draws the calls of a trace, however many calls there are.

Each long call is a mark. Short calls share a mark with their neighbours in the same stretch of time, `grain` long. The
mark has their sums. The grain is as short as the allowed number of marks permits; 0 if every call is a mark.

Invariants
 1. Nothing is left out of the lanes that are drawn: calls, time in MPI and waiting of a lane's marks add up to those of
    its calls.
 2. A call that has not returned, or is no shorter than the grain, has its own mark.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..model.events import OPEN, Op, Trace
from ..model.waits import Waits, first_largest, one_per_call

NOT_CALLS = (Op.NONE, Op.MARK)


@dataclass(frozen=True)
class Marks:
    """The marks of a timeline.

    lanes: (rank, thread) of each row.
    left_out: number of lanes that are not drawn.
    grain: ns.

    Arrays with one entry per mark, by lane and time:

    lane: index in `lanes`.
    begin, end: ns on the job's clock; the end of an open call is `now`.
    inside: time in MPI, ns.
    waited: time of this that was spent waiting for other ranks, ns.
    calls: number of calls.
    event: the record of the longest call.
    """

    lanes: list[tuple[int, int]]
    left_out: int
    grain: int
    lane: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    inside: np.ndarray
    waited: np.ndarray
    calls: np.ndarray
    event: np.ndarray


def marks(trace: Trace, waits: Waits, limit: int, lanes: int, named: Iterable[int] = ()) -> Marks:
    """Return at most `limit` marks (at least four for each lane) in at most `lanes` lanes: those of the named ranks,
    and others, chosen evenly from all."""
    events = trace.events
    calls = one_per_call(trace, waits)
    calls = calls[~np.isin(events["op"][calls], NOT_CALLS)]
    keys, lane = np.unique(events["rank"][calls].astype(np.int64) << 16 | events["thread"][calls], return_inverse=True)
    lane = lane.reshape(-1)
    shown = _shown(keys >> 16, lanes, list(named))
    row = np.full(len(keys), -1)
    row[shown] = np.arange(len(shown))
    calls, lane = calls[row[lane] >= 0], row[lane][row[lane] >= 0]

    begin = events["enter"][calls]
    is_open = events["exit"][calls] == OPEN
    end = np.where(is_open, np.maximum(trace.now, begin), events["exit"][calls])
    length = end - begin
    since = begin - begin.min(initial=trace.now)

    def firsts(grain: int) -> np.ndarray:
        """Return the first call of each mark."""
        alone = is_open | (length >= grain)
        stretch = since // max(grain, 1)
        new = np.ones(len(calls), bool)
        new[1:] = (lane[1:] != lane[:-1]) | (stretch[1:] != stretch[:-1]) | alone[1:] | alone[:-1]
        return np.flatnonzero(new)

    grain, first = 0, firsts(0)
    if len(first) > (limit := max(limit, 4 * len(shown))):
        power = bisect.bisect_left(range(3, 62), True, key=lambda power: len(firsts(1 << power)) <= limit) + 3
        eighth = 1 << power - 3
        grain, first = next(
            (grain, few) for grain in range(5 * eighth, 9 * eighth, eighth) if len(few := firsts(grain)) <= limit
        )
    longest = first_largest(length, first)
    last = np.r_[first[1:], len(calls)] - 1 if len(first) else first

    def sums(values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, first) if len(first) else values[:0]

    return Marks(
        [(int(key) >> 16, int(key) & 0xFFFF) for key in keys[shown]], len(keys) - len(shown), grain,
        lane[first], begin[first], np.maximum(end[last], begin[first]), sums(length), sums(waits.wait[calls]),
        last - first + 1, calls[longest],
    )  # fmt: skip


def _shown(ranks: np.ndarray, limit: int, named: list[int]) -> np.ndarray:
    """Return which lanes are drawn. ranks: the rank of each lane."""
    if len(ranks) <= limit:
        return np.arange(len(ranks))
    wanted = np.flatnonzero(np.isin(ranks, named))[:limit]
    others = np.setdiff1d(np.arange(len(ranks)), wanted)
    return np.union1d(wanted, others[np.linspace(0, len(others) - 1, limit - len(wanted)).astype(int)])
