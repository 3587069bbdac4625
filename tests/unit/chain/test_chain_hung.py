"""What a chain does about hung jobs, and about slow hosts: from the verdict to the next attempt."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import images
import pytest
from histories import History
from manapy.chain import policy, steps, watching
from manapy.chain.policy import Limits
from manapy.chain.remedy import (
    IGNORED,
    OF_THE_HOST,
    OF_THE_PROGRAM,
    RESTART,
    Mover,
    Remedy,
    decide,
    remedy,
    restart_seconds,
)
from manapy.chain.watching import Hung, Slow, Watching
from manapy.ckpt.store import job, publish
from manapy.core.errors import ManapyError
from manapy.trace.model.verdict import Cause
from waiting import until

HUNG = Hung("rank 1 is stuck", "deadlock", 1, "MPI_Recv", "node7", "/evidence", 0.0)
SLOW = Slow("rank 1 is slow", "node7", 0.25)
PLACE = ["deadlock", "1", "MPI_Recv"]


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (Cause.DEADLOCK, Remedy(False, "", ("deadlock", "1", "MPI_Recv"))),
        (Cause.MISMATCH, Remedy(False, "", ("mismatched calls", "1", "MPI_Recv"))),
        (Cause.MISSING, Remedy(False, "", ("missing call", "1", "MPI_Recv"))),
        (Cause.NETWORK, Remedy(True, "node7", ())),
        (Cause.STARVED, Remedy(True, "node7", ())),
        (Cause.STOPPED, Remedy(False, "node7", ())),
        (Cause.COMPUTE, Remedy(False, "node7", ())),
        (Cause.NONE, Remedy(False, "", ())),
        (Cause.DEAD, None),
    ],
)
def test_remedy(cause: Cause, expected: Remedy | None) -> None:
    assert remedy(replace(HUNG, cause=cause.value)) == expected


def test_causes_are_those_of_verdicts() -> None:
    assert {*IGNORED, *OF_THE_HOST, *OF_THE_PROGRAM} <= {cause.value for cause in Cause}


@pytest.mark.parametrize(
    ("ran", "left", "gain"),
    [(400.0, None, 100.0), (400.0, 7200.0, 100.0), (400.0, 40.0, 10.0), (400.0, -5.0, 0.0), (0.0, None, 0.0)],
)
def test_gain_and_cost_of_a_move(ran: float, left: float | None, gain: float) -> None:
    """A job is expected to run as long again, but not beyond its limit."""
    found = decide(SLOW, ran, left, checkpoint=2.0, restart=3.0)
    assert (found.gain, found.cost) == (gain, 5.0)
    assert "takes about 5 s" in found.text and f"about {gain if gain < 60 else 100 / 60:.0f} " in found.text


def test_how_long_a_restart_takes(history: History) -> None:
    """From the end of an attempt, through the pause after it; or else from the beginning of the first."""
    assert restart_seconds(history.chain.events()) == RESTART
    begun = history.chain.events(history.begin() and "attempt")[0]["time"]
    history.note("running", step=1, since=begun + 4)
    assert restart_seconds(history.chain.events()) == pytest.approx(4)
    history.end("crashed")
    ended = history.chain.events("end")[0]["time"]
    history.begin()
    assert restart_seconds(history.chain.events()) == pytest.approx(4)
    for step, after in ((1, 7), (2, 900)):
        history.note("running", step=step, since=ended + after)
    assert restart_seconds(history.chain.events()) == pytest.approx(7)


def test_when_a_job_is_moved(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gain and cost are told with each decision, and a decision to stay only once, until the host is well again."""
    ran, free, said = [10.0], [False], list[str]()
    monkeypatch.setattr(policy, "used", lambda chain, now: ran[0])
    history.begin()
    mover = Mover(history.chain, 1, said.append)

    def moves(slow: Slow | None = SLOW) -> bool:
        found = slow and replace(slow)  # of a new look
        return mover.look(found, None, 2.0, lambda host: free[0]) is not None

    assert not moves() and not moves() and said[-1].endswith("takes about 12 s: it stays") and len(said) == 1
    ran[0] = 3600.0
    assert not moves() and len(said) == 1
    assert not moves(None) and not moves() and said[-1].endswith(": no other host is free") and len(said) == 2
    free[0] = True
    assert moves() and said[-1].endswith("saving the job, to continue without that host")
    assert [(event["moves"], event["gain"], event["cost"]) for event in history.chain.events("slow")] == [
        (False, 2, 12.0),
        (False, 900, 12.0),
        (True, 900, 12.0),
    ]
    assert not moves(replace(SLOW, host="")), "its host is not known"


