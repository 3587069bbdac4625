"""Copies a running job's recording to disk, into rings of any size. The files have the same format (format.py), so that
all readers of rings can read them.

Invariants
 1. Rings on disk never exceed the limit (plus 64 bytes per communicator). Each rank has a share of it. Its rings get
    their size when its file is first seen, and overwrite their oldest records. `unrecorded` of a file counts threads
    for which it has no ring. Only the newest generation of a rank is kept.
 2. A place of a ring has the record that belongs there, or a record with another seq, which reads as lost. An open call
    is read again until it has returned.
 3. `magic` is stored last, and `head` of a ring after its records. So an interrupted copy is valid up to its end.
 4. A copy shows the moment of its newest clock sample. Later actions of the process are not in it, and no rank is
    blamed for their absence.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from ...core.errors import UsageError
from . import clocks, format, tsc_clock
from .rings import OtherHosts, NoTraceError, trace_files
from .tail import Tail, runs
from .tracefile import UnfinishedError

SMALLEST = 1024  # least number of records of a ring
RINGS = 2  # least number of threads for which a rank has room


class _Copy:
    """The copy of one rank's file."""

    def __init__(self, source: Tail, out: Path, limit: int) -> None:
        self.source = source
        head = source.head
        self.rings = min(max(head.rings, RINGS), head.rings_capacity)
        self.capacity = _capacity(limit // head.size // self.rings)
        if self.capacity < SMALLEST:
            needed = head.size * self.rings * (format.PAGE + SMALLEST * format.RECORD.itemsize)
            raise UsageError(f"--limit is too small: {head.size} ranks need at least {-(-needed // 10**6)} MB")
        self.stride = format.PAGE + self.capacity * format.RECORD.itemsize
        self.path = out / source.path.name
        self.path.unlink(missing_ok=True)
        self._file = self.path.open("xb", buffering=0)
        self._entered = [0, 0]  # number of entries of both tables copied so far
        self._file.truncate(head.rings_offset + self.rings * self.stride)

    def poll(self) -> None:
        """Copy what is new. Raises OSError, for example if the disk is full."""
        head = self.source.head
        if self.source.alive is not False:
            self._look_taken(head)
        dropped = 0
        for i in range(head.rings):
            ring = self.source.ring(i)
            if i >= self.rings:
                dropped += ring.head
            elif ring.first:
                start = head.rings_offset + i * self.stride
                for offset, data in runs(self.source.new(i, ring, self.capacity), self.capacity, start + format.PAGE):
                    self._write(offset, data)
                self._write(start, bytes(ring))
        for offset, data in self.source.entered(head, self._entered):
            self._write(offset, data)
        head.capacity, head.ring_stride, head.rings_capacity = self.capacity, self.stride, self.rings
        head.rings = min(head.rings, self.rings)
        head.unrecorded += dropped
        self._write(0, bytes(head))

    def _look_taken(self, head: format.FileStruct) -> None:
        """Add a clock sample for the moment of this copy (invariant 4). For a process of another host no sample can be
        taken; its last action shows the moment."""
        head.end = format.SAVED
        if self.source.host == socket.gethostname() and (now := tsc_clock.now()) is not None:
            head.sample[head.samples % format.SAMPLES] = format.SampleStruct(
                now.ticks, now.realtime, now.monotonic, 0, format.UNKNOWN
            )
            head.samples += 1

    def _write(self, offset: int, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                written = os.pwrite(self._file.fileno(), rest, offset)
                rest, offset = rest[written:], offset + written
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error


def _capacity(room: int) -> int:
    """Return the largest power of two of records for which a ring has room (bytes)."""
    records = (room - format.PAGE) // format.RECORD.itemsize
    return 1 << records.bit_length() - 1 if records > 0 else 0


class Recording:
    """Keeps the recording of the job whose trace is in `folder`, and in `others`, in the folder `out`.

    `out` is created. At most `limit` bytes are written. problems: files that can't be copied, and why, one line each.
    """

    def __init__(self, folder: Path, out: Path, limit: int, others: OtherHosts | None = None) -> None:
        self.folder, self.out, self.limit, self.others = folder, out, limit, others
        self.copies: dict[int, _Copy] = {}  # by rank
        self.seen: dict[int, Path] = {}  # files at the last look, by rank
        self.problems: list[str] = []
        self._bad: set[Path] = set()
        self._met: dict[str, int] = {}  # time of the newest meeting with each host that was written
        out.mkdir(parents=True, exist_ok=True)

    def poll(self) -> None:
        """Copy what is new of all ranks. Raises UsageError if the limit is too small, NoTraceError if no file can be
        copied, and OSError."""
        if self.others is not None:
            self.others.poll()
            self._clocks(self.others.meetings)
        self.seen = self._newest()
        for rank, path in self.seen.items():
            copy = self.copies.get(rank)
            if copy is None or copy.path.name != path.name:
                if (made := self._made(path)) is None:
                    continue
                if copy is not None:
                    copy.path.unlink(missing_ok=True)
                copy = self.copies[rank] = made
            copy.source.follow(path)
            copy.poll()
        if self._bad and not self.copies:
            raise NoTraceError("; ".join(self.problems))

    def _made(self, path: Path) -> _Copy | None:
        """Make the copy of a file that is seen for the first time. Returns None if it is no trace file, or not yet
        one."""
        if path in self._bad:
            return None
        try:
            source = Tail(path)
        except UnfinishedError:
            return None
        except ValueError as error:
            self._bad.add(path)
            self.problems.append(str(error))
            return None
        if source.problem:
            self.problems.append(source.problem)
        return _Copy(source, self.out, self.limit)

    def _clocks(self, meetings: Sequence[clocks.Meeting]) -> None:
        """Keep the relation of the hosts' clocks, so that its uncertainty stays as it is now."""
        if new := [meeting for meeting in meetings if meeting.at > self._met.get(meeting.host, -1)]:
            with (self.out / format.CLOCKS).open("a") as file:
                file.writelines(f"{clocks.as_line(meeting)}\n" for meeting in new)
            for meeting in new:
                self._met[meeting.host] = max(meeting.at, self._met.get(meeting.host, -1))

    def _newest(self) -> dict[int, Path]:
        """Return the file of each rank's newest generation."""
        found: dict[int, tuple[int, Path]] = {}
        for path in trace_files(self.folder, others=self.others):
            which = format.rank_and_generation(path)
            if which is not None and which[1] >= found.get(which[0], (-1, path))[0]:
                found[which[0]] = which[1], path
        return {rank: path for rank, (_, path) in found.items()}

    @property
    def over(self) -> bool:
        """Return whether all processes of the recording have ended, as far as can be seen from here."""
        gone = self.others.gone() if self.others is not None else frozenset()
        return bool(self.copies) and all(
            copy.source.alive is False or rank in gone or rank not in self.seen for rank, copy in self.copies.items()
        )

    @property
    def copied(self) -> int:
        """Number of records copied so far, including those that were overwritten since."""
        return sum(copy.source.copied for copy in self.copies.values())

    @property
    def lost(self) -> int:
        """Number of records that were overwritten before they were read."""
        return sum(copy.source.lost for copy in self.copies.values())
