"""Recordings of other hosts are copied while they grow, dropped when a host is lost, and tried again. A "host" here is
a process of this host with its own trace root."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pytest

from manapy.core.proc import START, stat_fields
from manapy.trace.capture import collect, format, ring_file, rings
from manapy.trace.host.runqueue import Sampler
from manapy.trace.model.events import OPEN, Op

HERE = socket.gethostname()


def writer(folder: Path, rank: int, generation: int = 0, capacity: int = 64) -> format.Writer:
    """Return a writer for a running process: this one."""
    folder.mkdir(parents=True, exist_ok=True)
    start = int(stat_fields(Path("/proc/self"))[START])
    made = format.Writer(
        folder, rank, 2, generation=generation, host=HERE, capacity=capacity, pid=os.getpid(), pid_start=start
    )
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    for i in range(2):
        made.sample(now - 10**9 + i, 10**18 + i, now - 10**9 + i)  # ticks are ns
    made.comm(77, [0, 1], name="world")
    made.ring()
    return made


def put(to: format.Writer, tag: int, exit: int = 1) -> int:
    return to.put(
        op=Op.SEND,
        comm=0,
        peer=0,
        tag=tag,
        enter=int(to.head.sample[0].ticks) + 1000 * tag,
        exit=exit and int(to.head.sample[0].ticks) + 1000 * tag + exit,
    )


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which the other host keeps this job's files."""
    monkeypatch.setenv("MANAPY_TRACE_ROOT", str(tmp_path))
    return format.root() / "job"


@pytest.fixture
def shell(tmp_path: Path) -> list[str]:
    """Return a remote shell that stays on this host. It writes its process id to a file."""
    path = tmp_path / "shell"
    path.write_text(f'#!/bin/sh\necho $$ > "{tmp_path}/$1.pid"\nshift\nexec "$@"\n')
    path.chmod(0o700)
    return [str(path)]


def tags(reader: rings.Reader) -> list[int]:
    reader.poll()
    return reader.trace().events["tag"].tolist()


def test_copies_grow_and_rings_go_round(tmp_path: Path, there: Path, shell: list[str]) -> None:
    source = writer(there, 1)
    for tag in range(1, 6):
        put(source, tag)
    seq = put(source, 6, exit=0)
    hosts = collect.Hosts(["a"], "job", shell)
    reader = rings.Reader(tmp_path / "nothing", others=hosts)
    assert tags(reader) == [1, 2, 3, 4, 5, 6]
    trace = reader.trace()
    assert (
        trace.events["exit"][-1] == OPEN
        and trace.ranks[1].process in ("R", "S")
        and trace.comms[0].name == "world"
        and not trace.problems
    )
    source.records()[seq - 1 :][:1]["exit"] = int(source.head.sample[0].ticks) + 6001
    another = source.comm(78, [1, 0])
    source.put(op=Op.SEND, comm=another, peer=0, tag=7, enter=int(source.head.sample[0].ticks) + 7000)
    assert tags(reader) == [1, 2, 3, 4, 5, 6, 7]
    assert reader.trace().events["exit"][5] != OPEN and reader.trace().events["peer"][-1] == 1
    for tag in range(8, 108):
        put(source, tag)
    assert tags(reader)[-64:] == list(range(44, 108)) and reader.trace().ranks[1].lost == 36


@pytest.mark.parametrize(("total", "left"), [(None, 3000), (4000, 2000), (100, ring_file.FEWEST)])
def test_only_the_newest_records_are_copied_at_once(
    tmp_path: Path, there: Path, shell: list[str], total: int | None, left: int
) -> None:
    """Each of the two ranks has an equal share of the total, and FEWEST in any case. The others count as lost."""
    source = writer(there, 1, capacity=4096)
    records = np.zeros(3000, format.RECORD)
    records["op"], records["tag"], records["peer"] = Op.SEND, np.arange(3000), 0
    records["enter"] = int(source.head.sample[0].ticks) + 1000 * np.arange(3000)
    records["exit"] = records["enter"] + 1
    source.extend(records)
    hosts = collect.Hosts(["a"], "job", shell)
    hosts.total = total
    reader = rings.Reader(tmp_path / "nothing", others=hosts)
    assert tags(reader) == list(range(3000 - left, 3000))
    assert reader.trace().ranks[1].lost == 3000 - left
    put(source, 3000)
    assert tags(reader)[-2:] == [2999, 3000], "and then what is new"


def test_waits_for_a_processor_are_sampled_there(tmp_path: Path, there: Path, shell: list[str]) -> None:
    put(writer(there, 1), 1)
    hosts = collect.Hosts(["a"], "job", shell)
    hosts.sample = True
    reader = rings.Reader(tmp_path / "nothing", others=hosts)
    deadline = time.monotonic() + 60
    while True:
        reader.poll()
        trace = reader.trace()
        moments, sums = trace.waits.get(1, (np.zeros(0), np.zeros(0)))
        if len(moments) >= 10:  # it samples by itself: there are more samples than requests
            break
        assert time.monotonic() < deadline, moments
    assert (np.diff(moments) > 0).all() and (np.diff(sums) >= 0).all() and moments[-1] <= trace.now
    waited = Sampler().delays(trace).waited(1, int(moments[0]), int(moments[-1]))
    assert waited == min(sums[-1] - sums[0], moments[-1] - moments[0])


