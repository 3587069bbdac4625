"""Keeping on disk what a running job records: rings as large as one wants them, in files of the same format (format.py), which everything reads that reads rings.

Invariants
 1. What rings take on disk never exceeds the limit (communicators come on top, 64 bytes each): each rank has its share of it, its rings are sized for that when its
    file is first seen, and overwrite their oldest records. Threads that a file has no ring for are counted in its `unrecorded`. Of a rank only the newest generation is kept.
 2. A place of a ring holds the record that belongs there, or another seq: then it reads as lost. A call that was open is looked at again until it has returned.
 3. `magic` is stored last, and `head` of a ring after its records: a copy that was cut short is sound as far as it goes.
"""

from __future__ import annotations

import ctypes
import mmap
import socket
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..ckpt.errors import UsageError
from . import format, proc
from .rings import read_places

SMALLEST = 1024  # records of a ring
RINGS = 2  # threads that a rank has room for at least


@dataclass
class _Ring:
    """next: the seq that is to be copied. open: seqs of calls that had not returned."""

    next: int = 0
    open: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64))


class _Copy:
    """One rank's file, and its copy. copied, lost: records so far."""

    def __init__(self, source: Path, out: Path, limit: int) -> None:
        self.copied = self.lost = 0
        with source.open("rb") as stream:
            self.source = np.frombuffer(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        head = self.head
        count = min(max(head.rings, RINGS), head.rings_capacity)
        self.capacity = _capacity(limit // head.size // count)
        if self.capacity < SMALLEST:
            needed = head.size * count * (format.PAGE + SMALLEST * format.RECORD.itemsize)
            raise UsageError(f"--limit is too small: {head.size} ranks need at least {-(-needed // 10**6)} MB")
        self.stride = format.PAGE + self.capacity * format.RECORD.itemsize
        self.rings = [_Ring() for _ in range(count)]
        self.path = out / source.name
        self.path.unlink(missing_ok=True)
        self.copy = np.memmap(self.path, np.uint8, "w+", shape=(head.rings_offset + count * self.stride,))

    @property
    def head(self) -> format.FileStruct:
        """The source's, as it is now."""
        return format.FileStruct.from_buffer_copy(self.source[: ctypes.sizeof(format.FileStruct)].tobytes())

    @property
    def over(self) -> bool:
        """Will nothing more be written into the source?"""
        head = self.head
        return head.end != format.RUNNING or (head.host.decode(errors="replace") == socket.gethostname() and proc.look(head.pid, head.pid_start).state == proc.DEAD)

    def poll(self) -> None:
        """Copy what is new."""
        head = self.head
        dropped = 0
        for i in range(head.rings):
            start = head.rings_offset + i * head.ring_stride
            ring = format.RingStruct.from_buffer_copy(self.source[start : start + ctypes.sizeof(format.RingStruct)].tobytes())
            if i >= len(self.rings):
                dropped += ring.head
            elif ring.first:
                places = self.source[start + format.PAGE :][: head.capacity * format.RECORD.itemsize].view(format.RECORD)
                self._ring(i, ring, places, head)
        self._tables(head)
        head.capacity, head.ring_stride, head.rings_capacity = self.capacity, self.stride, len(self.rings)
        head.rings = min(head.rings, len(self.rings))
        head.unrecorded += dropped
        self.copy[: ctypes.sizeof(head)] = np.frombuffer(bytes(head), np.uint8)

    def _ring(self, i: int, ring: format.RingStruct, places: np.ndarray, head: format.FileStruct) -> None:
        state = self.rings[i]
        start = head.rings_offset + i * self.stride
        mine = self.copy[start + format.PAGE : start + self.stride].view(format.RECORD)
        newest = int(ring.head)
        first = state.next or int(ring.first)
        oldest = max(first, newest - head.capacity + 1, newest - self.capacity + 1)
        new = np.arange(oldest, newest + 1, dtype=np.uint64)
        seqs = np.concatenate((state.open[state.open + np.uint64(self.capacity) > newest], new))
        records, good = read_places(places, seqs)
        at = ((seqs - np.uint64(1)) % np.uint64(self.capacity)).astype(np.int64)
        mine[at[good]] = records[good]
        state.open = seqs[good & (records["exit"] == 0)]
        fresh = good[len(seqs) - len(new) :]
        self.copied += int(fresh.sum())
        self.lost += oldest - first + int((~fresh).sum())
        state.next = newest + 1
        self.copy[start : start + ctypes.sizeof(ring)] = np.frombuffer(bytes(ring), np.uint8)

    def _tables(self, head: format.FileStruct) -> None:
        for offset, size in ((head.comms_offset, head.comms * ctypes.sizeof(format.CommStruct)), (head.members_offset, head.members * 4)):
            self.copy[offset : offset + size] = self.source[offset : offset + size]


def _capacity(room: int) -> int:
    """The largest power of two of records for which a ring has room."""
    records = (room - format.PAGE) // format.RECORD.itemsize
    return 1 << records.bit_length() - 1 if records > 0 else 0


class Recording:
    """The job whose trace is in `folder`, kept in `out` (which is made), in at most `limit` bytes. Raises UsageError if that is too little."""

    def __init__(self, folder: Path, out: Path, limit: int) -> None:
        self.folder, self.out, self.limit = folder, out, limit
        self.copies: dict[int, _Copy] = {}  # by rank
        out.mkdir(parents=True, exist_ok=True)

    def poll(self) -> None:
        """Copy what is new of all ranks."""
        for rank, path in self._newest().items():
            copy = self.copies.get(rank)
            if copy is None or copy.path.name != path.name:
                if copy is not None:
                    copy.path.unlink(missing_ok=True)
                if not _is_made(path):
                    continue
                self.copies[rank] = _Copy(path, self.out, self.limit)
            self.copies[rank].poll()

    def _newest(self) -> dict[int, Path]:
        """The file of each rank's newest generation."""
        found: dict[int, tuple[int, Path]] = {}
        for path in self.folder.glob("rank-*.trace"):
            if (which := format.rank_and_generation(path)) is not None and which[1] >= found.get(which[0], (-1, path))[0]:
                found[which[0]] = which[1], path
        return {rank: path for rank, (_, path) in found.items()}

    @property
    def over(self) -> bool:
        """Have all its processes ended?"""
        return bool(self.copies) and all(copy.over for copy in self.copies.values())

    @property
    def copied(self) -> int:
        """Records kept so far, those included that were overwritten since."""
        return sum(copy.copied for copy in self.copies.values())

    @property
    def lost(self) -> int:
        """Records that were overwritten before they were read."""
        return sum(copy.lost for copy in self.copies.values())


def _is_made(path: Path) -> bool:
    with path.open("rb") as stream:
        return int.from_bytes(stream.read(8), "little") == format.MAGIC
