"""The parts of the trace file that can be read without numpy: heads and tables; and where trace files are. Mirror of
lowerhalf/include/manapy/trace.h. format.py reads records."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from ctypes import c_char, c_int32, c_int64, c_uint32, c_uint64
from pathlib import Path

from ...core.fnv import path_mark

MAGIC = 0x314543415254594D
VERSION = 3
CAPACITY = 65536
RINGS = 64
SAMPLES = 40
NO_COMM = 0xFFFFFFFF
PAGE = 4096
RUNNING, FINALIZED, SAVED = range(3)
UNKNOWN = 2**64 - 1
# Producer of a recording without durations: a dump of PyTorch's Flight Recorder. Nothing can be said about speed. Its
# `program` is the place of the newest call.
UNTIMED = "Flight Recorder"


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

    _fields_ = [
        ("ticks", c_uint64),
        ("realtime", c_int64),
        ("monotonic", c_int64),
        ("offset", c_int64),
        ("uncertainty", c_uint64),
    ]


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
        ("pid_space", c_uint64),
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
    """Decode a name that a program has chosen, and make it safe for a terminal by replacing control characters. The
    recording may belong to another user."""
    return printable(raw.decode(errors="replace"))


def printable(name: str) -> str:
    """Return a text from a file of somebody else with its control characters replaced, as `text` does."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)


def root(user: int | None = None, below: str | None = None) -> Path:
    """Return the folder with the recordings of this user, or of the user with this id. below: its parent folder, if it
    isn't the usual one."""
    place = below or os.environ.get("MANAPY_TRACE_ROOT") or "/dev/shm"
    return Path(place) / f"manapy-trace-{os.getuid() if user is None else user}"


def recordings_in(root: Path) -> list[Path]:
    """Return what is in a folder of recordings; nothing if there is none, or if this user may not list it."""
    try:
        return list(root.iterdir())
    except OSError:
        return []


def job_name(directory: str | Path) -> str:
    """Return the name of the trace of the job that has this job directory. Same as mpy_trace_job_name of
    lowerhalf/trace/file.c."""
    path = os.path.abspath(directory)
    return f"{os.path.basename(path)[:40]}-{path_mark(path)}"


# File in a recording of several hosts: their answers when they were asked for the time (clocks.py).
CLOCKS = "clocks.jsonl"

_NAME = re.compile(r"rank-(\d{5,})\.g(\d+)\.trace")


def rank_and_generation(path: Path) -> tuple[int, int] | None:
    """Return the rank and the generation in the name of a trace file, or None if it is no trace file."""
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2])) if match else None


def files_in(folder: Path) -> Iterator[Path]:
    """Return the trace files in a folder; none if there is no folder."""
    return (path for path in folder.glob("rank-*.trace") if rank_and_generation(path))


def file_name(rank: int, generation: int = 0) -> str:
    """Return the name of a trace file: rank-00003.g1.trace."""
    return f"rank-{rank:05d}.g{generation}.trace"
