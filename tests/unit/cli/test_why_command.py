"""`manapy why` and `manapy trace report` on folders of saved trace files, and on other folders."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from manapy import cli
from manapy.ckpt.store import job
from manapy.cli.hidden import watch as hidden_watch
from manapy.cli.shared.leaving import Leaving
from manapy.cli.watch import diagnosis, looks, why
from manapy.cli.watch.looks import LookResult
from manapy.core.proc import START, stat_fields
from manapy.trace.capture import format, layout, rings
from manapy.trace.capture.locate import Found
from manapy.trace.capture.tracefile import TraceFile
from manapy.trace.host import stacks
from manapy.trace.host.runqueue import Sampler
from manapy.trace.live import diagnose
from manapy.trace.live.standing import StandingVerdicts, WatchUpdate
from manapy.trace.model.events import Op, Trace
from manapy.trace.model.verdict import Cause, State, Verdict
from manapy.trace.report import report
from traces import SECOND, receive, saved


def test_a_deadlock_in_saved_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path / "saved", receive(1), receive(0), end=format.RUNNING)
    assert cli.main(["why", str(folder)]) == 4
    said = capsys.readouterr().out.splitlines()
    assert (
        said[0]
        == "deadlock of ranks 0, 1: rank 0 waits in MPI_Recv from rank 1, tag 3; rank 1 waits in MPI_Recv from rank "
        "0, tag 3"
    )
    assert any(line.startswith("  cause: deadlock") for line in said) and said[-1].startswith("  next: ")


def test_as_data_with_the_table_of_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = {"op": Op.FINALIZE, "enter": 2 * SECOND, "exit": 2 * SECOND + 1}
    folder = saved(tmp_path / "saved", done, done)
    assert cli.main(["why", str(folder), "--json", "--waits"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["state"] == "healthy" and said["verdicts"][0]["state"] == "healthy"
    assert [(row["rank"], row["call"], row["calls"]) for row in said["waits"] if row["call"] == "MPI_Barrier"] == [
        (0, "MPI_Barrier", 1),
        (1, "MPI_Barrier", 1),
    ]
    figures = said["efficiency"]
    assert figures["seconds"] == pytest.approx(1) and figures["parallel"] == pytest.approx(1)
    assert cli.main(["why", str(folder), "--waits"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("parallel efficiency 100% = load balance 100% × communication efficiency 100%, in 1.0 s")


def test_recordings_of_before_a_restart_prove_nothing(tmp_path: Path) -> None:
    """The ranks are on another host now. What has happened there is not known yet."""
    folder = saved(tmp_path / "saved", receive(1), receive(0), end=format.RUNNING)
    directory = tmp_path / "job"
    directory.mkdir()
    trace = rings.read(folder)

    def verdict(**record: object) -> Verdict:
        job.write(
            directory,
            {"format": job.FORMAT, "id": "job", "host": "", "port": 0, "ranks": 2, "argv": ["prog"], **record},
        )
        (found,) = diagnosis.judge(Found(folder, job.read(directory)), trace, None, live=False)
        return found

    assert verdict(state="running", started=0).state is State.HUNG
    said = verdict(state="running", started=0, generation=1)
    assert said.state is State.UNKNOWN and "restarted, and of 2 ranks nothing that came later" in said.sentence


def test_a_rank_that_is_not_recorded_since_a_restart_is_left_out(tmp_path: Path) -> None:
    """There was no room for its new file, and its old one is left. The other ranks are judged."""
    folder = saved(tmp_path / "saved", receive(1), receive(0), receive(1), end=format.RUNNING)
    directory = tmp_path / "job"
    directory.mkdir()
    record = {"id": "job", "host": "", "port": 0, "ranks": 3, "argv": ["prog"], "state": "running", "started": 0}
    job.write(directory, {"format": job.FORMAT, **record, "generation": 1})

    def look(now: int) -> tuple[Trace, Verdict]:
        for rank in (0, 1):
            writer = format.Writer(folder, rank, 3, host="elsewhere", generation=1, capacity=64)
            writer.head.past[0] = 1  # of two calls: the receive is made again
            world = writer.comm(1, [0, 1, 2], name="world")
            writer.ring()
            writer.put(op=Op.RECV, comm=world, peer=1 - rank, tag=3, enter=60 * SECOND)
            writer.sample(0, 0, 0)
            writer.sample(now, now, now)
            writer.close(format.RUNNING)
        trace, (found,) = diagnosis.look(Found(folder, job.read(directory)), None)
        return trace, found

    trace, said = look(61 * SECOND)
    assert said.state is State.UNKNOWN and "of 1 rank nothing that came later" in said.sentence
    trace, said = look(90 * SECOND)
    assert (said.state, said.cause) == (State.HUNG, Cause.DEADLOCK) and said.sentence.startswith("deadlock of ranks 0")
    assert set(trace.ranks) == {0, 1}
    assert trace.problems == ["rank 2 is not recorded since the restart: see the job's output"]


def test_a_rank_whose_file_is_damaged_is_not_accused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path / "saved", receive(1), receive(0), end=format.RUNNING)
    (folder / format.file_name(1)).write_bytes(b"not a trace")
    assert cli.main(["why", str(folder)]) == 1
    said = capsys.readouterr()
    assert "rank 1, which has no trace" in said.out and "truncated" in said.err


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path / "saved", receive(1), receive(0), end=format.RUNNING)
    (folder / format.file_name(1)).unlink()
    os.mkfifo(folder / format.file_name(1))
    os.mkfifo(folder / format.CLOCKS)
    assert cli.main(["why", str(folder)]) == 1
    said = capsys.readouterr()
    assert (
        "rank 1, which has no trace" in said.out
        and said.err == f"{folder / format.file_name(1)}: not a trace of manapy\n"
    )


def test_a_job_that_has_ended_without_a_word_is_not_called_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MANAPY_TRACE_ROOT", str(tmp_path))
    folder = format.root() / "job"
    folder.parent.mkdir()
    saved(
        folder,
        receive(1),
        {"op": Op.BARRIER, "enter": 3 * SECOND, "exit": 3 * SECOND + 1},
        end=format.RUNNING,
        host=socket.gethostname(),
        pid=2**22 + 1,
    )
    assert cli.main(["why", "job", "--watch"]) == 1
    assert capsys.readouterr().out.startswith("the job's processes are gone, and their records prove no fault\n")


def test_ranks_that_end_well_while_they_are_looked_at_are_not_called_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MANAPY_TRACE_ROOT", str(tmp_path))
    child = subprocess.Popen(["sleep", "1000"])
    folder = format.root() / "job"
    folder.parent.mkdir()
    calls = [{"op": Op.BARRIER, "enter": 3 * SECOND, "exit": 3 * SECOND + 1}] * 2
    saved(folder, *calls, end=format.RUNNING, host=socket.gethostname(), pid=child.pid)

    class Ends(Sampler):
        """The processes finalize MPI and end after the records are read and before the processes are looked at."""

        def watch(self, trace: Trace) -> None:
            super().watch(trace)
            for path in folder.iterdir():
                with path.open("r+b") as file:
                    file.seek(layout.FileStruct.end.offset)
                    file.write(format.FINALIZED.to_bytes(4, "little"))
            child.kill()
            child.wait()

    try:
        _, verdicts = why.look(Found(folder), None, sampler=Ends())
    finally:
        child.kill()
        child.wait()
    assert [verdict.sentence for verdict in verdicts] == ["healthy: all 2 ranks have finalized MPI"]


def test_processes_in_a_container_are_not_called_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has this host's name and /dev/shm. The numbers of its processes are other ones here."""
    monkeypatch.setenv("MANAPY_TRACE_ROOT", str(tmp_path))
    folder = format.root() / "job"
    folder.parent.mkdir()
    calls = [{"op": Op.BARRIER, "enter": 3 * SECOND, "exit": 3 * SECOND + 1}] * 2
    saved(folder, *calls, end=format.RUNNING, host=socket.gethostname(), pid=2**22 + 1, pid_start=1)
    for path in folder.iterdir():
        with path.open("r+b") as file:
            file.seek(layout.FileStruct.pid_space.offset)
            file.write((5).to_bytes(8, "little"))
    found = Found(folder)
    trace, verdicts = diagnosis.look(found, None)
    assert {known.pid for known in trace.ranks.values()} == {0} and not looks._over(found, trace)
    assert all(verdict.cause is not Cause.DEAD and verdict.state is not State.HUNG for verdict in verdicts), verdicts
    assert TraceFile(next(folder.iterdir())).alive


