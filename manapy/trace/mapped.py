"""A trace file, mapped: its head, its rings and their records, as they are now. For rings.py, which makes a Trace of them, and tail.py, which copies them.

Invariants
 1. What the head says of the file's parts was checked once: nothing behind it is read that isn't there.
 2. What a truncated file lacks reads as zeros: places of records that were never written.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import stat
from pathlib import Path

import numpy as np

from . import format, proc

MOST = 1 << 26  # ranks, or members of a communicator: more is no number but damage


class Mapped:
    """problem: one line, if the file isn't whole. Raises ValueError with one line if it is no trace file, UnfinishedError if it isn't one yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:  # it may be a pipe, that somebody has put there
            found = os.fstat(stream.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ValueError(f"{path}: not a trace of manapy")
            size = found.st_size
            if size < format.PAGE:
                raise ValueError(f"{path}: truncated: {size} bytes, not even its head")
            self.data = np.frombuffer(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        head = self.head
        if head.magic == 0:
            raise UnfinishedError(f"{path}: its making was never finished")
        if head.magic != format.MAGIC:
            raise ValueError(f"{path}: not a trace of manapy")
        if head.version != format.VERSION or head.record_size != format.RECORD.itemsize:
            raise ValueError(f"{path}: a trace of another version of manapy ({head.version}, this one reads {format.VERSION})")
        if not _is_sound(head):
            raise ValueError(f"{path}: its head is damaged")
        self.capacity, self._offset, self._stride = int(head.capacity), int(head.rings_offset), int(head.ring_stride)
        whole = head.rings_offset + head.rings * head.ring_stride
        self.problem = "" if size >= whole else f"{path}: truncated: {size} of {whole} bytes; what is missing counts as lost"

    @property
    def head(self) -> format.FileStruct:
        """As it is now."""
        return format.FileStruct.from_buffer_copy(self.data[: format.PAGE].tobytes())

    @property
    def host(self) -> str:
        """Where its process runs, or ran."""
        return format.text(self.head.host)

    @property
    def alive(self) -> bool | None:
        """Does the process that writes it still run? None: on this host that can't be seen."""
        head = self.head
        if head.end != format.RUNNING:
            return False
        return proc.look(head.pid, head.pid_start).state != proc.DEAD if self.host == socket.gethostname() else None

    def ring(self, i: int) -> format.RingStruct:
        """The head of a ring, as it is now; as if it were never used, if its numbers can't be."""
        ring = format.RingStruct.from_buffer_copy(self.bytes(self._start(i), ctypes.sizeof(format.RingStruct)))
        if not ring.first <= ring.head + 1 < 1 << 62:
            ring.first = 0
        return ring

    def places(self, i: int) -> np.ndarray:
        """All records of a ring, in the order of their places; they may change meanwhile."""
        start = self._start(i) + format.PAGE
        room = min(max(0, len(self.data) - start) // format.RECORD.itemsize, self.capacity)
        places = self.data[start : start + room * format.RECORD.itemsize].view(format.RECORD)
        return places if room == self.capacity else np.concatenate((places, np.zeros(self.capacity - room, format.RECORD)))

    def bytes(self, start: int, size: int) -> bytes:
        """A copy of so many."""
        return self.data[start : start + size].tobytes().ljust(size, b"\0")

    def _start(self, i: int) -> int:
        return self._offset + i * self._stride


class UnfinishedError(ValueError):
    """It is being made, or its maker has died."""


def _is_sound(head: format.FileStruct) -> bool:
    tables = head.comms_offset + head.comms_capacity * 64 <= head.members_offset and head.members_offset + head.members_capacity * 4 <= head.rings_offset
    rings = head.capacity & (head.capacity - 1) == 0 < head.capacity and head.ring_stride >= format.PAGE + head.capacity * format.RECORD.itemsize
    return bool(tables and rings and head.rings <= head.rings_capacity <= 1 << 16 and 0 <= head.rank < head.size <= MOST and head.rings_offset < 1 << 40)
