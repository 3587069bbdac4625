"""The trace file: mirror of lowerhalf/include/manapy/trace.h, and writing such files without a program (for tests and the simulator).

What the fields mean is said there. tests/unit/trace/test_format.py compares sizes, offsets and constants.
"""

from __future__ import annotations

import ctypes
import os
import re
from ctypes import c_char, c_int32, c_int64, c_uint32, c_uint64
from pathlib import Path

import numpy as np

MAGIC = 0x314543415254594D
VERSION = 3
CAPACITY = 65536
RINGS = 64
SAMPLES = 40
NO_COMM = 0xFFFFFFFF
PAGE = 4096
RUNNING, FINALIZED, SAVED = range(3)
UNKNOWN = 2**64 - 1

RECORD = np.dtype(
    [
        ("seq", "u8"),
        ("enter", "u8"),
        ("exit", "u8"),
        ("bytes", "u8"),
        ("comm", "u4"),
        ("op", "u2"),
        ("flags", "u2"),
        ("peer", "i4"),
        ("tag", "i4"),
        ("request", "u8"),
        ("context", "u8"),
    ]
)


class CommStruct(ctypes.Structure):
    """mpy_trace_comm_t"""

    _fields_ = [
        ("cid", c_uint64),
        ("ggid", c_uint64),
        ("members", c_uint32),
        ("remote", c_uint32),
        ("first", c_int32),
        ("stride", c_int32),
        ("place", c_uint64),
        ("name", c_char * 24),
    ]


class SampleStruct(ctypes.Structure):
    """mpy_trace_sample_t"""

    _fields_ = [("ticks", c_uint64), ("realtime", c_int64), ("monotonic", c_int64), ("offset", c_int64), ("uncertainty", c_uint64)]


class FileStruct(ctypes.Structure):
    """mpy_trace_file_t"""

    _fields_ = [
        ("magic", c_uint64),
        ("version", c_uint32),
        ("record_size", c_uint32),
        ("capacity", c_uint32),
        ("rings_capacity", c_uint32),
        ("comms_capacity", c_uint32),
        ("members_capacity", c_uint32),
        ("comms_offset", c_uint64),
        ("members_offset", c_uint64),
        ("rings_offset", c_uint64),
        ("ring_stride", c_uint64),
        ("rank", c_int32),
        ("size", c_int32),
        ("generation", c_uint32),
        ("pid", c_int32),
        ("pid_start", c_uint64),
        ("ticks_per_second", c_uint64),
        ("rings", c_uint32),
        ("comms", c_uint32),
        ("members", c_uint32),
        ("end", c_uint32),
        ("unrecorded", c_uint64),
        ("invariant_ticks", c_uint32),
        ("samples", c_uint32),
        ("host", c_char * 64),
        ("job", c_char * 64),
        ("producer", c_char * 32),
        ("program", c_char * 256),
        ("sample", SampleStruct * SAMPLES),
        ("past", c_uint64 * RINGS),
    ]


class RingStruct(ctypes.Structure):
    """mpy_trace_ring_t"""

    _fields_ = [
        ("head", c_uint64),
        ("mark", c_uint64),
        ("polls", c_uint64),
        ("polled", c_uint64),
        ("polled_request", c_uint64),
        ("tid", c_int32),
        ("used", c_uint32),
        ("serials", c_uint64),
        ("first", c_uint64),
    ]


STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "trace_comm": CommStruct,
    "trace_sample": SampleStruct,
    "trace_file": FileStruct,
    "trace_ring": RingStruct,
}


# ---- where files lie


def text(raw: bytes) -> str:
    """A name that a program has chosen, fit to be shown: a terminal would obey control characters, and whose recording it is may be another user."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in raw.decode(errors="replace"))


def root(user: int | None = None) -> Path:
    """The folder of a user's jobs: of this one, or of that with this id."""
    return Path(os.environ.get("MANAPY_TRACE_ROOT") or "/dev/shm") / f"manapy-trace-{os.getuid() if user is None else user}"


def job_name(directory: str | Path) -> str:
    """Name of the trace of the job whose job directory this is: mpy_trace_job_name of lowerhalf/trace/file.c."""
    path = os.path.abspath(directory)
    value = 0xCBF29CE484222325
    for byte in os.fsencode(path):
        value = ((value ^ byte) * 0x100000001B3) & (2**64 - 1)
    return f"{os.path.basename(path)[:40]}-{value & 0xFFFFFFFF:08x}"


CLOCKS = "clocks.jsonl"  # beside the files of a recording of several hosts: what these answered when they were asked for the time (clocks.py)

_NAME = re.compile(r"rank-(\d{5,})\.g(\d+)\.trace")


def rank_and_generation(path: Path) -> tuple[int, int] | None:
    """What the name of a trace file says, or None if it isn't one."""
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2])) if match else None


def file_name(rank: int, generation: int = 0) -> str:
    """rank-00003.g1.trace"""
    return f"rank-{rank:05d}.g{generation}.trace"


# ---- writing files