def hang(history: History, place: list[str], since: float = 0.0) -> None:
    history.begin()
    history.checkpoint()
    history.note("hung", dir=str(history.chain.dir), sentence="stuck", since=since, evidence="E", place=place, host="")
    history.end("hung", 1, "stuck")


def test_the_same_hang_twice(history: History) -> None:
    hang(history, PLACE)
    assert policy.refusal(history.chain, Limits()) == ""
    hang(history, PLACE)
    why = "it hung twice at the same place of the program: stuck (evidence: E and E)"
    assert policy.refusal(history.chain, Limits()) == why


@pytest.mark.parametrize("between", ["another place", "no place", "a crash"])
def test_different_hangs(history: History, between: str) -> None:
    """Only the same hang in two attempts in a row ends a chain. Hangs count as crashes."""
    hang(history, PLACE if between != "no place" else [])
    if between == "a crash":
        history.attempt("crashed", checkpoints=1)
    hang(history, {"another place": ["deadlock", "2", "MPI_Recv"], "no place": []}.get(between, PLACE))
    assert policy.refusal(history.chain, Limits(crashes=4)) == ""
    in_a_row = len(history.chain.events("end"))
    assert f"it crashed or hung {in_a_row} times in a row" in policy.refusal(history.chain, Limits(crashes=in_a_row))


@pytest.mark.parametrize("place", [PLACE, []])
def test_a_checkpoint_of_a_hung_job(history: History, place: list[str]) -> None:
    """It is not used if the program is at fault: the fault is in it."""
    history.begin()
    where = history.job(1, "failed", first_failure={"rank": 1, "host": "here", "code": None}, code=0)
    history.step(where)
    good = images.checkpoint(where, 2, 0)
    bad = images.checkpoint(where, 2, 1)
    since = publish.read_manifest(bad).time
    assert publish.read_manifest(good).time < since
    history.note("hung", dir=str(where), sentence="stuck", since=since, evidence="E", place=place, host="")
    history.end("hung", 1, "stuck")
    history.begin()
    said: list[str] = []
    verdict = steps.decide(history.chain, ["solver"], 2, None, said.append)
    expected = Path(good if place else bad).resolve()
    assert (verdict.kind, verdict.path) == ("resume", expected)
    assert said == ([f"{Path(bad).resolve()} is not used: the job hung already"] if place else [])


@pytest.mark.parametrize("pushed_out", [False, True])
def test_only_checkpoints_of_a_hang_are_left(history: History, pushed_out: bool) -> None:
    """Those before it are gone (--keep): the step doesn't start, because the new checkpoints would push out these, too.
    If there were none, the program starts from the beginning, and a line says so."""
    history.begin()
    where = history.job(1, "failed", first_failure={"rank": 1, "host": "here", "code": None}, code=0)
    history.step(where)
    images.checkpoint(where, 2, 0)
    bad = [Path(images.checkpoint(where, 2, 1)).resolve()] if pushed_out else []
    if pushed_out:
        shutil.rmtree(where / "ckpt-000001")
    history.note("hung", dir=str(where), sentence="stuck", since=0.0, evidence="E", place=PLACE, host="")
    history.end("hung", 1, "stuck")
    history.begin()
    said: list[str] = []
    for path in bad:
        with pytest.raises(ManapyError, match=rf"no good checkpoint from before the hang .*\(manapy restart {path}\)"):
            steps.decide(history.chain, ["solver"], 2, None, said.append)
        assert len(history.chain.events("step")) == 1
        shutil.rmtree(path)
        said.clear()
    assert steps.decide(history.chain, ["solver"], 2, None, said.append).kind == "new"
    if not pushed_out:
        assert said[1:] == [f"{where}: only checkpoints of a hang are left: the program starts from the beginning"]
        assert history.chain.events("note")[-1]["text"] == said[1]


