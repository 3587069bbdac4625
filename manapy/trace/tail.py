"""What is new in one trace file since the last look: for copies of it, on disk (record.py) or on another host (collect.py).

Invariants
 1. A record is handed out when it is new, and again as long as it was open the last time.
 2. What was overwritten before it was read, or torn, is counted in `lost` and never handed out.
"""

from __future__ import annotations

import ctypes
import mmap
import socket
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from . import format, proc
from .rings import read_places


@dataclass
class _Ring:
    """next: the seq that is to be read, 0: not begun. open: seqs of calls that had not returned."""

    next: int = 0
    open: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64))


class Tail:
    """A file whose making was finished. copied, lost: records so far."""

    def __init__(self, path: Path) -> None:
        self.copied = self.lost = 0
        self._map(path)
        self._rings = [_Ring() for _ in range(self.head.rings_capacity)]

    def follow(self, path: Path) -> None:
        """The same rank and generation lies there now; go on where we were."""
        if path != self.path:
            self._map(path)

    def _map(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as stream:
            self.data = np.frombuffer(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)

    @property
    def head(self) -> format.FileStruct:
        """As it is now."""
        return format.FileStruct.from_buffer_copy(self.data[: ctypes.sizeof(format.FileStruct)].tobytes())

    @property
    def host(self) -> str:
        """Where its process runs, or ran."""
        return self.head.host.decode(errors="replace")

    @property
    def over(self) -> bool:
        """Will nothing more be written into it, as far as can be seen from this host?"""
        head = self.head
        return head.end != format.RUNNING or (self.host == socket.gethostname() and proc.look(head.pid, head.pid_start).state == proc.DEAD)

    def ring(self, i: int) -> format.RingStruct:
        """The head of a ring, as it is now."""
        head = self.head
        start = head.rings_offset + i * head.ring_stride
        return format.RingStruct.from_buffer_copy(self.data[start : start + ctypes.sizeof(format.RingStruct)].tobytes())

    def new(self, i: int, ring: format.RingStruct, keep: int) -> np.ndarray:
        """Records (format.RECORD) up to the head of the ring, of which `ring` is an earlier copy; at most the newest `keep`."""
        head, state = self.head, self._rings[i]
        start = head.rings_offset + i * head.ring_stride + format.PAGE
        places = self.data[start : start + head.capacity * format.RECORD.itemsize].view(format.RECORD)
        newest = int(ring.head)
        first = state.next or int(ring.first)
        oldest = max(first, newest - min(head.capacity, keep) + 1)
        new = np.arange(oldest, newest + 1, dtype=np.uint64)
        seqs = np.concatenate((state.open[state.open + np.uint64(keep) > newest], new))
        records, good = read_places(places, seqs)
        state.open = seqs[good & (records["exit"] == 0)]
        fresh = good[len(seqs) - len(new) :]
        self.copied += int(fresh.sum())
        self.lost += oldest - first + int((~fresh).sum())
        state.next = newest + 1
        return records[good]


def is_made(path: Path) -> bool:
    """Has its making been finished?"""
    with path.open("rb") as stream:
        return int.from_bytes(stream.read(8), "little") == format.MAGIC
