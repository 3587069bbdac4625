"""What has been copied of one trace file: the records of its rings, its side table and its clock samples.

How a ring is read while its thread writes: lowerhalf/include/manapy/trace.h, invariant 3. Invariants: 1 and 2 of
rings.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..model.events import Communicator, Flag
from . import clocks, format, tsc_clock
from .tracefile import TraceFile

KEEP = 1 << 20  # number of records of a ring that are kept at least
FEWEST = 1 << 10  # records of each thread that are kept, however many there are in the job

_Read = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass
class Ring:
    """What was copied of one ring.

    keep: the newest so many records are never dropped.
    next: the next seq to read; 0: not begun.
    lost: number of lost records.
    whole_from: nothing is lost from this seq on.
    kept, count: the first `count` of `kept` are the copied records, in order of seq.
    open: indices into `kept` of calls that had not returned.
    """

    capacity: int
    keep: int = KEEP
    next: int = 0
    lost: int = 0
    whole_from: int = 1
    kept: np.ndarray = field(default_factory=lambda: np.empty(0, format.RECORD))
    count: int = 0
    open: list[int] = field(default_factory=list)

    def poll(self, head: format.RingStruct, read: _Read) -> None:
        """Copy what is new, and read open calls again. read: reads records by their seqs, and tells which are good."""
        if not head.first:
            return
        if not self.next:
            self.next = self.whole_from = int(head.first)
        newest = int(head.head)
        self._look_again(read, newest)
        oldest = max(self.next, newest - min(self.capacity, self.keep) + 1)
        if oldest > self.next:
            self.lost += oldest - self.next
            self.whole_from = oldest
        if newest >= oldest:
            self._take(read, oldest, newest)
        self.next = max(self.next, newest + 1)

    def _take(self, read: _Read, oldest: int, newest: int) -> None:
        seqs = np.arange(oldest, newest + 1, dtype=np.uint64)
        records, good = read(seqs)
        if not good.all():
            self.lost += int((~good).sum())
            self.whole_from = int(seqs[~good][-1]) + 1
            records = records[good]
        if self.count > 2 * self.keep:
            self._forget(self.count - self.keep)
        if self.count + len(records) > len(self.kept):
            self.kept = np.concatenate((self.all(), np.empty(max(1024, self.count + len(records)), format.RECORD)))
        self.kept[self.count : self.count + len(records)] = records
        self.open += (np.flatnonzero(records["exit"] == 0) + self.count).tolist()
        self.count += len(records)

    def _forget(self, oldest: int) -> None:
        """Drop so many of the oldest records."""
        self.kept, self.count = self.kept[oldest:].copy(), self.count - oldest
        self.open = [i - oldest for i in self.open if i >= oldest]
        self.lost += oldest
        self.whole_from = max(self.whole_from, int(self.kept["seq"][0]))

    def _look_again(self, read: _Read, newest: int) -> None:
        still = []
        for i in self.open:
            fresh, good = read(self.kept["seq"][i : i + 1])
            if good[0]:
                self.kept[i] = fresh[0]
                if fresh["exit"][0] == 0:
                    still.append(i)
            elif newest >= int(self.kept["seq"][i]) + self.capacity:
                # The call has returned: its thread has since overwritten the record.
                self.kept["exit"][i] = self.kept["enter"][i]
                self.kept["flags"][i] |= np.uint16(Flag.STOPPED)
            else:
                still.append(i)
        self.open = still

    def all(self) -> np.ndarray:
        """Return all records that are kept, as a view."""
        return self.kept[: self.count]


class Device(Communicator):
    """An entry of the side table that is not a communicator but names an RDMA device."""


class RingFile(TraceFile):
    """The part of a trace file that was read so far."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.rings = [Ring(self.capacity) for _ in range(self.head.rings_capacity)]
        self._sampled: clocks.Sample | None = None  # the clocks at the last look

    def poll(self, keep: int, share: int) -> None:
        """Copy what is new in all rings. keep: number of records that are kept of each ring; share: of all together.

        A recorder takes samples of the clocks rarely, or only at its start, and NTP changes their rate all the time. So
        this host's clocks are read for a process that runs here.
        """
        if self.alive:
            self._sampled = tsc_clock.now()
        used = min(self.head.rings, len(self.rings))
        for i in range(used):
            self.rings[i].keep = min(keep, max(share // used, FEWEST))
            self.rings[i].poll(self.ring(i), functools.partial(self.records, i))

    def comms(self) -> list[Communicator]:
        """Return the side table. A device of a producer of RDMA records has a name and no members."""
        head = self.head
        found = []
        for i in range(min(head.comms, head.comms_capacity)):
            entry = format.CommStruct.from_buffer_copy(self.bytes(head.comms_offset + i * 64, 64))
            kind = Communicator if entry.members else Device
            found.append(kind(entry.cid, entry.ggid, self._members(head, entry), format.text(entry.name), entry.remote))
        return found

    def _members(self, head: format.FileStruct, entry: format.CommStruct) -> np.ndarray:
        if entry.members > 2 * head.size:  # a communicator has two groups at most
            return np.empty(0, np.int32)
        if entry.stride:
            return (entry.first + np.arange(entry.members, dtype=np.int64) * entry.stride).astype(np.int32)
        if entry.place + entry.members > head.members_capacity:
            return np.empty(0, np.int32)
        return np.frombuffer(self.bytes(head.members_offset + entry.place * 4, entry.members * 4), np.int32)

    def samples(self) -> list[clocks.Sample]:
        """Return the newest clock samples, and that of the last look."""
        head = self.head
        found = [
            clocks.Sample(s.ticks, s.realtime, s.monotonic) for s in head.sample[: min(head.samples, format.SAMPLES)]
        ]
        if self._sampled is None or len(found) < 2:
            return found
        line = clocks.Line(self.host, [], (head.ticks_per_second or clocks.SECOND) / clocks.SECOND)
        line.add(found)
        # Another machine of the same name may have written the file (a shared folder). One sample would fit to any.
        return [*found, self._sampled] if line.fits([self._sampled]) else found
