"""The new records of one trace file since the last look, for copies on disk (disk_copy.py) or on another host
(collect.py).

Invariants
 1. A record is returned when it is new, and again if it was open at the last look.
 2. `lost` counts records that were overwritten before they were read, or torn. They are never returned.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from . import format
from .tracefile import TraceFile


@dataclass
class _Ring:
    """next: the next seq to read; 0: not begun. open: seqs of calls that had not returned."""

    next: int = 0
    open: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64))


class Tail(TraceFile):
    """Reads the new records of a trace file. copied, lost: number of records so far."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.copied = self.lost = 0
        self._rings = [_Ring() for _ in range(self.head.rings_capacity)]

    def follow(self, path: Path) -> None:
        """Continue with the file that is now in the place of the same rank and generation."""
        if path != self.path:
            close = self._close
            super().__init__(path)
            close()

    def new(self, i: int, ring: format.RingStruct, keep: int) -> np.ndarray:
        """Return the new records (format.RECORD), at most the newest `keep`. ring: a copy of the ring's head; records
        after its head are not returned."""
        state = self._rings[i]
        newest = int(ring.head)
        first = state.next or int(ring.first)
        oldest = max(first, newest - min(self.capacity, keep) + 1)
        new = np.arange(oldest, newest + 1, dtype=np.uint64)
        seqs = np.concatenate((state.open[state.open + np.uint64(keep) > newest], new))
        records, good = self.records(i, seqs)
        state.open = seqs[good & (records["exit"] == 0)]
        fresh = good[len(seqs) - len(new) :]
        self.copied += int(fresh.sum())
        self.lost += oldest - first + int((~fresh).sum())
        state.next = newest + 1
        return records[good]

    def entered(self, head: format.FileStruct, sent: list[int]) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, bytes) of the new entries in the tables of communicators and of members. sent: the number of
        entries of each table that were sent before; it is updated."""
        comms = head.comms_offset, head.comms, ctypes.sizeof(format.CommStruct)
        members = head.members_offset, head.members, ctypes.sizeof(ctypes.c_int32)
        for table, (offset, count, each) in enumerate((comms, members)):
            if count > sent[table]:
                start = offset + sent[table] * each
                yield start, self.bytes(start, (count - sent[table]) * each)
                sent[table] = count


def runs(records: np.ndarray, capacity: int, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) for records that lie side by side in their ring. start: the offset of the ring's first
    record."""
    places = (records["seq"].astype(np.int64) - 1) % capacity
    for run in np.split(np.arange(len(records)), np.flatnonzero(np.diff(places) != 1) + 1):
        if len(run):
            yield start + int(places[run[0]]) * records.itemsize, records[run].tobytes()