def test_which_recording_it_is_if_nobody_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MANAPY_TRACE_ROOT", str(tmp_path / "shm"))
    monkeypatch.chdir(tmp_path)
    format.root().mkdir(parents=True)
    done = {"op": Op.FINALIZE, "enter": 2 * SECOND, "exit": 2 * SECOND + 1}
    saved(format.root() / "first", done, done)
    assert cli.main(["why"]) == 0
    assert capsys.readouterr().err == "first: the only recording of this user here\n"
    saved(format.root() / "second", done, done)
    assert cli.main(["why"]) == 1
    assert "2 recordings are in" in (complaint := capsys.readouterr().err) and "name one: first, second" in complaint
    start = int(stat_fields(Path("/proc/self"))[START])
    saved(
        format.root() / "third",
        done,
        done,
        end=format.RUNNING,
        host=socket.gethostname(),
        pid=os.getpid(),
        pid_start=start,
    )
    cli.main(["why"])
    assert capsys.readouterr().err.startswith("third: the only recording of this user here of a job that runs\n")


def test_problems_are_data_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path / "saved", receive(1), receive(0), end=format.RUNNING)
    saved(tmp_path / "other", *[receive(1)] * 5)
    (tmp_path / "other" / format.file_name(4)).rename(folder / format.file_name(4))
    assert cli.main(["why", str(folder), "--json"]) == 4
    said = json.loads(capsys.readouterr().out)
    assert [text.partition(": ")[2] for text in said["problems"]] == [
        "belongs to another job (other, 5 ranks) and is ignored"
    ]
    assert said["verdicts"][0]["cause"] == "deadlock"