def test_a_file_that_a_restart_replaced_is_copied_anew(tmp_path: Path, there: Path, shell: list[str]) -> None:
    old = writer(there, 1)
    put(old, 1)
    hosts = collect.Hosts(["a"], "job", shell)
    assert tags(rings.Reader(tmp_path / "nothing", others=hosts)) == [1]
    old.path.unlink()
    put(writer(there, 1), 2)
    assert tags(rings.Reader(tmp_path / "nothing", others=hosts)) == [2]


def test_a_host_that_is_lost_takes_its_ranks_along_until_it_is_back(
    tmp_path: Path, there: Path, shell: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = writer(tmp_path / "mine", 0)
    put(mine, 1)
    put(writer(there, 1), 2)
    hosts = collect.Hosts(["a"], "job", shell)
    reader = rings.Reader(tmp_path / "mine", others=hosts)
    assert tags(reader) == [1, 2]
    os.kill(int((tmp_path / "a.pid").read_text()), signal.SIGKILL)
    assert tags(reader) == [1] and list(reader.trace().ranks) == [0]
    assert "a cannot be reached" in reader.trace().problems[0]
    monkeypatch.setattr(collect, "RETRY", 0.0)
    assert tags(reader) == [1, 2] and not reader.trace().problems


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo no such host >&2; exit 255", "no such host"),
        ("exit 3", "ended with 3"),
        ("read x; echo '{\"bytes\": 0}'; read x", "an answer without 'format'"),
        ("read x; exec sleep 99", "no answer within"),
        ("read x; echo hello; read x", "Expecting value"),
        ('read x; echo \'{"bytes": 0, "format": 0, "version": 0}\'; read x', "another version"),
    ],
)
def test_what_is_wrong_with_a_host_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str
) -> None:
    path = tmp_path / "shell"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    if "within" in says:
        monkeypatch.setattr(collect, "PATIENCE", 0.5)
    reader = rings.Reader(tmp_path, others=collect.Hosts(["a"], "job", [str(path)]))
    reader.poll()
    with pytest.raises(rings.NoTraceError, match=f"a cannot be reached; nothing is known of its ranks: .*{says}"):
        reader.trace()


def test_a_name_that_would_be_an_option_of_the_remote_shell_is_none(
    tmp_path: Path, there: Path, shell: list[str]
) -> None:
    """The name may come from another user's job.json, and ssh would run the command that follows -oProxyCommand."""
    put(writer(there, 1), 1)
    hosts = collect.Hosts(["-oProxyCommand=x", "a"], "job", shell)
    assert tags(rings.Reader(tmp_path / "nothing", others=hosts)) == [1]
    assert "-oProxyCommand=x cannot be reached; nothing is known of its ranks: not a host name" in hosts.problems
    assert not list(tmp_path.glob("-o*"))


def test_nothing_else_than_trace_files_is_written(tmp_path: Path) -> None:
    """Only trace files are written, whatever the other side sends."""
    news = {
        "bytes": 1,
        "monotonic": 0,
        "alive": True,
        "ranks": [],
        "files": [{"name": "../evil", "inode": 1, "size": 1, "patches": [[0, 1]]}],
    }
    opened = {"bytes": 0, "format": collect.FORMAT, "version": format.VERSION, "host": "a"}
    path = tmp_path / "shell"
    cases = (
        f"*open*) echo '{json.dumps(opened)}';; *clocks*) echo '{json.dumps({'bytes': 0, 'clocks': None})}';; *) "
        f"echo '{json.dumps(news)}'; printf x;;"
    )
    path.write_text(f'#!/bin/sh\nwhile read -r x; do case "$x" in {cases} esac; done\n')
    path.chmod(0o700)
    hosts = collect.Hosts(["a"], "job", [str(path)])
    hosts.poll()
    assert not hosts.mirrors and "other than a trace file: '../evil'" in hosts.problems[0]


def test_files_of_other_hosts_in_a_shared_folder_are_left_to_them(there: Path) -> None:
    there.mkdir(parents=True)
    format.Writer(there, 0, 2, host="elsewhere", capacity=64)
    writer(there, 1)
    answers = io.BytesIO()
    requests = [
        {"do": "open", "job": "job", "root": str(there.parent.parent), "keep": 10, "total": None, "sample": False},
        {"do": "news"},
    ]
    collect.serve(io.BytesIO(b"".join(json.dumps(request).encode() + b"\n" for request in requests)), answers)
    said = json.loads(answers.getvalue().splitlines()[1])
    assert [file["name"] for file in said["files"]] == [format.file_name(1)]
