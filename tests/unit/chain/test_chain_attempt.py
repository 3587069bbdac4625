"""Which jobs one run of the script counts as saved, as ended, or as neither."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fake_slurm
import images
import pytest
from fake_slurm import FakeSlurm
from histories import History
from manapy.chain import attempt, contact, steps, timing
from manapy.chain.attempt import _Save, AllocationState, Attempt, Outcome, Policy, Watch
from manapy.chain.remedy import Mover
from manapy.chain.run import UserWatch
from manapy.chain.slurm import Allocation
from manapy.chain.watching import Hung, Slow, Watching
from manapy.ckpt import command
from manapy.ckpt.store import job, publish
from manapy.ckpt.store.levels import Levels
from manapy.core import connection
from manapy.core.errors import DiedError, ManapyError


class Surroundings:
    """The allocation ends at once, and for good at ``deadline``. All is ``killed`` then, or never."""

    period = 0.1

    def __init__(self, deadline: float, killed: float | None = None) -> None:
        self.deadline, self.killed = deadline, killed

    def look(self, enough: Callable[[], bool] = lambda: False) -> AllocationState:
        return AllocationState(self.deadline, "it is time", killed=self.killed)

    def on_signal(self, number: int) -> str:
        return ""

    def judge(self, outcome: Outcome) -> Outcome:
        return outcome

    def can_replace(self, host: str) -> bool:
        return False

    def end_remains(self) -> None:
        pass


class Run:
    """An attempt whose script sleeps, with one step whose job has the given ``fields``."""

    def __init__(
        self,
        history: History,
        seconds: float = 2.0,
        script: str = "exec sleep 60",
        watch: Watch | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.said: list[str] = []
        self.history = history
        history.begin()
        self.watch = watch or Surroundings(time.time() + seconds)
        command = ["sh", "-c", script]
        how = policy or Policy()
        self.attempt = Attempt(history.chain, 1, command, how, self.watch, self.said.append, dict(os.environ))

    def step(self, state: str = "running", **fields: object) -> None:
        where = self.history.chain.dir / "step-001"
        self.history.step(where)
        self.history.job(1, state, hostname=socket.gethostname(), pid=2**22 + 1, **fields)

    def outcome(self) -> Outcome:
        return self.attempt.run(self.watch.look())


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


def test_job_that_cannot_be_reached_was_not_saved(history: History) -> None:
    run = Run(history)
    run.step(port=1)
    outcome = run.outcome()
    assert outcome.how == "expired" and "no longer running" in outcome.reason
    assert [event["cause"] for event in history.chain.events("failed")] == ["it is time"]


def test_job_that_does_not_answer_was_not_saved(history: History, silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "REQUEST_SECONDS", 0.5)
    run = Run(history)
    run.step(port=silent)
    outcome = run.outcome()
    assert outcome.how == "expired" and "does not answer" in outcome.reason


def test_job_that_has_ended_by_itself(history: History, silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is asked while it runs. By the time it should have answered, its record says that it has ended."""
    monkeypatch.setattr(command, "REQUEST_SECONDS", 10.0)
    run = Run(history, seconds=600)
    run.step(port=silent)
    where = history.chain.dir / "step-001"

    def end() -> None:
        while not run.said:
            time.sleep(0.01)
        job.write(where, {**job.read(where).record, "state": "done", "code": 0})

    thread = threading.Thread(target=end)
    thread.start()
    assert run.outcome().how == "yielded"
    thread.join()
    assert not history.chain.events("failed")


