"""The answer that a manapy-launch in a chain gets, with real job directories and checkpoints."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import images
import pytest
from histories import History

from manapy.chain import policy, record, steps, view
from manapy.chain.steps import NextStep
from manapy.ckpt.store import publish, verify
from manapy.core.errors import ManapyError, ManifestError

A, B = ["solver", "a"], ["solver", "b"]
RANKS = 2
CRASHED = {"state": "failed", "first_failure": {"rank": 1, "host": "node7", "code": None}, "code": 0}


class Script:
    """The steps of a chain, which ask as rank 0 would."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.said: list[str] = []

    def ask(self, argv: list[str], ranks: int = RANKS, directory: Path | None = None) -> NextStep:
        """Ask as rank 0 does: again, if the ranks find damage in their images."""
        verdict = steps.decide(self.history.chain, argv, ranks, directory, self.said.append)
        while verdict.kind == "resume" and (found := damage(verdict.path)):
            verdict = steps.decide_again(self.history.chain, verdict.path, found[0], self.said.append)
        return verdict

    def start(self, argv: list[str], state: str = "running", checkpoints: int = 0, **fields: object) -> Path:
        """Ask, and become a job in that state; its directory."""
        verdict = self.ask(argv)
        event = self.history.chain.events("step")[-1]
        where = self.history.job(event["step"], state, **fields)
        assert verdict.kind != "new" or verdict.path == where
        for seed in range(checkpoints):
            images.checkpoint(where, RANKS, seed)
        return where

    def again(self) -> None:
        """The attempt ends, and another one begins."""
        self.history.end("left")
        time.sleep(0.01)
        self.history.begin()


def damage(checkpoint: Path) -> list[str]:
    """What the ranks find, each in its own image."""
    manifest = publish.read_manifest(checkpoint)
    return verify.images(checkpoint, manifest, range(len(manifest.ranks)))


@pytest.fixture
def script(history: History) -> Script:
    history.begin()
    return Script(history)


def test_new(script: Script) -> None:
    step = script.history.chain.dir / "step-001"
    assert script.ask(A) == NextStep("new", step)
    assert script.ask(B).path == script.history.chain.dir / "step-002"
    assert [(e["step"], e["argv"], e["ranks"], e["verdict"], e["dir"]) for e in script.history.chain.events("step")][
        0
    ] == (1, A, RANKS, "new", str(step))
    assert NextStep("new", step).line() == f"NEW {step}"


