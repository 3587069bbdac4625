"""Usual durations in this job, from its trace: a rank's time outside MPI after a certain call, and a call's transfer.

A wait is suspicious if it is longer than twice the expected time (the MegaTrace paper's n = 100 %), and never below
FLOOR. The expected time is the longest at the same place, not the median: a loop that writes a file every thousandth
round is no fault each time. Samples before a change of level are dropped: if the median of the last samples is a
quarter of the median before, or four times as large, the program now does something else. Rings overwrite old samples.
So a watch keeps in a Memory how long ranks were late that went on in the end.

For a place that was never seen, the longest time seen anywhere counts, and at least FIRST.

A transfer is not suspicious before its bytes could have passed a network of SLOWEST bytes per second.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..model.events import OPEN, Flag, Trace
from ..model.match import Matching

FACTOR = 2.0
FLOOR = 500_000_000  # ns
FIRST = 5_000_000_000  # ns; for a place that was seen fewer than FEW times
FEW = 3
SLOWEST = 50e6  # bytes per second
_LEVEL = 64  # number of samples by which a level is judged
_CHANGE = 4.0


def recent(samples: np.ndarray) -> np.ndarray:
    """Return the newest samples, from the last change of level on. samples: in order of time."""
    while len(samples) >= 2 * _LEVEL:
        before, after = np.median(samples[:-_LEVEL]), np.median(samples[-_LEVEL:])
        if max(before, 1) < _CHANGE * max(after, 1) and max(after, 1) < _CHANGE * max(before, 1):
            break
        samples = samples[len(samples) // 2 :] if len(samples) > 2 * _LEVEL else samples[-_LEVEL:]
    return samples


Place = tuple[int, ...]  # a place in the program: rank, and the call's kind, communicator (cid), peer and tag


@dataclass
class Memory:
    """For a job that is looked at repeatedly: how long ranks were outside MPI while others waited for them.

    longest: the longest such time of ranks that went on in the end, ns, by place.
    away: for each rank that had not gone on at the last look, the thread and seq of the call before, and the place.
    """

    longest: dict[Place, int] = field(default_factory=dict)
    away: dict[int, tuple[int, int, Place]] = field(default_factory=dict)

    def learn(self, trace: Trace) -> None:
        """Record the times of ranks that have gone on since the last look."""
        ranks = np.array(list(self.away), np.int64)
        firsts, lasts = (np.searchsorted(trace.events["rank"], ranks, side) for side in ("left", "right"))
        for (rank, (thread, seq, place)), first, last in zip(list(self.away.items()), firsts, lasts, strict=True):
            mine = trace.events[first:last]
            mine = mine[(mine["thread"] == thread) & (mine["seq"] >= seq)]
            if len(mine) < 2:
                continue
            if (
                mine["seq"][0] == seq
                and mine["seq"][1] == seq + 1
                and mine["exit"][0] != OPEN
                and not (mine["flags"][:2] & Flag.STOPPED).any()
            ):
                self.longest[place] = max(self.longest.get(place, 0), int(mine["enter"][1] - mine["exit"][0]))
            del self.away[rank]


class Expected:
    """The expected times, and the times from which on something takes too long, ns."""

    def __init__(self, trace: Trace, matching: Matching, memory: Memory | None = None) -> None:
        self._trace, self._matching = trace, matching
        self._memory = memory if memory is not None else Memory()
        self._memory.learn(trace)
        events = trace.events
        same = (
            (events["rank"][1:] == events["rank"][:-1])
            & (events["thread"][1:] == events["thread"][:-1])
            & (events["generation"][1:] == events["generation"][:-1])
        )
        usable = (
            same & (events["exit"][:-1] != OPEN) & ((events["flags"][:-1] | events["flags"][1:]) & Flag.STOPPED == 0)
        )
        usable &= events["seq"][1:] == events["seq"][:-1] + 1
        self._before = np.flatnonzero(usable)  # for each time outside MPI, the call before it
        gaps = events["enter"][self._before + 1] - events["exit"][self._before]
        self._gaps = np.maximum(gaps, 0)
        self._longest = int(self._gaps.max(initial=0))
        self._alike: dict[tuple[int, int], np.ndarray] = {}  # recent gaps of all ranks, by kind and communicator

    def outside(self, event: int) -> tuple[int, int]:
        """Return the median time of a rank outside MPI after this call has returned, and the time from which on it is
        too long, ns. The median is 0 if it is unknown."""
        events, row = self._trace.events, self._trace.events[event]
        first, last = np.searchsorted(self._before, self._matching.of_rank(int(row["rank"])))
        before, gaps = self._before[first:last], self._gaps[first:last]
        mine = (events["op"][before] == row["op"]) & (events["comm"][before] == row["comm"])
        here = mine & (events["peer"][before] == row["peer"]) & (events["tag"][before] == row["tag"])
        known = self._limit(self._memory.longest.get(self._place(event), 0))
        samples = recent(gaps[here])
        if len(samples) < FEW:
            samples = recent(gaps[mine])
        if len(samples) < FEW:
            samples = self._of_all(int(row["op"]), int(row["comm"]))
        if len(samples) >= FEW:
            return int(np.median(samples)), max(known, self._limit(int(samples.max())))
        return 0, max(FIRST, known, self._limit(self._longest))

    def _of_all(self, op: int, comm: int) -> np.ndarray:
        """Return the recent times outside MPI of all ranks after such calls. All records are looked at once."""
        if (op, comm) not in self._alike:
            events, before = self._trace.events, self._before
            alike = (events["op"][before] == op) & (events["comm"][before] == comm)
            self._alike[op, comm] = recent(self._gaps[alike])
        return self._alike[op, comm]

    def awaited(self, event: int) -> None:
        """Remember that others wait for the rank that is outside MPI since this call. The next looks measure how long
        that takes."""
        row = self._trace.events[event]
        self._memory.away[int(row["rank"])] = int(row["thread"]), int(row["seq"]), self._place(event)

    def _place(self, event: int) -> Place:
        """Return the place of a call in the program."""
        row, comms = self._trace.events[event], self._trace.comms
        comm = int(row["comm"])
        return (
            int(row["rank"]),
            int(row["op"]),
            comms[comm].cid if 0 <= comm < len(comms) else comm,
            int(row["peer"]),
            int(row["tag"]),
        )

    def transfer(self, event: int) -> tuple[int, int]:
        """Return the median duration of a transfer, and the time from which on it is too long, ns. For a collective it
        counts from its last arrival, for a message from both sides' posts. The median is 0 if it is unknown."""
        events, matching = self._trace.events, self._matching
        groups = matching.collectives
        if groups.of[event] >= 0:
            alike = np.flatnonzero(
                (groups.of >= 0) & (matching.op == matching.op[event]) & (matching.comm == matching.comm[event])
            )
            alike = alike[(matching.done[alike] >= 0) & (groups.missing[groups.of[alike]] == 0)]
            arrival = events["enter"][groups.last[groups.of[alike]]]
        else:
            op, comm = matching.op[event], matching.comm[event]
            alike = np.flatnonzero(
                (matching.op == op)
                & (matching.comm == comm)
                & (matching.partner >= 0)
                & (matching.done >= 0)
                & matching.sure
            )
            arrival = np.maximum(events["enter"][alike], events["enter"][matching.partner[alike]])
        done = matching.done[alike]
        samples = recent(np.maximum(events["exit"][done] - np.maximum(arrival, events["enter"][done]), 0))
        least = int(events["bytes"][event] / SLOWEST * 1e9)
        if len(samples) >= FEW:
            return int(np.median(samples)), max(self._limit(int(samples.max())), least)
        return 0, max(FIRST, least)

    @staticmethod
    def _limit(longest: int) -> int:
        """Return the time from which on something takes too long, ns."""
        return max(FLOOR, int(FACTOR * longest))
