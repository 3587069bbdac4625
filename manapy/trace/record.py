"""Keeping on disk what a running job records: rings as large as one wants them, in files of the same format (format.py), which everything reads that reads rings.

Invariants
 1. What rings take on disk never exceeds the limit (communicators come on top, 64 bytes each): each rank has its share of it, its rings are sized for that when its
    file is first seen, and overwrite their oldest records. Threads that a file has no ring for are counted in its `unrecorded`. Of a rank only the newest generation is kept.
 2. A place of a ring holds the record that belongs there, or another seq: then it reads as lost. A call that was open is looked at again until it has returned.
 3. `magic` is stored last, and `head` of a ring after its records: a copy that was cut short is sound as far as it goes.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from ..ckpt.errors import UsageError
from . import clocks, format
from .rings import Elsewhere, trace_files
from .tail import Tail, is_made

SMALLEST = 1024  # records of a ring
RINGS = 2  # threads that a rank has room for at least


class _Copy:
    """One rank's file, and its copy."""

    def __init__(self, source: Path, out: Path, limit: int) -> None:
        self.source = Tail(source)
        head = self.source.head
        self.rings = min(max(head.rings, RINGS), head.rings_capacity)
        self.capacity = _capacity(limit // head.size // self.rings)
        if self.capacity < SMALLEST:
            needed = head.size * self.rings * (format.PAGE + SMALLEST * format.RECORD.itemsize)
            raise UsageError(f"--limit is too small: {head.size} ranks need at least {-(-needed // 10**6)} MB")
        self.stride = format.PAGE + self.capacity * format.RECORD.itemsize
        self.path = out / source.name
        self.path.unlink(missing_ok=True)
        self.copy = np.memmap(self.path, np.uint8, "w+", shape=(head.rings_offset + self.rings * self.stride,))

    def poll(self) -> None:
        """Copy what is new."""
        head = self.source.head
        dropped = 0
        for i in range(head.rings):
            ring = self.source.ring(i)
            if i >= self.rings:
                dropped += ring.head
            elif ring.first:
                self._ring(i, ring, head)
        self._tables(head)
        head.capacity, head.ring_stride, head.rings_capacity = self.capacity, self.stride, self.rings
        head.rings = min(head.rings, self.rings)
        head.unrecorded += dropped
        self.copy[: ctypes.sizeof(head)] = np.frombuffer(bytes(head), np.uint8)

    def _ring(self, i: int, ring: format.RingStruct, head: format.FileStruct) -> None:
        start = head.rings_offset + i * self.stride
        records = self.source.new(i, ring, self.capacity)
        at = ((records["seq"] - np.uint64(1)) % np.uint64(self.capacity)).astype(np.int64)
        self.copy[start + format.PAGE : start + self.stride].view(format.RECORD)[at] = records
        self.copy[start : start + ctypes.sizeof(ring)] = np.frombuffer(bytes(ring), np.uint8)

    def _tables(self, head: format.FileStruct) -> None:
        for offset, size in ((head.comms_offset, head.comms * ctypes.sizeof(format.CommStruct)), (head.members_offset, head.members * 4)):
            self.copy[offset : offset + size] = self.source.data[offset : offset + size]


def _capacity(room: int) -> int:
    """The largest power of two of records for which a ring has room."""
    records = (room - format.PAGE) // format.RECORD.itemsize
    return 1 << records.bit_length() - 1 if records > 0 else 0


class Recording:
    """The job whose trace is in `folder`, and in `others`, kept in `out` (which is made), in at most `limit` bytes. Raises UsageError if that is too little."""

    def __init__(self, folder: Path, out: Path, limit: int, others: Elsewhere | None = None) -> None:
        self.folder, self.out, self.limit, self.others = folder, out, limit, others
        self.copies: dict[int, _Copy] = {}  # by rank
        self.seen: dict[int, Path] = {}  # at the last look
        self._meetings: set[clocks.Meeting] = set()
        out.mkdir(parents=True, exist_ok=True)

    def poll(self) -> None:
        """Copy what is new of all ranks."""
        if self.others is not None:
            self.others.poll()
            self._clocks(self.others.meetings)
        self.seen = self._newest()
        for rank, path in self.seen.items():
            copy = self.copies.get(rank)
            if copy is None or copy.path.name != path.name:
                if copy is not None:
                    copy.path.unlink(missing_ok=True)
                if not is_made(path):
                    continue
                self.copies[rank] = _Copy(path, self.out, self.limit)
            self.copies[rank].source.follow(path)
            self.copies[rank].poll()

    def _clocks(self, meetings: list[clocks.Meeting]) -> None:
        """Keep how the hosts' clocks lie to each other, to the same uncertainty as now."""
        if new := [meeting for meeting in meetings if meeting not in self._meetings]:
            with (self.out / format.CLOCKS).open("a") as file:
                file.writelines(f"{clocks.as_line(meeting)}\n" for meeting in new)
            self._meetings.update(new)

    def _newest(self) -> dict[int, Path]:
        """The file of each rank's newest generation."""
        found: dict[int, tuple[int, Path]] = {}
        for path in trace_files(self.folder, others=self.others):
            which = format.rank_and_generation(path)
            if which is not None and which[1] >= found.get(which[0], (-1, path))[0]:
                found[which[0]] = which[1], path
        return {rank: path for rank, (_, path) in found.items()}

    @property
    def over(self) -> bool:
        """Have all its processes ended, that can be seen?"""
        gone = self.others.gone() if self.others is not None else frozenset()
        return bool(self.copies) and all(copy.source.over or rank in gone or rank not in self.seen for rank, copy in self.copies.items())

    @property
    def copied(self) -> int:
        """Records kept so far, those included that were overwritten since."""
        return sum(copy.source.copied for copy in self.copies.values())

    @property
    def lost(self) -> int:
        """Records that were overwritten before they were read."""
        return sum(copy.source.lost for copy in self.copies.values())
