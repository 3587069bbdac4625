"""`manapy trace top` where there is no terminal: on saved trace files, on files of running processes, and on other
files."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

import pytest
from traces import SECOND, receive, saved

from manapy import cli
from manapy.cli.watch import top_text, top_view
from manapy.trace.capture import format
from manapy.trace.capture.locate import Found
from manapy.trace.live import rank_rows
from manapy.trace.live.rank_groups import RankGroup, groups
from manapy.trace.live.rank_rows import State
from manapy.trace.model import schedule
from manapy.trace.model.events import Op


def running(root: Path, size: int = 2, records: int = 40) -> list[format.Writer]:
    """The files of a job, whose ranks are all this process."""
    folder = root / "job"
    folder.mkdir(parents=True)
    began = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    made = []
    for rank in range(size):
        writer = format.Writer(folder, rank, size, host=socket.gethostname(), pid=os.getpid(), capacity=64)
        writer.comm(1, list(range(size)), name="world")
        writer.sample(began, time.time_ns(), began)
        writer.ring()
        barriers(writer, records)
        made.append(writer)
    return made


def barriers(writer: format.Writer, count: int) -> None:
    end = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    done = int(writer.ring().head)
    for i in range(count):
        writer.put(op=Op.BARRIER, comm=0, enter=end - count + i, exit=end - count + i + 1, context=done + i + 1)


def test_a_saved_recording_is_shown_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(
        tmp_path / "saved",
        receive(1),
        {"op": Op.SEND, "peer": 0, "tag": 4, "bytes": 580, "enter": 2 * SECOND, "exit": 2 * SECOND + 1},
        end=format.RUNNING,
    )
    assert cli.main(["trace", "top", str(folder)]) == 0
    head, columns, *ranks, why = capsys.readouterr().out.splitlines()
    assert head.startswith("saved: 2 ranks, ")
    assert columns.split() == ["rank", "state", "for", "calls/s", "waited", "sent/s", "call"]
    assert ranks[0].split()[:4] == ["0", "waiting", "58.0", "s"] and ranks[0].endswith("MPI_Recv from rank 1, tag 3")
    assert ranks[1].split()[:2] == ["1", "awaited"] and ranks[1].endswith(
        "after MPI_Send to rank 0, tag 4; 1 rank waits for it"
    )
    assert why.startswith("why: rank 1 (elsewhere) is late")


def test_as_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path / "saved", receive(1), receive(0), end=format.RUNNING)
    assert cli.main(["trace", "top", str(folder), "--once", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [(row["rank"], row["state"], row["waits_for"], row["since_ns"]) for row in said["ranks"]] == [
        (0, "waiting", [1], 58 * SECOND),
        (1, "waiting", [0], 58 * SECOND),
    ]
    assert said["ranks"][0]["waited"] == pytest.approx(58 / 59)
    assert said["hosts"] == [
        {"host": "elsewhere", "ranks": 2, "states": {"waiting": 2}, "waited": pytest.approx(58 / 59), "sent_s": 0.0}
    ]
    assert said["state"] == "hung" and said["verdicts"][0]["cause"] == "deadlock" and said["schedule"] is None


def test_a_schedule_that_does_not_fit_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path / "saved", receive(1), receive(0), end=format.RUNNING)
    assert cli.main(["trace", "top", str(folder), "--schedule", "tp=2,pp=2,dp=1,micro=4"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "is for 4 ranks" in said[-2] and said[-1].startswith("why: deadlock") and "iteration" not in said[1]


def test_a_damaged_file_and_one_that_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path / "saved", receive(1), receive(0), receive(0), end=format.RUNNING)
    (folder / format.file_name(1)).write_bytes(b"not a trace")
    (folder / format.file_name(2)).unlink()
    assert cli.main(["trace", "top", str(folder)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert (
        "2 not recorded here" in said[0]
        and any("truncated" in line for line in said)
        and sum("no trace" in line for line in said[2:5]) == 2
    )


def test_calls_since_the_look_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are more calls than a ring holds, so they are counted by their numbers. Not every look computes a
    verdict."""
    monkeypatch.setenv("MANAPY_TRACE_ROOT", str(tmp_path / "traces"))
    writers = running(format.root())
    view = top_view.View(Found(format.root() / "job"), None)
    view.look()
    assert not view.over and view.verdicts and view.trace is not None
    first, verdicts = view.trace.now, view.verdicts
    for writer in writers:
        barriers(writer, 1000)
    view.look()
    rate = 1000 * SECOND / (view.trace.now - first)
    assert [row.calls_s for row in view.rows] == pytest.approx([rate, rate])
    assert view.verdicts is verdicts
    assert all(known.cpu_share >= 0 and known.process == "R" for known in view.trace.ranks.values())
    for writer in writers:
        writer.close()
    view.look()
    assert view.over and view.verdicts[0].sentence == "healthy: all 2 ranks have finalized MPI", (
        "the last verdict is one on the end"
    )