def test_rank_that_dies_while_its_job_is_saved(history: History, silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """That counts as a crash, and nothing was saved."""

    def die(which: job.Job, then: str) -> None:
        job.write(
            which.dir, {**which.record, "state": "failed", "first_failure": {"rank": 1, "host": "node7", "code": None}}
        )
        raise DiedError("rank 1 died")

    monkeypatch.setattr(command, "checkpoint", die)
    run = Run(history, seconds=600)
    run.step(port=silent)
    assert run.outcome() == Outcome("crashed", 1, "rank 1 died on node7", "node7")


class Slowed:
    """A job that has a checkpoint and is slow because of node7. `save` takes the next one."""

    def __init__(self, history: History, monkeypatch: pytest.MonkeyPatch, save: Callable[[], Path]) -> None:
        self.hung: Hung | None = None
        slow = Slow("rank 1 is slow", "node7", 0.5)
        monkeypatch.setattr(Mover, "look", lambda *_: slow)
        monkeypatch.setattr(Watching, "look", lambda *_: None)
        found = property(lambda _: None if self.hung is None else (job.read(history.chain.dir / "step-001"), self.hung))
        monkeypatch.setattr(Watching, "hung", found)
        monkeypatch.setattr(command, "checkpoint", lambda which, then: save())
        self.run = Run(history, watch=UserWatch(), policy=Policy(interval=3600.0, patience=60.0, move=True))
        self.run.attempt.measured = [0.1]


def test_job_on_a_slow_host(history: History, silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is saved, and is to be continued elsewhere. If it cannot be saved, it goes on, and this is tried again."""
    monkeypatch.setattr(attempt, "RETRY", 0.1)
    where = history.chain.dir / "step-001"
    tries: list[float] = []

    def save() -> Path:
        tries.append(time.monotonic())
        if len(tries) == 1:
            raise ManapyError("no space")
        job.write(where, {**job.read(where).record, "state": "checkpointed"})
        return where / "ckpt-000002"

    run = Slowed(history, monkeypatch, save).run
    run.step(port=silent)
    assert run.outcome() == Outcome("yielded", reason="node7 is slow", host="node7")
    assert len(tries) == 2 and "the checkpoint failed: no space; there is no earlier checkpoint" in run.said[0]
    assert [event["event"] for event in history.chain.events(attempt=1)][-2:] == ["failed", "checkpoint"]


def test_job_that_hangs_while_it_is_saved_to_be_moved(
    history: History, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint may never end."""
    over = threading.Event()

    def save() -> Path:
        slowed.hung = Hung("rank 1 is stuck", "network", 1, "MPI_Recv", "node8", "/evidence", 0.0)
        over.wait()
        raise ManapyError("it was killed")

    slowed = Slowed(history, monkeypatch, save)
    monkeypatch.setattr(attempt, "SETTLE", 0.1)
    slowed.run.step(port=silent)
    try:
        outcome = slowed.run.outcome()
    finally:
        over.set()
    assert (outcome.how, outcome.host) == ("hung", "node8")


def test_manifest_that_cannot_be_read(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint is published all the same."""

    def hold(which: job.Job, then: str) -> Path:
        job.write(which.dir, {**which.record, "state": "checkpointed"})
        return which.dir / "ckpt-000001"

    monkeypatch.setattr(command, "checkpoint", hold)
    run = Run(history, seconds=600)
    run.step(port=1)
    assert run.outcome().how == "yielded"
    saved = [(Path(event["path"]).name, event["bytes"]) for event in history.chain.events("checkpoint")]
    assert saved == [("ckpt-000001", 0)]
    assert any("the size of a new checkpoint cannot be read" in line for line in run.said), run.said


def test_copy_that_ends_before_the_ranks_do(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last checkpoint is copied from local storage, and its allocation is left so much earlier."""
    times = iter([100.0, 160.0])
    monkeypatch.setattr("time.monotonic", lambda: next(times, 160.0))

    def hold(which: job.Job, then: str) -> Path:
        path = images.checkpoint(which.dir, 1, 1)
        job.write(which.dir, {**which.record, "state": "checkpointed", "flush_seconds": 50.0})
        return path

    monkeypatch.setattr(command, "checkpoint", hold)
    run = Run(history)
    run.step(port=1, flush_seconds=None)
    found = steps.current(history.chain.steps()[0])
    assert found is not None
    run.attempt._note_copies([found])
    assert run.attempt._copy is None, "nobody knows yet"
    save = _Save("the end", "hold", jobs=[found])
    run.attempt._work(save)
    run.attempt._final = save
    run.attempt._collect()
    event = history.chain.events("checkpoint")[0]
    assert (event["seconds"], event["flush"]) == (10.0, 50.0)
    assert timing.measured([event]) == (run.attempt.measured, 50.0)
    found = found.again()
    run.attempt._note_copies([found])
    assert run.attempt._copy == 50.0


@pytest.mark.parametrize(("flush", "told"), [(True, True), (False, False)])
def test_last_checkpoint_that_was_not_copied(
    history: History, monkeypatch: pytest.MonkeyPatch, flush: bool, told: bool
) -> None:
    def hold(which: job.Job, then: str) -> Path:
        path = images.checkpoint(which.dir, 1, 1)
        publish.relevel(path, Levels("/nvme", False), bytes(32), flush=flush)
        job.write(which.dir, {**which.record, "state": "checkpointed"})
        return path

    monkeypatch.setattr(command, "checkpoint", hold)
    run = Run(history, seconds=600)
    run.step(port=1)
    assert run.outcome().how == "yielded"
    assert [event.get("only_local", False) for event in history.chain.events("checkpoint")] == [told]
    assert any("is on local storage only, and may be lost with the nodes" in line for line in run.said) == told


def test_checkpoint_that_takes_too_long(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt does not wait for it beyond the end of the allocation: whoever waits is killed and starts nothing."""
    over = threading.Event()

    def wait(which: job.Job, then: str) -> None:
        over.wait()
        raise DiedError("rank 1 died")

    monkeypatch.setattr(command, "checkpoint", wait)
    end = time.time() + 2
    run = Run(history, watch=Surroundings(end, killed=end))
    run.step(port=1)
    late = threading.Timer(30, over.set)  # if it does wait
    late.start()
    try:
        assert run.outcome() == Outcome("expired", reason="the allocation has ended before the job was saved")
        assert not over.is_set()
    finally:
        late.cancel()
        over.set()


@pytest.mark.parametrize(("state", "without"), [("checkpointed", ""), ("stopped", " without a checkpoint")])
@pytest.mark.parametrize("code", [0, 3])
def test_job_that_a_user_has_stopped(history: History, state: str, without: str, code: int) -> None:
    """Its ranks exit with 0, or 143. Whatever the script makes of that, the program has not ended."""
    run = Run(history, script=f"exit {code}", watch=UserWatch())
    run.step(state)
    assert run.outcome() == Outcome("stopped", reason=f"step 1 was stopped by the user{without}")


def test_job_that_a_user_has_stopped_while_the_script_goes_on(history: History) -> None:
    """The allocation ends during the commands behind it. Nothing continues the job by itself."""
    run = Run(history, seconds=600)
    run.step("checkpointed")
    assert run.outcome() == Outcome("stopped", reason="step 1 was stopped by the user")


def test_job_that_is_held_was_not_stopped(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was saved before the allocation ends. Then the script ends, before it can be killed."""

    def hold(which: job.Job, then: str) -> Path:
        job.write(which.dir, {**which.record, "state": "checkpointed"})
        return which.dir / "ckpt-000001"

    monkeypatch.setattr(command, "checkpoint", hold)
    run = Run(history, seconds=600, script="exit 143")
    run.step(port=1)
    monkeypatch.setattr(run.attempt, "_ended", lambda: None)  # the script ends a moment later
    assert run.outcome().how == "yielded"
    assert run.attempt._stopped() is None


def test_no_thread_for_a_checkpoint(history: History, silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message says so, and the attempt doesn't hang."""

    def refuse(pool: ThreadPoolExecutor, *work: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    run = Run(history)
    run.step(port=silent)
    outcome = run.outcome()
    assert outcome.how == "expired" and "can't start new thread" in outcome.reason


def test_failure_of_our_own(history: History, silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message says so, and the attempt doesn't hang."""

    def fail(which: job.Job, then: str) -> None:
        raise ZeroDivisionError("never divide")

    monkeypatch.setattr(command, "checkpoint", fail)
    run = Run(history)
    run.step(port=silent)
    outcome = run.outcome()
    assert outcome.how == "expired" and "internal error" in outcome.reason and "never divide" in outcome.reason


@pytest.mark.parametrize("saved", [True, False])
def test_coordinator_that_is_lost_between_checkpoints(
    history: History, monkeypatch: pytest.MonkeyPatch, saved: bool
) -> None:
    """Nothing is due for hours. The run ends if the job has a checkpoint, else the job goes on."""
    monkeypatch.setattr(connection, "LOSS_SECONDS", 1)
    monkeypatch.setattr(contact, "EVERY", 0.25)
    monkeypatch.delenv("MANAPY_LOSS_SECONDS", raising=False)
    run = Run(history, script=f"exec sleep {60 if saved else 5}", watch=UserWatch())
    run.step(port=1)
    if saved:
        history.checkpoint()
    begin, outcome = time.monotonic(), run.outcome()
    lost = f"the coordinator of {history.chain.dir}/step-001 is lost"
    assert outcome.how == "crashed" and outcome.reason == lost and outcome.host == socket.gethostname()
    if saved:
        assert time.monotonic() - begin < 50
        assert run.said == [f"{lost}, so the job cannot be saved any more"]
    else:
        assert run.said == [f"{lost}: the job cannot be saved any more, but goes on, because it has no checkpoint"]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return FakeSlurm(tmp_path / "bin", monkeypatch)


def test_end_of_the_allocation_while_slurm_hangs(
    history: History, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is saved when that is due: no command of Slurm is waited for any longer."""
    monkeypatch.setattr("manapy.chain.slurm.ANSWER_SECONDS", 15.0)
    slurm.job(EndTime=fake_slurm.at(time.time() + 10))
    run = Run(history, watch=Allocation(None, 0.1))
    run.step(port=1)
    look = run.watch.look()
    slurm.answer("squeue", "exec sleep 100")
    assert run.attempt.run(look).how == "expired"
    first = history.chain.events("failed")[0]
    assert look.deadline is not None and first["time"] < look.deadline
    assert first["cause"].startswith("the allocation ends at")


def test_signal_while_slurm_hangs(history: History, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is saved before Slurm is asked whether somebody has cancelled it."""
    saved, late = (history.chain.dir / name for name in ("saved", "late"))

    def save(which: job.Job, then: str) -> None:
        saved.touch()
        raise DiedError("rank 1 died")

    monkeypatch.setattr(command, "checkpoint", save)
    watch = Allocation(None, 3600)
    watch.when_cancelled = lambda: None
    run = Run(history, script="kill -TERM $PPID; exec sleep 60", watch=watch)
    run.step(port=1)
    look = watch.look()
    watch._last = look = look._replace(deadline=time.time() + 2)
    wait = f"for i in $(seq 400); do [ ! -e {saved} ] || exit 1; sleep 0.05; done; touch {late}; exit 1"
    slurm.answer("squeue", wait)
    assert run.attempt.run(look).how == "expired"
    assert saved.exists() and not late.exists()


@pytest.mark.parametrize(("left", "noted"), [(600.0, True), (1.0, False)])
def test_attempt_that_is_ended_early(history: History, left: float, noted: bool) -> None:
    """It may be killed while it is saved, so this is recorded before. Not at the time limit."""
    run = Run(history, seconds=left, script="exec sleep 1")
    run.outcome()
    assert [event["reason"] for event in history.chain.events("ending")] == ["it is time"] * noted


def due(run: Run, seconds: float, deadline: float | None = None) -> bool:
    """Is a checkpoint due so many seconds after the beginning of the attempt?"""
    begin = run.history.chain.events("attempt")[0]["time"]
    return run.attempt._due(begin, AllocationState(None if deadline is None else begin + deadline), begin + seconds)


def test_checkpoints_that_nobody_has_asked_for(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after ten minutes, which measures the time that it takes; then one every thirty minutes or more, if nobody
    else takes some."""
    run, newest = Run(history), 0.0
    monkeypatch.setattr("manapy.chain.attempt._newest", lambda which: newest)
    run.attempt.policy = Policy(None, timing.ASSUMED_MTBF, timing.ASSUMED_LEAST)
    run.step()
    assert not due(run, 590) and due(run, 610)
    run.attempt.measured = [0.1]
    assert not due(run, 1790) and due(run, 1810) and not due(run, 1790, deadline=1800)
    assert run.said == ["a checkpoint takes 0.10 s: one every 30 min (--interval or --mtbf changes this)"]
    newest = history.chain.events("attempt")[0]["time"] + 600
    assert not due(run, 1810) and due(run, 2410)
    run.attempt.measured = [60.0]
    assert timing.ASSUMED_LEAST < timing.daly(60.0, 86400.0) < 3600
    assert not due(run, 2410) and due(run, 4200)


@pytest.mark.parametrize("deadline", [None, 7200.0])
def test_no_checkpoints_before_the_end(history: History, deadline: float | None) -> None:
    """Only in limited time one is taken, to know how long the last one will take."""
    run = Run(history)
    run.step()
    assert due(run, 610, deadline) == (deadline is not None)
    run.attempt.measured = [0.1]
    assert not due(run, 7100, deadline)


class Told(UserWatch):
    """Notes the signals and stays."""

    def __init__(self) -> None:
        super().__init__()
        self.signals: list[int] = []

    def on_signal(self, number: int) -> str:
        self.signals.append(number)
        return ""


def test_signal_that_was_ignored(history: History) -> None:
    """It stays ignored, as SIGHUP under nohup. Others are handled."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        told = Told()
        outcome = Run(history, script="kill -HUP $PPID; kill -USR1 $PPID", watch=told).outcome()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert outcome.how == "finished" and told.signals == [signal.SIGUSR1]


def test_thread_that_cannot_be_started(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint has failed, and the job goes on until it is saved, or its time is over."""

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    run = Run(history)
    run.step(port=1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        outcome = run.outcome()
    assert outcome.how == "expired" and "internal error: RuntimeError(" in outcome.reason


def test_an_attempt_leaves_no_descriptors(history: History) -> None:
    run = Run(history)
    ends = run.attempt._wake
    del run
    gc.collect()
    for end in ends:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(end)