class Writer:
    """A trace file made by Python: what a recorder would have left behind. Not for recording: nothing here is fast.

    capacity: records a ring, a power of two; rings: threads.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        size: int,
        *,
        generation: int = 0,
        job: str = "",
        host: str = "host",
        producer: str = "python",
        program: str = "",
        capacity: int = CAPACITY,
        rings: int = 1,
        comms: int = 64,
        members: int = 4096,
        ticks_per_second: int = 10**9,
        pid: int = 0,
        pid_start: int = 0,
    ) -> None:
        comms_offset = PAGE
        members_offset = comms_offset + -(-comms * ctypes.sizeof(CommStruct) // PAGE) * PAGE
        rings_offset = members_offset + -(-members * 4 // PAGE) * PAGE
        stride = PAGE + capacity * RECORD.itemsize
        self.path = folder / file_name(rank, generation)
        self._data = np.memmap(self.path, np.uint8, "w+", shape=(rings_offset + rings * stride,))
        self.head = FileStruct.from_buffer(self._data)
        for name, value in {
            "version": VERSION,
            "record_size": RECORD.itemsize,
            "capacity": capacity,
            "rings_capacity": rings,
            "comms_capacity": comms,
            "members_capacity": members,
            "comms_offset": comms_offset,
            "members_offset": members_offset,
            "rings_offset": rings_offset,
            "ring_stride": stride,
            "rank": rank,
            "size": size,
            "generation": generation,
            "pid": pid,
            "pid_start": pid_start,
            "ticks_per_second": ticks_per_second,
            "invariant_ticks": 1,
            "host": host.encode(),
            "job": (job or folder.name).encode(),
            "producer": producer.encode(),
            "program": program.encode(),
        }.items():
            setattr(self.head, name, value)
        self.head.magic = MAGIC

    def sample(self, ticks: int, realtime: int, monotonic: int, offset: int = 0, uncertainty: int = UNKNOWN) -> None:
        """Append a clock sample."""
        self.head.sample[self.head.samples % SAMPLES] = SampleStruct(ticks, realtime, monotonic, offset, uncertainty)
        self.head.samples += 1

    def comm(self, cid: int, members: list[int], *, ggid: int = 0, remote: int = 0, name: str = "") -> int:
        """Enter a communicator; its index."""
        index = int(self.head.comms)
        entry = CommStruct.from_buffer(self._data, self.head.comms_offset + index * ctypes.sizeof(CommStruct))
        entry.cid, entry.ggid, entry.members, entry.remote, entry.name = cid, ggid, len(members), remote, name.encode()[:23]
        stride = members[1] - members[0] if len(members) > 1 else 1
        if stride and members == [members[0] + i * stride for i in range(len(members))]:
            entry.first, entry.stride = members[0] if members else 0, stride
        else:
            start = int(self.head.members)
            entry.stride, entry.place = 0, start
            pool = self._data[self.head.members_offset :].view(np.int32)
            pool[start : start + len(members)] = members
            self.head.members = start + len(members)
        self.head.comms = index + 1
        return index

    def ring(self, index: int = 0, *, tid: int = 0) -> RingStruct:
        """The head of a ring, in use from now on; it goes on behind head.past."""
        ring = RingStruct.from_buffer(self._data, self.head.rings_offset + index * self.head.ring_stride)
        if ring.first == 0:
            past = int(self.head.past[index])
            ring.first, ring.head, ring.serials = past + 1, past, index << 48
        ring.tid, ring.used = tid, 1
        self.head.rings = max(self.head.rings, index + 1)
        return ring

    def records(self, index: int = 0) -> np.ndarray:
        """The places of a ring, as an array of RECORD that changes the file."""
        offset = self.head.rings_offset + index * self.head.ring_stride + PAGE
        return self._data[offset : offset + int(self.head.capacity) * RECORD.itemsize].view(RECORD)

    def put(self, index: int = 0, **fields: int) -> int:
        """Publish one record in a ring that is in use; its seq."""
        ring = self.ring(index)
        seq = int(ring.head) + 1
        place = self.records(index)[(seq - 1) % int(self.head.capacity) :][:1]
        place["seq"] = 0
        values = {"comm": NO_COMM, "peer": -32768, **fields}
        for name in RECORD.names or ():
            if name != "seq":
                place[name] = values.get(name, 0)
        place["seq"] = seq
        ring.head = seq
        return seq

    def extend(self, records: np.ndarray, index: int = 0) -> None:
        """Publish many records (RECORD, whose seq is set here), as fast as numpy can."""
        ring = self.ring(index)
        capacity, start = int(self.head.capacity), int(ring.head)
        numbered = records.astype(RECORD)
        numbered["seq"] = np.arange(start + 1, start + 1 + len(records), dtype=np.uint64)
        newest = numbered[-capacity:]
        self.records(index)[(newest["seq"].astype(np.int64) - 1) % capacity] = newest
        ring.head = start + len(records)

    def close(self, end: int = FINALIZED) -> None:
        """Nothing comes any more."""
        self.head.end = end
        self._data.flush()