def test_a_page_of_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path / "saved", receive(1), receive(0), end=format.RUNNING)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["trace", "report", str(folder)]) == 0
    sentence, written = capsys.readouterr().out.splitlines()
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"<b>{sentence}</b>" in page and sentence.startswith("deadlock of ranks 0, 1")
    assert (
        written.startswith("4 records of 2 ranks in report.html (") and "<td>MPI_Recv from rank 0, tag 3</td>" in page
    )
    assert (
        cli.main(["trace", "report", str(folder), "--schedule", "tp=4,pp=2,dp=1,micro=2", "--out", "other.html"]) == 0
    )
    assert "is for 8 ranks, but the trace has 2" in (tmp_path / "other.html").read_text(encoding="utf-8")
    assert cli.main(["trace", "report", str(folder), "--out", "nowhere/report.html"]) == 1
    said = capsys.readouterr().err
    assert "nowhere" in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["nowhere"], 1),
        (["."], 1),
        (["broken"], 1),
        ([".", "--run", "true"], 2),
        ([".", "--on-hang", "kill"], 2),
        ([".", "--watch", "--every", "0"], 2),
        ([".", "--schedule", "tp=two"], 2),
        ([".", "--on-hang", "dance"], 2),
        (["saved", "--watch"], 2),
    ],
)
def test_one_line_for_what_is_wrong(
    arguments: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path / "saved", receive(1), receive(0))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / format.file_name(0)).write_bytes(b"not a trace")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MANAPY_TRACE_ROOT", str(tmp_path / "shm"))
    assert cli.main(["why", *arguments]) == code
    said = capsys.readouterr()
    assert not said.out and said.err and "Traceback" not in said.err


