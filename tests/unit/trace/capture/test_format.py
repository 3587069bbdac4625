"""manapy/trace/capture/format.py mirrors trace.h, and its file names are those of the recorder."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import layout
import numpy as np
from compiling import build_core

from manapy.trace.capture import format
from manapy.trace.model import events

NAMES = {
    "MAGIC": "MPY_TRACE_MAGIC", "VERSION": "MPY_TRACE_VERSION", "CAPACITY": "MPY_TRACE_CAPACITY",
    "RINGS": "MPY_TRACE_RINGS",
    "SAMPLES": "MPY_TRACE_SAMPLES", "NO_COMM": "MPY_TRACE_NO_COMM", "RUNNING": "MPY_TRACE_RUNNING",
    "FINALIZED": "MPY_TRACE_FINALIZED", "SAVED": "MPY_TRACE_SAVED",
}  # fmt: skip


def test_layout(tmp_path: Path, include: Path) -> None:
    assert layout.differences(tmp_path, include, "manapy/trace.h", format.STRUCTURES) == []


def test_record(tmp_path: Path, include: Path) -> None:
    names = format.RECORD.names or ()
    values = layout.c_values(
        tmp_path,
        include,
        "manapy/trace.h",
        {n: f"offsetof(mpy_trace_record_t, {n})" for n in names} | {"size": "sizeof(mpy_trace_record_t)"},
    )
    fields = format.RECORD.fields or {}
    assert values == {n: fields[n][1] for n in names} | {"size": format.RECORD.itemsize}


def test_constants(tmp_path: Path, include: Path) -> None:
    for name, value in layout.c_values(tmp_path, include, "manapy/trace.h", NAMES).items():
        assert getattr(format, name) == value, name


def test_calls_and_flags(tmp_path: Path, include: Path) -> None:
    expressions = {op.name: f"MPY_OP_{op.name}" for op in events.Op} | {
        f"f{flag.name}": f"MPY_TRACE_{flag.name}" for flag in events.Flag
    }
    expected = {op.name: int(op) for op in events.Op} | {f"f{flag.name}": int(flag) for flag in events.Flag}
    assert layout.c_values(tmp_path, include, "manapy/trace.h", expressions) == expected
    peers = {"NO_PEER": "MPY_TRACE_NO_PEER", "ANY": "MPY_TRACE_ANY", "PROC_NULL": "MPY_TRACE_NULL"}
    assert layout.c_values(tmp_path, include, "manapy/trace.h", peers) == {
        "NO_PEER": events.NO_PEER,
        "ANY": events.ANY,
        "PROC_NULL": events.PROC_NULL,
    }


def test_names_are_those_of_the_recorder(tmp_path: Path, root: Path) -> None:
    lower = root / "lowerhalf"
    text = (
        '#include "trace/file.h"\n#include <stdio.h>\nint main(int n, char **v) { char out[64]; '
        "mpy_trace_job_name(v[n - 1], out, sizeof out); puts(out); }\n"
    )
    (tmp_path / "name.c").write_text(text)
    build_core(tmp_path / "name", [tmp_path / "name.c", lower / "trace/file.c"])
    for path in ("/scratch/me/manapy-x1", "/", f"/a/{'long' * 20}"):
        name = subprocess.run([tmp_path / "name", path], check=True, capture_output=True, text=True).stdout.strip()
        assert name == format.job_name(path)
    assert format.rank_and_generation(Path(format.file_name(3, 12))) == (3, 12)
    assert format.rank_and_generation(Path("rank-3.trace")) is None


def test_the_writer_makes_what_it_says(tmp_path: Path) -> None:
    writer = format.Writer(tmp_path, 1, 4, capacity=16)
    assert writer.comm(7, [0, 2]) == 0
    assert writer.comm(8, [3, 0, 1], name="odd ones") == 1
    assert [writer.put(op=1, enter=i, exit=i + 1) for i in range(20)] == list(range(1, 21))
    writer.close()
    data = np.fromfile(writer.path, np.uint8)
    head = format.FileStruct.from_buffer_copy(data[: format.PAGE].tobytes())
    assert (head.magic, head.rank, head.size, head.comms, head.rings, head.end) == (
        format.MAGIC,
        1,
        4,
        2,
        1,
        format.FINALIZED,
    )
    entry = format.CommStruct.from_buffer_copy(
        data[head.comms_offset + ctypes.sizeof(format.CommStruct) :][:64].tobytes()
    )
    assert (entry.members, entry.stride, entry.name) == (3, 0, b"odd ones")
    records = data[head.rings_offset + format.PAGE :].view(format.RECORD)
    assert sorted(records["seq"]) == list(range(5, 21))


def test_names_are_fit_for_a_terminal() -> None:
    assert format.text("größe 1".encode()) == "größe 1"
    assert (
        format.text(b"a\x1b[2J\nb\x9b\xff")
        == "a\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}b" + 2 * "\N{REPLACEMENT CHARACTER}"
    )
