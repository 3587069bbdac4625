"""A trace file: the current state of its head, its rings and their records. rings.py makes a Trace of them; tail.py
copies them.

Invariants
 1. The file is read, never mapped: its owner may truncate it at any time, which would kill a process that maps it
    (SIGBUS).
 2. The head's description of the file's parts is checked each time, and nothing outside the file is read. If a head
    becomes invalid, its last valid state is used.
 3. The missing part of a truncated file reads as zeros, like places of records that were never written.
 4. The file is open as long as this object exists, so that a removed file can still be read.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import socket
import stat
import weakref
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

from ..host import process_state
from ..model.events import Op
from . import format

_IS_OP = np.isin(np.arange(1 << 16), [int(op) for op in Op])
MOST = 1 << 26  # ranks; a larger number means that the head is damaged


class TraceFile:
    """A trace file that is open for reading.

    size: bytes, when it was opened.
    problem: one line, if the file isn't complete.

    Raises ValueError, with one line, if it is no trace file; UnfinishedError, if it isn't one yet; and OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = _open(path)
        self._close = weakref.finalize(self, os.close, self._fd)
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{path}: not a trace of manapy")
        self.size = found.st_size
        if self.size < format.PAGE:
            raise ValueError(f"{path}: truncated: {self.size} bytes, not even its head")
        head = self._head = self._head_now()
        if head.magic == 0:
            raise UnfinishedError(f"{path}: its creation was never finished")
        if head.magic != format.MAGIC:
            raise ValueError(f"{path}: not a trace of manapy")
        if head.version != format.VERSION or head.record_size != format.RECORD.itemsize:
            raise ValueError(
                f"{path}: a trace of another version of manapy ({head.version}, this one reads {format.VERSION})"
            )
        if not _is_sound(head):
            raise ValueError(f"{path}: its head is damaged")
        self.capacity, self._offset, self._stride = int(head.capacity), int(head.rings_offset), int(head.ring_stride)
        whole = head.rings_offset + head.rings * head.ring_stride
        self.problem = (
            ""
            if self.size >= whole
            else f"{path}: truncated: {self.size} of {whole} bytes; what is missing counts as lost"
        )

    @property
    def head(self) -> format.FileStruct:
        """The file's head as it is now, or its last valid state. `pid` is 0 if its process is in another PID namespace
        of this host: it can't be looked at."""
        head = self._head_now()
        if (
            head.magic == format.MAGIC
            and _is_sound(head)
            and (head.capacity, head.rings_offset, head.ring_stride) == (self.capacity, self._offset, self._stride)
        ):
            self._head = head
            if self._is_hidden:
                head.pid = head.pid_start = 0
        else:
            self.problem = f"{self.path}: truncated or overwritten while it was read; what was read before counts"
        return self._head

    def _head_now(self) -> format.FileStruct:
        return format.FileStruct.from_buffer_copy(self.bytes(0, format.PAGE))

    @property
    def host(self) -> str:
        """The host on which its process runs, or ran."""
        return format.text(self.head.host)

    @property
    def _is_hidden(self) -> bool:
        """Is the process in another PID namespace of this host?"""
        return format.text(self._head.host) == socket.gethostname() and process_state.is_hidden(self._head.pid_space)

    @property
    def alive(self) -> bool | None:
        """Return whether the process that writes the file still runs. One in another PID namespace does so until it
        says that it has ended. None: this host can't tell, because the process is on another one."""
        head = self.head
        if head.end != format.RUNNING:
            return False
        if self.host != socket.gethostname():
            return None
        return self._is_hidden or process_state.look(head.pid, head.pid_start).state != process_state.DEAD

    def ring(self, i: int) -> format.RingStruct:
        """Return the head of a ring, as it is now. If its numbers are impossible, the ring counts as never used."""
        ring = format.RingStruct.from_buffer_copy(self.bytes(self._start(i), ctypes.sizeof(format.RingStruct)))
        if not ring.first <= ring.head + 1 < 1 << 62:
            ring.first = 0
        return ring

    def records(self, i: int, seqs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the records of a ring, as `taken` does."""
        return taken(lambda at: self._places(i, at), self.capacity, seqs)

    def _places(self, i: int, at: np.ndarray) -> np.ndarray:
        """Return the records at these places of a ring; zeros where there is none."""
        found = np.zeros(len(at), format.RECORD)
        start, view, each = self._start(i) + format.PAGE, found.view(np.uint8).data, format.RECORD.itemsize
        begins = np.flatnonzero(np.diff(at, prepend=-2) != 1).tolist()
        for first, last in pairwise([*begins, len(at)]):
            part = view[first * each : last * each]
            whole = self._into(part, start + int(at[first]) * each) // each
            part[whole * each :] = bytes(len(part) - whole * each)
        return found

    def bytes(self, start: int, size: int) -> bytes:
        """Return a copy of `size` bytes; the missing part of a truncated file is zeros."""
        found = bytearray(size)
        self._into(memoryview(found), start)
        return bytes(found)

    def _into(self, view: memoryview, start: int) -> int:
        """Read as many bytes as there are, and return their number."""
        done = 0
        while done < len(view) and (count := os.preadv(self._fd, [view[done:]], start + done)):
            done += count
        return done

    def _start(self, i: int) -> int:
        """Return the offset of a ring."""
        return self._offset + i * self._stride


class UnfinishedError(ValueError):
    """The file is being created, or its creator has died."""


def taken(places: Callable[[np.ndarray], np.ndarray], capacity: int, seqs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return copies of the records with these seqs (ascending), and which of them are good: neither torn nor
    overwritten. places: copies the records at some places of the ring. Its thread may write there at the same time.
    `exit` is read before the fields that it makes valid."""
    at = (seqs.astype(np.int64) - 1) % capacity
    before = places(at)
    records = places(at)
    after = places(at)["seq"]
    records["exit"] = before["exit"]
    return records, (before["seq"] == seqs) & (after == seqs) & (records["seq"] == seqs) & _IS_OP[records["op"]]


def _open(path: Path) -> int:
    """Open a file for reading. The file of each rank stays open. With thousands of ranks these may be more than the
    soft limit of open files, so it is raised then."""
    how = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # another user may have put a pipe there
    try:
        return os.open(path, how)
    except OSError as error:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if error.errno != errno.EMFILE or soft == hard:
            raise
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return os.open(path, how)


def _is_sound(head: format.FileStruct) -> bool:
    """Return whether the head's numbers are possible."""
    tables = (
        head.comms_offset + head.comms_capacity * 64 <= head.members_offset
        and head.members_offset + head.members_capacity * 4 <= head.rings_offset
    )
    rings = (
        head.capacity & (head.capacity - 1) == 0 < head.capacity
        and head.ring_stride >= format.PAGE + head.capacity * format.RECORD.itemsize
    )
    return bool(
        tables
        and rings
        and head.rings <= head.rings_capacity <= 1 << 16
        and 0 <= head.rank < head.size <= MOST
        and head.rings_offset < 1 << 40
    )
