"""The trace file: mirror of lowerhalf/include/manapy/trace.h. Also writes such files without a program, for tests and
the simulator.

trace.h explains the fields. tests/unit/trace/capture/test_format.py compares sizes, offsets and constants.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from .layout import (
    CAPACITY as CAPACITY,
    CLOCKS as CLOCKS,
    FINALIZED as FINALIZED,
    MAGIC as MAGIC,
    NO_COMM as NO_COMM,
    PAGE as PAGE,
    RINGS as RINGS,
    RUNNING as RUNNING,
    SAMPLES as SAMPLES,
    SAVED as SAVED,
    STRUCTURES as STRUCTURES,
    UNKNOWN as UNKNOWN,
    UNTIMED as UNTIMED,
    VERSION as VERSION,
    CommStruct as CommStruct,
    FileStruct as FileStruct,
    RingStruct as RingStruct,
    SampleStruct as SampleStruct,
    file_name as file_name,
    files_in as files_in,
    job_name as job_name,
    rank_and_generation as rank_and_generation,
    root as root,
    text as text,
)

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


# ---- writing files


class Writer:
    """Writes a trace file as a recorder would have left it. It is slow, and not meant for recording.

    capacity: records per ring, a power of two.
    rings: number of threads.
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
        self.head = FileStruct.from_buffer(self._data.data)
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
        """Enter a communicator in the side table. Returns its index."""
        index = int(self.head.comms)
        entry = CommStruct.from_buffer(self._data.data, self.head.comms_offset + index * ctypes.sizeof(CommStruct))
        entry.cid, entry.ggid, entry.members, entry.remote, entry.name = (
            cid,
            ggid,
            len(members),
            remote,
            name.encode()[:23],
        )
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
        """Return the head of a ring, and mark it as used. A new ring continues after head.past."""
        ring = RingStruct.from_buffer(self._data.data, self.head.rings_offset + index * self.head.ring_stride)
        if ring.first == 0:
            past = int(self.head.past[index])
            ring.first, ring.head, ring.serials = past + 1, past, index << 48
        ring.tid, ring.used = tid, 1
        self.head.rings = max(self.head.rings, index + 1)
        return ring

    def records(self, index: int = 0) -> np.ndarray:
        """Return the records of a ring, as an array of RECORD. Changing it changes the file."""
        offset = self.head.rings_offset + index * self.head.ring_stride + PAGE
        return self._data[offset : offset + int(self.head.capacity) * RECORD.itemsize].view(RECORD)

    def put(self, index: int = 0, **fields: int) -> int:
        """Publish one record in a ring that is in use. Returns its seq."""
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
        """Publish many records (RECORD; seq is set here), as fast as numpy can."""
        ring = self.ring(index)
        capacity, start = int(self.head.capacity), int(ring.head)
        numbered = records.astype(RECORD)
        numbered["seq"] = np.arange(start + 1, start + 1 + len(records), dtype=np.uint64)
        newest = numbered[-capacity:]
        self.records(index)[(newest["seq"].astype(np.int64) - 1) % capacity] = newest
        ring.head = start + len(records)

    def close(self, end: int = FINALIZED) -> None:
        """End the recording."""
        self.head.end = end
        self._data.flush()
