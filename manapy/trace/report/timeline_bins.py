"""The marks by which a timeline draws the calls of a trace, however many they are.

Each long call is a mark. Short calls share a mark with their neighbours in the same stretch of time, `grain` long; it
has their sums. The grain is as short as the allowed number of marks permits; 0 if every call is a mark.

Invariants
 1. Of the lanes that are drawn nothing is left out: calls, time in MPI and waiting of a lane's marks add up to those of
    its calls.
 2. A call that has not returned, or is no shorter than the grain, is a mark of its own.
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
    """lanes: (rank, thread) of each row; left_out: how many more there are. grain: ns. The others have one entry for
    each mark, by lane and time:

    lane. begin, end: ns on the job's clock, of an open call `now`. inside: ns of it in MPI. waited: of those, for other
    ranks. calls: how many. event: the record of the longest of them.
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
    """At most `limit` marks (at least four for each lane) in at most so many lanes: those of the ranks named, and
    others evenly from all."""
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
        """Of each mark its first call."""
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
    """Which lanes, given the rank of each."""
    if len(ranks) <= limit:
        return np.arange(len(ranks))
    wanted = np.flatnonzero(np.isin(ranks, named))[:limit]
    others = np.setdiff1d(np.arange(len(ranks)), wanted)
    return np.union1d(wanted, others[np.linspace(0, len(others) - 1, limit - len(wanted)).astype(int)])