def test_given_directory(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert script.ask(A, directory=Path("mine")).path == tmp_path / "mine"
    script.again()
    monkeypatch.chdir("/")
    assert script.ask(A, directory=Path("mine")).path == tmp_path / "mine", "where it was begun"


def test_the_same_program_twice(script: Script) -> None:
    """They are told apart by their order."""
    first, second = script.start(A, "done", code=0), script.start(A, checkpoints=1)
    assert (first.name, second.name) == ("step-001", "step-002")
    script.again()
    assert script.ask(A).kind == "done"
    assert script.ask(A) == NextStep("resume", second / "ckpt-000001")
    assert script.ask(A) == NextStep("new", script.history.chain.dir / "step-003")


def test_done_gives_its_code_for_ever(script: Script) -> None:
    script.start(A, "done", code=3, checkpoints=1)
    for _ in range(2):
        script.again()
        verdict = script.ask(A)
        assert (verdict.kind, verdict.code, verdict.line()) == ("done", 3, "DONE 3")


def test_a_program_that_fails_by_itself_has_ended(script: Script) -> None:
    """mpirun kills the other ranks when one rank exits with an error: they have died, but not first."""
    script.start(A, "failed", first_failure={"rank": 1, "host": "a", "code": 7}, code=7, checkpoints=1)
    assert script.ask(B).kind == "new", "the script may go on"
    script.again()
    assert script.ask(A) == NextStep("done", code=7)


def test_crashed_goes_on_from_its_checkpoint(script: Script) -> None:
    where = script.start(A, **CRASHED, checkpoints=2)
    assert steps.fate(where) == ("crashed", 0, "node7", "rank 1 died on node7", 0.0)
    script.again()
    verdict = script.ask(A)
    assert verdict == NextStep("resume", where / "ckpt-000002") and verdict.line() == f"RESUME {where / 'ckpt-000002'}"


@pytest.mark.parametrize("state", [CRASHED, {"state": "stopped"}, {"state": "checkpointed"}])
def test_nothing_starts_behind_a_step_that_was_ended(script: Script, state: dict[str, object]) -> None:
    script.start(A, **state)
    with pytest.raises(ManapyError, match="step 1 has ended before its program"):
        script.ask(B)
    assert len(script.history.chain.events("step")) == 1


def test_steps_side_by_side_in_another_attempt(script: Script) -> None:
    """B asks when A has asked, but has not written its job.json yet: how A ended in the attempt before doesn't
    matter."""
    script.start(A, **CRASHED)
    script.again()
    assert script.ask(A).kind == "new"
    assert script.ask(B).kind == "new"


def test_no_checkpoint_yet(script: Script) -> None:
    where = script.start(A)
    script.again()
    assert script.ask(A) == NextStep("new", where)
    assert script.said == []


def test_damaged_checkpoint_is_named_and_left_out(script: Script) -> None:
    where = script.start(A, checkpoints=3)
    images.flip(where / "ckpt-000003" / "rank-00001.img", 5000)
    (where / "ckpt-000002" / "manifest.json").write_text("{")
    for _ in range(2):
        script.again()
        assert script.ask(A) == NextStep("resume", where / "ckpt-000001")
    assert [Path(e["path"]).name for e in script.history.chain.events("skipped")] == ["ckpt-000003", "ckpt-000002"], (
        "once each"
    )
    assert "ckpt-000003 is damaged" in script.said[0] and "rank-00001.img" in script.said[0]
    assert "ckpt-000002 is damaged" in script.said[1]


def test_missing_image(script: Script) -> None:
    where = script.start(A, checkpoints=2)
    (where / "ckpt-000002" / "rank-00000.img").unlink()
    script.again()
    assert script.ask(A) == NextStep("resume", where / "ckpt-000001")


def test_all_damaged(script: Script) -> None:
    """The step starts from the beginning, and a message says so: days of work may be lost."""
    where = script.start(A, checkpoints=2)
    for path in where.glob("ckpt-*"):
        images.flip(path / "rank-00000.img", 5000)
    script.again()
    assert script.ask(A) == NextStep("new", where)
    assert script.said[-1] == f"{where}: no undamaged checkpoint is left: the program starts from the beginning"
    assert script.history.chain.events("note")[-1]["text"] == script.said[-1]


@pytest.mark.parametrize("begun", [True, False])
def test_directory_that_cannot_be_read(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """For example, while a file server does not answer. The step does not start, and the answer is not recorded."""
    where = tmp_path / "mine"
    where.mkdir()
    if begun:
        script.ask(A, directory=where)
        newest = images.checkpoint(where, RANKS)
        script.again()
    asked, listdir = len(script.history.chain.events("step")), os.listdir

    def fail(path: Path) -> list[str]:
        if path == where:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return listdir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", fail)
        reason = f"does not start: its directory cannot be read \\({where}: Input/output error"
        with pytest.raises(ManapyError, match=reason):
            script.ask(A, directory=where)
    assert len(script.history.chain.events("step")) == asked
    assert script.ask(A, directory=where) == (NextStep("resume", newest) if begun else NextStep("new", where))


def test_record_of_a_job_that_cannot_be_read(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may say that the step is done."""
    where = script.start(A, state="done")
    script.again()
    read = Path.read_bytes

    def fail(path: Path) -> bytes:
        if path == where / "job.json":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return read(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fail)
        with pytest.raises(ManapyError, match="does not start: its directory cannot be read"):
            script.ask(A)
    assert script.ask(A).kind == "done"


@pytest.mark.parametrize("older", [0, 1])
def test_manifest_that_cannot_be_read(script: Script, monkeypatch: pytest.MonkeyPatch, older: int) -> None:
    """An older checkpoint is taken, if there is one. The step does not start from the beginning."""
    where = script.start(A, checkpoints=older + 1)
    script.again()
    newest = where / f"ckpt-{older + 1:06d}"
    read = publish.read_manifest

    def fail(path: Path) -> publish.Manifest:
        if path == newest:
            raise ManifestError(f"{path}: Stale file handle") from OSError(errno.ESTALE, "Stale file handle")
        return read(path)

    with monkeypatch.context() as patch:
        patch.setattr(publish, "read_manifest", fail)
        if older:
            assert script.ask(A) == NextStep("resume", where / "ckpt-000001")
        else:
            with pytest.raises(
                ManapyError, match=f"cannot be read now \\({newest}: Stale file handle\\), and no other"
            ):
                script.ask(A)
    script.again()
    assert script.ask(A) == NextStep("resume", newest)


@pytest.mark.parametrize("place", [False, True])
def test_checkpoints_that_are_gone(script: Script, tmp_path: Path, place: bool) -> None:
    """Deleted, or not mounted. The step starts from the beginning, and a message says so."""
    where = script.start(A)
    parent = publish.place(where, str(tmp_path / "scratch")) if place else where
    script.history.checkpoint(path=str(parent / "ckpt-000001"))
    script.again()
    assert script.ask(A) == NextStep("new", where)
    assert script.said == [
        f"{where}: its checkpoints are gone (deleted, or on a file system that is not mounted): the program starts "
        "from the beginning"
    ]
    assert script.history.chain.events("note")[-1]["text"] == script.said[-1]
    assert script.ask(B).kind == "new" and len(script.said) == 1, "it has had none"


def test_the_last_answer_counts(script: Script) -> None:
    """A step that has asked again is one step: the next one with the same program is another one."""
    where = script.start(A, checkpoints=2)
    images.flip(where / "ckpt-000002" / "rank-00000.img", 5000)
    script.again()
    assert script.ask(A) == NextStep("resume", where / "ckpt-000001")
    assert script.ask(A) == NextStep("new", script.history.chain.dir / "step-002")
    last = [(e["step"], e["verdict"], Path(e["path"]).name) for e in script.history.chain.steps(2)]
    assert last == [(1, "resume", "ckpt-000001"), (2, "new", "step-002")]
    assert view.attempts(script.history.chain)[-1].resumed == [str(where / "ckpt-000001")]


def test_damage_that_nobody_asked_about(script: Script, tmp_path: Path) -> None:
    script.start(A, checkpoints=1)
    with pytest.raises(ManapyError, match=f"no step of .* continues {tmp_path}/other"):
        steps.decide_again(script.history.chain, tmp_path / "other", "why", script.said.append)
    assert script.said == []


def test_other_number_of_ranks(script: Script) -> None:
    script.start(A, checkpoints=1)
    script.again()
    with pytest.raises(
        ManapyError, match="has 2 ranks, but this step runs with 3: it needs the same number of tasks as before"
    ):
        script.ask(A, ranks=3)
    assert script.ask(A).kind == "resume", "it wasn't noted"


@pytest.mark.parametrize("numbers", [True, False])
def test_checkpoints_of_another_program_in_the_same_directory(script: Script, tmp_path: Path, numbers: bool) -> None:
    """--dir names a job directory that already existed: checkpoints older than the step don't belong to it. A history
    of an older manapy has no numbers, so times tell which ones these are."""
    old = tmp_path / "mine"
    old.mkdir()
    images.checkpoint(old, RANKS)
    time.sleep(0.01)
    assert script.ask(A, directory=old) == NextStep("new", old)
    if not numbers:
        history = script.history.chain.dir / "history.jsonl"
        history.write_text(history.read_text().replace('"had": 1, ', ""))
    assert [event.get("had") for event in script.history.chain.events("step")] == [1 if numbers else None]
    script.again()
    assert script.ask(A, directory=old) == NextStep("new", old)
    images.checkpoint(old, RANKS)
    script.again()
    assert script.ask(A, directory=old) == NextStep("resume", old / "ckpt-000002")


@pytest.mark.parametrize("before", [0, 1])
def test_clock_that_was_set_back(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int) -> None:
    """The times of the step's checkpoints are before its begin. That of another program's checkpoint is after it."""
    now, where = time.time(), tmp_path / "mine"
    where.mkdir()
    for _ in range(before):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: now + 3600)
            images.checkpoint(where, RANKS)
    assert script.ask(A, directory=where).kind == "new"
    script.again()
    assert script.ask(A, directory=where).kind == "new"
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now - 3600)
        newest = images.checkpoint(where, RANKS)
    script.again()
    assert script.ask(A, directory=where) == NextStep("resume", newest)


def test_an_attempt_that_did_not_get_there(script: Script) -> None:
    """B was reached in the first attempt, not in the second. The third attempt finds its number and its checkpoint."""
    script.start(A, "done", code=0)
    b = script.start(B, checkpoints=1)
    script.again()
    script.again()
    assert script.ask(A).kind == "done"
    assert script.ask(B) == NextStep("resume", b / "ckpt-000001")


@pytest.mark.parametrize("again", [False, True])
def test_two_steps_with_one_directory(script: Script, tmp_path: Path, again: bool) -> None:
    """The end of one would be taken for that of the other. Names of the directory may differ."""
    where, link = tmp_path / "mine", tmp_path / "link"
    link.symlink_to(where)
    script.ask(A, directory=where)
    if again:
        script.again()
    with pytest.raises(ManapyError, match=r"step 1 of this chain \(solver a\) has the job directory .* a --dir of its"):
        script.ask(B, directory=link)
    assert len(script.history.chain.events("step")) == 1
    script.again()
    assert script.ask(A, directory=where).kind == "new"


def test_job_that_was_in_the_directory_before(script: Script, tmp_path: Path) -> None:
    """It has ended by itself, but the step has not: it died before it had a job."""
    where = script.history.job(9, "done", started=time.time() + 3600, code=0)
    assert script.ask(A, directory=where) == NextStep("new", where)
    script.again()
    assert policy.unfinished(script.history.chain, 2) == "step 1"
    assert not view.summary(script.history.chain)["steps"][0]["done"]
    assert script.ask(A, directory=where) == NextStep("new", where)
    script.history.job(9, "done", code=3)
    script.again()
    assert script.ask(A, directory=where) == NextStep("done", code=3)


def test_answer_that_cannot_be_recorded(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain would not see the step, so the step does not start. If the disk has room again in time, it does."""
    write, calls = os.write, list[int]()

    def full(fd: int, data: bytes) -> int:
        calls.append(fd)
        if len(calls) > enough:
            return write(fd, data)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(record, "AGAIN", 0.01)
    enough = 2
    assert script.ask(A).kind == "new"
    assert [step["argv"] for step in record.read(script.history.chain.dir).events("step")] == [A]
    monkeypatch.setattr(steps, "NOTE_SECONDS", 0)
    enough = 10**9
    with pytest.raises(ManapyError, match=r"history cannot be written \(.*: No space left on device\)"):
        script.ask(B)


def test_argument_that_changes(script: Script) -> None:
    """A line says that the program starts anew. Not in the first attempt, not after the other step has ended or was
    continued, and not for another program."""
    script.start(A)
    assert script.ask(B).kind == "new"
    script.again()
    assert script.ask(["other"]).kind == "new" and script.said == []
    script.ask(A)
    assert script.ask(["solver", "c"]).kind == "new"
    line = (
        "solver c: starts from the beginning, as step 4; step 2 (solver b) has not ended: only the same arguments would"
        " continue it"
    )
    assert script.said == [line]
    assert script.history.chain.events("note")[-1]["text"] == line
    script.history.job(1, "done", code=0)
    script.again()
    for argv in (B, ["solver", "c"], ["solver", "d"]):
        script.ask(argv)
    assert script.said == [line]