def test_a_live_job_is_looked_at_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MANAPY_TRACE_ROOT", str(tmp_path / "traces"))
    running(format.root())
    assert cli.main(["trace", "top", "job", "--json", "--every", "200ms"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [row["calls_s"] for row in said["ranks"]] == [0, 0] and [row["state"] for row in said["ranks"]] == [
        "computing",
        "computing",
    ]


def test_many_ranks_in_little_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The most conspicuous ranks are shown, and hosts."""
    calls = [receive(7) for _ in range(16)]
    calls[7] = {"op": Op.BARRIER, "context": 2, "enter": 2 * SECOND, "exit": 2 * SECOND + 1}
    view = top_view.View(
        Found(saved(tmp_path / "saved", *calls, end=format.RUNNING), live=False), schedule.parse("tp=1,pp=1,dp=16")
    )
    view.look()
    for room in (5, 9, 18):
        head, columns, *table, why = (text for text, _ in top_text.lines(view, "rank", room))
        assert " 16 ranks in 2 groups, " in head and columns.split()[:2] == ["ranks", "which"]
        assert [text.split("  ")[:2] for text in map(str.strip, table)] == [["1", "7"], ["15", "0-6, 8-15"]]
        assert table[0].endswith("; 15 ranks wait for it") and table[1].endswith("MPI_Recv from rank 7, tag 3")
        assert why.startswith("why: ")
    head, _, *table, why = (text for text, _ in top_text.lines(view, "rank", 4))
    assert "in 2 groups, 1 of them shown" in head and [text.split()[1] for text in table] == ["7"]
    shown = [text for text, _ in top_text.lines(view, "rank", 18)]
    narrow = [text for text, _ in top_text.lines(view, "rank", 18, 40)]
    why = next(i for i, text in enumerate(narrow) if text.startswith("why: "))
    assert len(narrow) <= 18 and len(narrow) > why + 2 and all(len(text) <= 40 for text in narrow[why:])
    assert " ".join(text.strip() for text in narrow[why:]) == shown[-1]
    whole = [text for text, _ in top_text.lines(view, "state", 40)]
    assert len([text for text in whole if " waiting " in text]) == 15 and whole[2].split()[0] == "7"


def test_queue_pairs_have_a_column_where_there_are_some() -> None:
    rows = [
        rank_rows.Row(0, "node0", State.COMPUTING, rdma=rank_rows.Rdma(2, 4, 2.5e6)),
        rank_rows.Row(1, "node0", State.COMPUTING),
        rank_rows.Row(2, "node0", State.COMPUTING, rdma=rank_rows.Rdma(1, 0, 0.5e6)),
    ]
    each = [RankGroup((row.rank,), (row.host,), row) for row in rows]
    shown = [text for text, _ in top_text._ranks(each, top_text._EACH, several_hosts=False)]
    assert "rdma" in shown[0].split() and "2 QPs, 2.5 MB/s, 4 in flight" in shown[1] and "QPs" not in shown[2]
    assert "rdma" not in top_text._ranks(each[1:2], top_text._EACH, several_hosts=False)[0][0].split()
    (together,) = groups(rows, 1)
    assert together.common.rdma == rank_rows.Rdma(3, 4, 3e6)


def test_many_hosts_in_little_room() -> None:
    rows = [
        rank_rows.Row(
            rank,
            f"node{rank // 2}",
            State.AWAITED if rank == 13 else State.WAITING,
            sent_s=1.0,
            waited=0.5,
        )
        for rank in range(16)
    ]
    shown = top_text._fitting(rank_rows.hosts(rows), rows, 3)
    assert [(host.host, host.ranks, host.sent_s, host.waited) for host in shown] == [
        ("node6", 2, 2.0, 0.5),
        ("node0", 2, 2.0, 0.5),
        ("6 others", 12, 12.0, 0.5),
    ]
    assert [host.host for host in top_text._fitting(rank_rows.hosts(rows), rows, 1)] == ["8 hosts"]
    assert top_text._fitting(rank_rows.hosts(rows), rows, 8) == rank_rows.hosts(rows)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["nowhere"], 1),
        (["."], 1),
        (["broken"], 1),
        ([".", "--every", "0"], 2),
        ([".", "--every", "soon"], 2),
        ([".", "--schedule", "tp=two"], 2),
        ([".", "--sort", "name"], 2),
        ([".", "--", "x"], 2),
    ],
)
def test_one_line_for_what_is_wrong(
    arguments: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / format.file_name(0)).write_bytes(b"not a trace")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MANAPY_TRACE_ROOT", str(tmp_path / "shm"))
    assert cli.main(["trace", "top", *arguments]) == code
    said = capsys.readouterr()
    assert not said.out and said.err and "Traceback" not in said.err