def test_who_finalizes_and_ends_after_the_recording_was_read_is_not_called_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MANAPY_TRACE_ROOT", str(tmp_path))
    folder = format.root() / "job"
    folder.parent.mkdir()
    child = subprocess.Popen(["sleep", "1000"])
    done = {"op": Op.FINALIZE, "enter": 2 * SECOND, "exit": 2 * SECOND + 1}
    saved(folder, done, done, end=format.RUNNING, host=socket.gethostname(), pid=child.pid)
    later = saved(tmp_path / "later", done, done, end=format.FINALIZED, host=socket.gethostname(), pid=child.pid)
    read = rings.read

    def read_before_the_end(*arguments: Any, **named: Any) -> Trace:
        trace = read(*arguments, **named)
        if child.poll() is None:
            shutil.copytree(later, folder, dirs_exist_ok=True)
            child.kill()
            child.wait()
        return trace

    monkeypatch.setattr(rings, "read", read_before_the_end)
    assert cli.main(["why", "job"]) == 0
    assert capsys.readouterr().out.startswith("healthy: all 2 ranks have finalized MPI")


def watched_without_result(monkeypatch: pytest.MonkeyPatch, folder: Path, looked: list[bool]) -> Iterator[LookResult]:
    """The results of a watch whose looks succeed or not, in this order."""
    real = diagnosis.look

    def look(*arguments: Any, **named: Any) -> tuple[Trace, list[Verdict]]:
        if not looked.pop(0):
            raise rings.NoTraceError("node2 cannot be reached")
        return real(*arguments, **named)

    monkeypatch.setattr(looks, "look", look)
    monkeypatch.setattr(looks, "_over", lambda found, trace: not looked[1:])
    return looks.looks(Found(folder), Sampler(), Leaving(), StandingVerdicts(0.0), 0.01)


def test_a_look_at_hosts_of_which_none_answers_has_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path / "saved", receive(1), receive(0))
    assert len(list(watched_without_result(monkeypatch, folder, [True, False, False, True, True]))) == 3
    with pytest.raises(rings.NoTraceError):
        list(watched_without_result(monkeypatch, folder, [False, True]))
    monkeypatch.setattr(looks, "BLIND", 0.0)
    with pytest.raises(rings.NoTraceError):
        list(watched_without_result(monkeypatch, folder, [True, False, True]))


def test_a_fault_of_the_report_is_said_and_ends_no_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path / "saved", receive(1), receive(0))
    trace, verdicts = diagnosis.look(Found(folder, live=False), None)
    seen = LookResult(trace, verdicts, WatchUpdate(), False)

    def page(*arguments: object) -> str:
        raise MemoryError("no room")

    monkeypatch.setattr(report, "page", page)
    assert hidden_watch._keep(Found(folder), seen, tmp_path / "evidence") == "MemoryError: no room"
    assert (tmp_path / "evidence" / "verdicts.json").exists()


def test_a_watch_takes_the_stack_of_a_suspect_once_and_when_it_acts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of py-spy at each look would take a processor while a rank is late."""
    start = int(stat_fields(Path("/proc/self"))[START])
    calls = [receive(1), {"op": Op.BARRIER, "enter": 3 * SECOND, "exit": 3 * SECOND + 1}]
    folder = saved(
        tmp_path / "live", *calls, end=format.RUNNING, host=socket.gethostname(), pid=os.getpid(), pid_start=start
    )
    late = Verdict(State.LATE, "rank 1 is late", Cause.COMPUTE, 1, call="MPI_Send", since_ns=5, confidence=0.95)
    monkeypatch.setattr(diagnose, "diagnose", lambda *arguments, **named: [late])
    monkeypatch.setattr(looks, "_over", lambda found, trace: False)
    taken: list[int] = []
    monkeypatch.setattr(stacks, "of", lambda pid, start: taken.append(pid) or [f"stack {len(taken)}"])
    leaving, seen = Leaving(), []
    for one in looks.looks(Found(folder), Sampler(), leaving, StandingVerdicts(0.0), 0.0):
        seen.append(one)
        leaving.asked = len(seen) == 6
    assert [one.verdicts[0].evidence for one in seen] == [("stack 1",)] * 2 + [("stack 2",)] * 4
    assert taken == [os.getpid()] * 2
    assert [len(one.news.act) for one in seen] == [0, 0, 1, 0, 0, 0]
    assert seen[0].news.new[0].evidence == ("stack 1",) and seen[2].news.act[0].evidence == ("stack 2",)


def test_what_processes_of_a_watch_use_counts() -> None:
    before = looks._used()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    assert looks._used() - before >= 0.3
