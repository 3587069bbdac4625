"""Converts the times that an agent reports to the clock of the process to which it is connected, because the clocks of
hosts are not synchronised.

For each message that contains its sending time, arrival minus sending time is the difference of the two clocks plus the
travel time. The smallest of these sums is nearly the difference alone, because some messages travel fast. So losses on
several hosts can be ordered by when they were noticed, however late the messages about them arrive.

Invariants
 1. No converted time is later than the arrival of its message. Without earlier messages it is the time of arrival.
 2. Only messages of the last WINDOW count, because clocks drift apart.
"""

from __future__ import annotations

import time
from collections import deque

WINDOW = 60_000_000  # us
# Two losses on different hosts that are nearer than this (us) may have another order: 2 ms for a message that has
# travelled fast and a process that has waked late, and 3 ms for clocks that drift apart by 50 ppm during WINDOW.
UNSURE = 5000
TIMED = {"LOST": 1, "DONE": 2}  # lines of ranks that have a time as their last field, if they have so many


def now() -> int:
    """The time in us. Only processes of one host share this clock, and it is never set."""
    return time.monotonic_ns() // 1000


class PeerTime:
    """The clock of the process at the other end of a connection."""

    def __init__(self) -> None:
        # arrival, and arrival - time said; those that an equal or lesser difference follows are left out
        self._differences: deque[tuple[int, int]] = deque()

    def note(self, said: int) -> None:
        """A message has arrived that says a time."""
        arrival = now()
        difference = arrival - said
        while self._differences and self._differences[-1][1] >= difference:
            self._differences.pop()
        self._differences.append((arrival, difference))
        while self._differences[0][0] < arrival - WINDOW:
            self._differences.popleft()

    def here(self, said: int) -> int:
        """The time in a message that has arrived, converted to our clock."""
        self.note(said)
        return said + self._differences[0][1]

    def translate(self, line: str) -> str:
        """A line of ranks, with its time in our clock if it has one."""
        if not line.startswith(("LOST ", "DONE ")):  # lines can be long
            return line
        kind, *fields = line.split(" ")
        if len(fields) < TIMED[kind]:
            return line
        return " ".join([kind, *fields[:-1], str(self.here(int(fields[-1])))])
