"""The output of status and history."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from pathlib import Path

import pytest
from histories import History
from manapy import cli
from manapy.chain import record, timing, view
from manapy.chain.lock import Lock
from manapy.cli.watch import status_watch
from manapy.core.errors import ManapyError


@pytest.fixture
def story(history: History) -> History:
    """Three attempts: lost, crashed, left; the fourth one runs."""
    history.begin(id="17", nodes=["a", "b"], deadline=time.time() + 3600)
    step = history.chain.dir / "step-001"
    history.step(step, argv=["solver", "-x"], ranks=4)
    history.checkpoint(2.0)
    history.end("lost", reason="it ended without a record")
    history.begin(id="17", nodes=["b"], deadline=time.time() + 7200)
    history.step(step, argv=["solver", "-x"], ranks=4, verdict="resume", path="/x/ckpt-000001")
    history.note("failed", cause="interval", reason="No space left on device", seconds=0.1)
    history.end("crashed", reason="rank 1 died on b")
    history.begin(id="18", nodes=["b"], deadline=time.time() + 7200)
    history.checkpoint(4.0, "ckpt-000002")
    history.end("left", reason="the allocation ends")
    history.begin(id="19", nodes=["c"], deadline=time.time() + 1000)
    return history


def test_rows(story: History) -> None:
    rows = view.attempts(story.chain)
    assert [(r.number, r.id, r.nodes, r.how) for r in rows] == [
        (1, "17", ["a", "b"], "lost"),
        (2, "17", ["b"], "crashed"),
        (3, "18", ["b"], "left"),
        (4, "19", ["c"], "running"),
    ]
    assert [(len(r.checkpoints), len(r.failed), r.resumed) for r in rows] == [
        (1, 0, []),
        (0, 1, ["/x/ckpt-000001"]),
        (1, 0, []),
        (0, 0, []),
    ]
    assert rows[1].reason == "rank 1 died on b" and rows[3].reason == ""
    assert all(r.begin <= r.end for r in rows)
    assert view.attempts(story.chain, now=time.time() + 50)[3].end == pytest.approx(time.time() + 50, abs=10)


def test_summary(story: History) -> None:
    stands = view.summary(story.chain)
    assert (stands["state"], stands["attempts"], stands["allocations"], stands["checkpoints"]) == ("running", 4, 4, 2)
    assert stands["last_checkpoint"]["path"] == "ckpt-000002" and stands["last_checkpoint"]["seconds"] == 4.0
    assert stands["deadline"] - stands["leaves_at"] == pytest.approx(timing.lead([2.0, 4.0], 1000))
    assert stands["steps"] == [
        {
            "step": 1,
            "argv": ["solver", "-x"],
            "ranks": 4,
            "verdict": "resume",
            "dir": str(story.chain.dir / "step-001"),
            "done": False,
        }
    ]
    json.dumps(stands)


def test_state(history: History) -> None:
    assert view.state(history.chain) == "not begun yet"
    history.begin()
    assert view.state(history.chain) == "running"
    history.end("crashed")
    assert view.state(history.chain) == "between two attempts"
    history.note("stopped", reason="interrupted")
    assert view.state(history.chain) == "stopped: interrupted"
    history.note("stopped", reason="interrupted", again="manapy run --dir x")
    assert "to continue: manapy run --dir x" in status_watch.lines(history.chain)
    history.begin()
    assert view.state(history.chain) == "running"
    assert not any("to continue" in line for line in status_watch.lines(history.chain))
    history.end("finished", code=3)
    history.note("finished", code=3)
    assert view.state(history.chain) == "finished with exit code 3"
    assert view.summary(history.chain)["deadline"] is None


def test_state_of_a_chain_whose_manapy_is_gone(history: History) -> None:
    """Killed, ended, or on a host that has crashed. A living one touches its file."""
    history.begin()
    path = history.chain.dir / record.SUPERVISOR_LOCK
    held = Lock(path)
    held.acquire(1)
    assert view.state(history.chain) == "running"
    held.close()
    file = path.with_name(f"{path.name}.holder.1")
    since = r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    mine = rf"process {os.getpid()} on {socket.gethostname()}, {since}"
    assert re.fullmatch(rf"running, but its manapy has ended \({mine}\)", view.state(history.chain))
    file.chmod(0o600)
    assert view.state(history.chain) == "running"
    words = json.loads(file.read_text())
    file.write_text(json.dumps(words | {"start": 1}))
    assert re.fullmatch(rf"running, but its manapy has ended \({mine}\)", view.state(history.chain))
    file.write_text(json.dumps(words | {"host": "node7"}))
    assert view.state(history.chain) == "running"
    os.utime(file, (time.time() - 300, time.time() - 300))
    there = rf"process {os.getpid()} on node7, {since}"
    said = rf"running, but its manapy has given no sign of life for 5 min \({there}\)"
    assert re.fullmatch(said, view.state(history.chain))
    history.end("lost")
    assert view.state(history.chain) == "between two attempts"


def test_watch_of_a_chain_whose_manapy_was_killed(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    """It says so, and ends: nobody continues `manapy run`."""
    history.begin()
    with Lock(history.chain.dir / record.SUPERVISOR_LOCK).held(1):
        pass
    assert cli.main(["status", "--watch", str(history.chain.dir)]) == 0
    begun, gone = capsys.readouterr().out.splitlines()
    assert begun.endswith("attempt 1 begins")
    assert gone.startswith(f"{history.chain.dir}: running, but its manapy has ended")


def test_picture(story: History, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    view.draw(story.chain, tmp_path / "x.png")
    data = (tmp_path / "x.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) > 5000


def test_picture_of_nothing(history: History, tmp_path: Path) -> None:
    with pytest.raises(ManapyError, match="nothing has run yet"):
        view.draw(history.chain, tmp_path / "x.png")


def test_picture_without_matplotlib(
    story: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "matplotlib"] + ["matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ManapyError, match=r"the picture needs matplotlib \(manapy's extra"):
        view.draw(story.chain, tmp_path / "x.png")
    assert cli.main(["history", str(story.chain.dir)]) == 0, "nobody has asked for the picture"
    captured = capsys.readouterr()
    assert "rank 1 died on b" in captured.out, "the table comes all the same"
    assert captured.err.startswith("manapy: the picture needs matplotlib") and len(captured.err.splitlines()) == 1
    assert cli.main(["history", str(story.chain.dir), "--no-plot"]) == 0
    assert cli.main(["history", str(story.chain.dir), "--plot", str(tmp_path / "x.png")]) == 1


def test_history_command(
    story: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(story.chain.dir.parent)
    assert cli.main(["history", "--no-plot"]) == 0, "the newest one here"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{story.chain.dir}: running"
    assert lines[1].split() == [
        "attempt",
        "job",
        "nodes",
        "begin",
        "length",
        "from",
        "recovery",
        "checkpoints",
        "size",
        "end",
        "because",
    ]
    assert [line.split()[0] for line in lines[2:]] == ["1", "2", "3", "4"]
    assert "ckpt-000001" in lines[3] and "0 (+1 failed)" in lines[3] and "crashed" in lines[3]
    assert cli.main(["history", str(story.chain.dir), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [row["how"] for row in data["history"]] == ["lost", "crashed", "left", "running"]
    assert not list(story.chain.dir.glob("*.png"))
    pytest.importorskip("matplotlib")
    assert cli.main(["history", str(story.chain.dir), "--plot", str(tmp_path / "mine.png")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "mine.png") and (tmp_path / "mine.png").exists()
    assert cli.main(["history", str(story.chain.dir), "--plot", "/proc/nowhere/x.png"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_status_command(story: History, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", str(story.chain.dir)]) == 0
    text = capsys.readouterr().out
    assert (
        text.startswith(f"chain {story.chain.dir}: running\n4 attempts in 4 allocations")
        and "this allocation ends in" in text
    )
    assert "step 1, 4 ranks, continued: solver -x" in text and "attempt 3 left: the allocation ends" in text
    assert cli.main(["status", str(story.chain.dir), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "running"
    assert cli.main(["status", "--watch", "--json", str(story.chain.dir)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_watch_of_what_is_over(story: History, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints every kind of event as a line, and then it ends."""
    story.note("skipped", path="/x/ckpt-000007", reason="damaged")
    story.note("note", text="worth knowing")
    story.note("excluded", nodes=["b", "c"])
    story.note("ending", reason="preempted")
    story.note("successor", id="20")
    story.note("slow", sentence="rank 1 is slow", host="b", gain=900, cost=12.0, moves=True)
    story.note("moved", away=["b"], to=["c"], left=1)
    verdict = {"cause": "deadlock", "rank": None, "call": "MPI_Recv"}
    story.note("verdict", state="hung", sentence="a deadlock", **verdict)
    story.note("withdrawn", state="hung", sentence="a deadlock", **verdict)
    story.note("hung", dir="/x", sentence="a deadlock", since=0.0, evidence="/x/e", place=[], host="")
    story.note("running", step=1, since=time.time())
    story.note("stopped", reason="interrupted")
    story.note("from a newer version")
    story.end("finished", code=3)
    story.note("finished", code=3)
    assert cli.main(["status", "--watch", str(story.chain.dir)]) == 0
    lines = [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == len(story.chain.events())
    for expected in (
        "attempt 1 begins in job 17 on a,b",
        "step 1: starts",
        "step 1: continues /x/ckpt-000001",
        "checkpoint failed (interval): No space left on device",
        "attempt 2 crashed: rank 1 died on b",
        "left out: /x/ckpt-000007: damaged",
        "hung: a deadlock",
        "withdrawn: a deadlock",
        "certain: a deadlock; evidence: /x/e",
        "step 1: all ranks run",
        "from a newer version",
        "worth knowing",
        "b, c excluded from the next allocations",
        "attempt 4 is being ended: preempted",
        "job 20 continues after this one",
        "rank 1 is slow; b is left out: another host would save about 15 min, and the move takes about 12 s",
        "b left out, c used instead; spare nodes left: 1",
        "attempt 4 finished",
    ):
        assert expected in lines
    assert lines[-1] == "finished with exit code 3"
    described = (record.__doc__ or "").partition("Events, ")[2].partition("Invariants")[0]
    kinds = set(re.findall(r"^    (\w+) ", described, re.M))
    assert kinds <= {event["event"] for event in story.chain.events()}, "kinds without a line"


def test_recovery(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time between a failure and the moment when all ranks run again, in parts."""
    now = 1000.0
    monkeypatch.setattr("time.time", lambda: now)
    history.begin()
    now = 1010.0
    history.note("end", how="crashed", code=1, reason="rank 1 died on b", noticed=1009.5)
    now = 1011.0
    history.begin()
    assert view.attempts(history.chain)[1].recovery == {}
    now = 1011.25
    history.step(history.chain.dir / "step-001", verdict="resume", path="/x/ckpt-000001")
    history.note("running", step=1, since=1013.0)
    first, second = view.attempts(history.chain)
    assert first.recovery == {}
    assert second.recovery == {"ended": 0.5, "paused": 1.0, "started": 0.25, "restored": 1.75}
    history.end("left")
    history.begin()
    history.step(history.chain.dir / "step-001", verdict="resume", path="/x/ckpt-000002")
    history.note("running", step=1, since=1014.0)
    assert view.attempts(history.chain)[2].recovery == {}, "no failure came before"


def test_last_words(history: History, tmp_path: Path) -> None:
    """Control sequences, incomplete characters and manapy's own lines are left out."""
    assert view.last_words(history.chain) == ""
    history.begin()
    assert view.last_words(history.chain) == ""
    output = tmp_path / "out"
    history.begin(output=str(output))
    assert view.last_words(history.chain) == ""
    output.write_bytes(
        "ä".encode() * 5000 + b"\nstep 7\n\x1b[1;31m 50 %\x07\r\x1b[2K 60 %\x1b[0m\nmanapy: a checkpoint\n \n"
    )
    assert view.last_words(history.chain) == "60 %"
    assert view.summary(history.chain)["output"] == "60 %"
    output.write_bytes(b"x" * 9000)
    assert view.last_words(history.chain) == "x" * view.TAIL