def test_watch_without_its_log(history: History) -> None:
    """The job goes on without a watch, and a line says so once."""
    (history.chain.dir / "watch.log").mkdir()
    said: list[str] = []
    watching = Watching(history.chain, 1, 0.0, said.append)
    for _ in range(2):
        watching.look([job.read(history.job(1, "running"))])
    where = history.chain.dir
    assert said == [f"{where}/step-001 is not watched: {where}/watch.log: Is a directory"]


class Watched:
    """A running job whose watch is a script of the shell. said: the lines for the user."""

    def __init__(self, history: History, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
        program = history.chain.dir / "manapy"
        program.write_text(f"#!/bin/sh\necho >> {history.chain.dir}/begun\n{script}\n")
        program.chmod(0o700)
        monkeypatch.setattr(sys, "argv", [str(program)])
        monkeypatch.setattr(watching, "AGAIN", 0.05)
        monkeypatch.setattr(job.Job, "is_live", lambda self: True)
        self.begun = history.chain.dir / "begun"
        self.job, self.said = job.read(history.job(1, "running")), list[str]()
        self.watching = Watching(history.chain, 1, 0.0, self.said.append)

    def until(self, what: Callable[[], object]) -> None:
        def looked() -> object:
            self.watching.look([self.job])
            return what()

        try:
            until(looked, lambda: self.said)
        finally:
            self.watching.close()


def test_a_watch_that_has_ended_is_started_again(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end is said once, and the pauses grow."""
    watched = Watched(history, monkeypatch, "exit 1")
    watched.until(lambda: len(watched.begun.read_text()) >= 3 if watched.begun.exists() else False)
    assert len(watched.said) == 1 and "is not watched: its watch has ended" in watched.said[0]
    (one,) = watched.watching._watches.values()
    assert one.pause >= 4 * watching.AGAIN


VERDICT = {"state": "hung", "cause": "deadlock", "rank": 1, "call": "MPI_Recv", "sentence": "rank 1 is stuck"}
ACT = {"kind": "act", "verdict": VERDICT, "since": 0.0, "host": "node7", "evidence": "/evidence"}
KEPT = {"kind": "kept", "verdict": VERDICT, "missing": ""}


@pytest.mark.parametrize(
    ("then", "said"),
    [
        (f"echo '{json.dumps(KEPT)}'; exec sleep 60", []),
        ("exit 1", ["the evidence is incomplete: its watch has ended"]),
        ("exec sleep 60", ["the evidence is incomplete: it was not written"]),
    ],
)
def test_a_verdict_is_acted_on_whatever_becomes_of_its_evidence(
    history: History, monkeypatch: pytest.MonkeyPatch, then: str, said: list[str]
) -> None:
    monkeypatch.setattr(watching, "KEEPING", 60.0 if "kept" in then else 1.0)
    watched = Watched(history, monkeypatch, f"echo '{json.dumps(ACT)}'; {then}")
    watched.until(lambda: watched.watching.hung)
    assert watched.watching.hung == (watched.job, HUNG)
    assert len(watched.said) == len(said) and all(map(str.startswith, watched.said, said))


def test_a_slow_host_counts_until_its_watch_says_otherwise(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"kind": "slow", "verdict": {**VERDICT, "sentence": "rank 1 is slow", "share": 0.25}, "host": "node7"}
    well = {"kind": "slow", "verdict": None, "host": ""}
    go = history.chain.dir / "go"
    script = f"echo '{json.dumps(told)}'; until [ -e {go} ]; do sleep 0.01; done; echo '{json.dumps(well)}'"
    watched = Watched(history, monkeypatch, f"{script}; exec sleep 60")

    def seen() -> bool:
        if watched.watching.slow == SLOW:
            go.touch()
        return go.exists() and watched.watching.slow is None

    watched.until(seen)
    assert not watched.said and not history.chain.events("verdict")


def test_when_a_job_is_watched(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as it runs. A rank that still reads its image has no recording, and its watch would end at once."""
    started = []
    monkeypatch.setattr(Watching, "_start", lambda self, watch: started.append(watch.job.state))
    watching = Watching(history.chain, 1, 0.0, lambda line: None)
    for state in ("starting", "restarting", "running"):
        watching.look([job.read(history.job(1, state))])
    assert started == ["running"]
