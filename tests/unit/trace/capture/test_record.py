"""Rings kept on disk: the newest records within the limit, calls that were open and then returned, new generations, and
missed records."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manapy.core.errors import UsageError
from manapy.core.proc import START, stat_fields
from manapy.trace.capture import clocks, disk_copy, format, rings
from manapy.trace.host import process_state
from manapy.trace.model.events import OPEN, Op

MB = 10**6


def writer(folder: Path, rank: int = 0, size: int = 1, **more: Any) -> format.Writer:
    folder.mkdir(exist_ok=True)
    made = format.Writer(folder, rank, size, capacity=4096, **more)
    for i in range(2):
        made.sample(10**9 * i, 10**18 + 10**9 * i, 10**9 * i)
    made.comm(77, list(range(size)), name="world")
    made.ring()
    return made


def send(to: format.Writer, number: int, exit: int = 1) -> int:
    return to.put(op=Op.SEND, comm=0, peer=0, tag=number, enter=1000 * number, exit=1000 * number + exit if exit else 0)


def tags(folder: Path) -> list[int]:
    return rings.read(folder).events["tag"].tolist()


def test_all_that_is_recorded_is_kept(tmp_path: Path) -> None:
    source = writer(tmp_path / "job")
    recording = disk_copy.Recording(tmp_path / "job", tmp_path / "out", MB)
    for i in range(10):
        for j in range(1000):
            send(source, 1000 * i + j + 1)
        recording.poll()
    assert recording.copied == 10000 and recording.lost == 0
    kept = tags(tmp_path / "out")
    assert kept == list(range(1, 10001))[-len(kept) :]
    assert len(kept) > 4096, "more than the ring itself holds"
    assert rings.read(tmp_path / "out").comms[0].name == "world"


def test_the_limit_holds(tmp_path: Path) -> None:
    sources = [writer(tmp_path / "job", rank, 4) for rank in range(4)]
    recording = disk_copy.Recording(tmp_path / "job", tmp_path / "out", MB)
    for _ in range(5):
        for source in sources:
            for j in range(4000):
                send(source, j + 1)
        recording.poll()
    used = sum(path.stat().st_blocks * 512 for path in (tmp_path / "out").iterdir())
    assert 0.1 * MB < used < MB + 4 * 16384
    with pytest.raises(UsageError, match="4 ranks need at least 1 MB"):
        disk_copy.Recording(tmp_path / "job", tmp_path / "small", MB // 4).poll()


def test_an_open_call_that_returns(tmp_path: Path) -> None:
    source = writer(tmp_path / "job")
    seq = send(source, 1, exit=0)
    recording = disk_copy.Recording(tmp_path / "job", tmp_path / "out", MB)
    recording.poll()
    assert rings.read(tmp_path / "out").events["exit"].tolist() == [OPEN]
    source.records()["exit"][seq - 1] = 5000
    recording.poll()
    assert (rings.read(tmp_path / "out").events["exit"] != OPEN).all()


def test_what_was_missed_is_said(tmp_path: Path) -> None:
    source = writer(tmp_path / "job")
    recording = disk_copy.Recording(tmp_path / "job", tmp_path / "out", 100 * MB)
    send(source, 1)
    recording.poll()
    for i in range(5000):
        send(source, i + 2)
    recording.poll()
    assert recording.lost == 5000 - 4096
    assert rings.read(tmp_path / "out").ranks[0].lost >= 5000 - 4096


def test_a_new_generation_replaces_the_old_one(tmp_path: Path) -> None:
    old = writer(tmp_path / "job")
    send(old, 1)
    recording = disk_copy.Recording(tmp_path / "job", tmp_path / "out", MB)
    recording.poll()
    old.close(format.SAVED)
    new = writer(tmp_path / "job", generation=1)
    send(new, 2)
    recording.poll()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["rank-00000.g1.trace"]
    assert not recording.over
    new.close()
    recording.poll()
    assert recording.over


def test_threads_without_room_are_counted(tmp_path: Path) -> None:
    source = writer(tmp_path / "job", rings=4)
    recording = disk_copy.Recording(tmp_path / "job", tmp_path / "out", MB)
    recording.poll()
    for i in range(1, 4):
        source.ring(i)
        for _ in range(10):
            source.put(i, op=Op.BARRIER, comm=0, enter=1, exit=2)
    recording.poll()
    head = format.FileStruct.from_buffer_copy(
        np.fromfile(tmp_path / "out" / "rank-00000.g0.trace", np.uint8, count=4096).tobytes()
    )
    assert (head.rings, head.unrecorded) == (2, 20)


class Asked:
    """Other hosts that were asked for the time. Their files are in the same folder."""

    mirrors: list[rings.Mirror] = []
    problems: list[str] = []

    def __init__(self, meetings: list[clocks.Meeting]) -> None:
        self.meetings = meetings

    def poll(self) -> None: ...

    def gone(self) -> frozenset[int]:
        return frozenset()


def test_what_hosts_answered_when_asked_for_the_time_is_kept(tmp_path: Path) -> None:
    sources = [writer(tmp_path / "job", rank, 2, host=f"node{rank}") for rank in range(2)]
    for source in sources:
        send(source, 1)
    answers = [clocks.Meeting(f"node{rank}", clocks.Sample(5, 10**18, 5), 7, 2000) for rank in range(2)]
    recording = disk_copy.Recording(tmp_path / "job", tmp_path / "out", MB, Asked(answers[:1]))
    recording.poll()
    assert rings.read(tmp_path / "out").ranks[1].uncertainty_ns == clocks.UNSURE
    recording.others = Asked(answers)
    recording.poll()
    recording.poll()
    assert (tmp_path / "out" / format.CLOCKS).read_text().count("\n") == 2
    with (tmp_path / "out" / format.CLOCKS).open("a") as file:
        file.write('["node0", 5')  # incomplete line
    trace = rings.read(tmp_path / "out")
    assert 2000 <= trace.ranks[1].uncertainty_ns < 10_000 + 2 * clocks.SAMPLE_ERROR and not trace.ranks[1].problems


# ---- bad files, a full disk, Ctrl-C


def test_files_that_are_none_cost_their_ranks_only(tmp_path: Path) -> None:
    sources = [writer(tmp_path / "job", rank, 4) for rank in range(3)]
    for source in sources:
        send(source, 1)
    sources[1].head.version = 9
    cut = int(sources[2].head.rings_offset) + format.PAGE + 20
    sources[2].path.write_bytes(sources[2].path.read_bytes()[:cut])
    (tmp_path / "job" / format.file_name(3)).write_bytes(b"not a trace")
    recording = disk_copy.Recording(tmp_path / "job", tmp_path / "out", MB)
    recording.poll()
    recording.poll()
    wrong = ["a trace of another version", f"truncated: {cut} of", "truncated: 11"]
    assert all(says in text for says, text in zip(wrong, recording.problems, strict=True))
    kept = rings.read(tmp_path / "out")
    assert sorted(kept.ranks) == [0, 2] and kept.events["rank"].tolist() == [0] and kept.ranks[2].lost == 1
    for path in (tmp_path / "job").iterdir():
        path.write_bytes(b"not a trace")
    with pytest.raises(rings.NoTraceError, match="truncated"):
        disk_copy.Recording(tmp_path / "job", tmp_path / "none", MB).poll()


@pytest.fixture
def living(tmp_path: Path) -> format.Writer:
    """Return the file of a running process: this one."""
    root = tmp_path / f"manapy-trace-{os.getuid()}"
    root.mkdir()
    start = int(stat_fields(Path("/proc/self"))[START])
    assert process_state.look(os.getpid(), start).state != process_state.DEAD
    return writer(root / "job", pid=os.getpid(), pid_start=start, host=socket.gethostname())


def test_a_copy_is_of_its_moment_though_the_process_goes_on(tmp_path: Path, living: format.Writer) -> None:
    send(living, 1)
    recording = disk_copy.Recording(living.path.parent, tmp_path / "out", MB)
    recording.poll()
    first = rings.read(tmp_path / "out").now
    assert rings.read(tmp_path / "out").now == first
    assert not recording.over
    recording.poll()
    assert rings.read(tmp_path / "out").now > first


def manapy(tmp_path: Path, *arguments: str | Path, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = [
        *before,
        sys.executable,
        "-c",
        "import sys; from manapy import cli; sys.exit(cli.main())",
        *map(str, arguments),
    ]
    return subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "MANAPY_TRACE_ROOT": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_full_disk_ends_it_with_one_line(tmp_path: Path, living: format.Writer) -> None:
    own = ("unshare", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs -o size=128k none disk && "$@"', "sh")
    (tmp_path / "disk").mkdir()
    if subprocess.run([*own[:-2], "mount -t tmpfs none disk", "sh"], cwd=tmp_path, capture_output=True).returncode:
        pytest.skip("file systems can't be mounted here")
    for i in range(4000):
        send(living, i + 1)
    process = manapy(tmp_path, "trace", "record", "job", "--out", "disk/kept", before=own)
    said, complaint = process.communicate(timeout=60)
    assert process.returncode == 1
    assert (
        complaint == "manapy: disk/kept/rank-00000.g0.trace: No space left on device\n"
        and "records of 1 ranks in disk/kept" in said
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_is_asked_to_end_keeps_what_there_is(tmp_path: Path, living: format.Writer, number: signal.Signals) -> None:
    send(living, 1)
    process = manapy(tmp_path, "trace", "record", "job", "--out", "kept", "--every", "1h")
    path, head = tmp_path / "kept" / living.path.name, ctypes.sizeof(format.FileStruct)
    while (
        not path.exists()
        or len(begun := path.read_bytes()[:head]) < head
        or format.FileStruct.from_buffer_copy(begun).magic == 0
    ):
        assert process.poll() is None
    send(living, 2)
    process.send_signal(number)
    said, complaint = process.communicate(timeout=60)
    assert (process.returncode, complaint) == (0, "") and said == "2 records of 1 ranks in kept\n"
    assert tags(tmp_path / "kept") == [1, 2]
