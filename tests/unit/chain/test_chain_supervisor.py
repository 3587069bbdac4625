"""Only one supervisor runs at a time, and it does nothing twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from histories import History
from manapy.chain import run, supervisor
from manapy.chain.attempt import Outcome, Policy
from manapy.chain.policy import Limits
from manapy.chain.supervisor import Supervisor
from manapy.core.errors import ManapyError

SIGTIMEDWAIT = "128"  # the system call in which a thread is: proc_pid_syscall(5)


def make(history: History, said: list[str] | None = None) -> Supervisor:
    return Supervisor(history.chain, Policy(), Limits(), (said if said is not None else []).append)


def test_another_is_at_work(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LOCK_WAIT", 0.3)
    first = make(history)
    with pytest.raises(ManapyError, match="another manapy is at work on this chain"):
        make(history)
    first._lock.close()
    make(history)


def test_another_that_has_just_been_killed(history: History) -> None:
    """The kernel releases its lock."""
    code = (
        "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print('locked', "
        "flush=True); time.sleep(600)"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(history.chain.dir / "supervisor.lock")], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None and other.stdout.readline() == "locked\n"
    threading.Timer(0.3, other.kill).start()
    make(history)
    other.communicate()


def test_a_job_that_has_lost_its_supervisor(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its coordinator answers: the attempt isn't noted as lost, and no other attempt starts."""
    monkeypatch.setattr(supervisor, "ORPHAN_WAIT", 0.1)
    history.begin()
    where = history.job(1, "running")
    history.step(where)
    answers = [True]
    monkeypatch.setattr("manapy.ckpt.store.job.Job.is_live", lambda self: answers[0])
    with pytest.raises(
        ManapyError,
        match=(
            "step-001 still runs although its manapy has ended: wait until it ends, or run manapy stop .*step-001, "
            "then continue"
        ),
    ):
        make(history).refusal()
    assert history.chain.events("end") == []
    answers[0] = False
    said: list[str] = []
    assert make(history, said).refusal() == ""
    assert history.chain.events("end")[-1]["how"] == "lost"
    assert "without a record" in said[0]


def test_hosts_are_left_out_by_name() -> None:
    hosts = ["node1:2", "node2.cluster:2", "node3"]
    assert run._choose(hosts, [], 1) == hosts
    assert run._choose(hosts, ["node2"], 1) == ["node1:2", "node3"]
    assert run._choose(hosts, ["node1.cluster", "node2.cluster"], 1) == ["node3"]
    assert run._choose(hosts, ["node"], 1) == hosts
    assert run._is_out("node2.cluster", ["node1:2", "node3"], hosts) and not run._is_out("node1", hosts, hosts)
    assert not run._is_out("elsewhere", [], hosts)


def test_hosts_on_a_full_disk(history: History) -> None:
    """mpirun gets them in another file, and a line says so."""
    place, said = history.chain.dir / "hosts", list[str]()
    assert run._environment(history.chain, ["a", "b:2"], said.append)["HYDRA_HOST_FILE"] == str(place)
    assert place.read_text() == "a\nb:2\n" and said == []
    place.unlink()
    place.mkdir()  # nothing can be written there
    other = Path(run._environment(history.chain, ["a"], said.append)["HYDRA_HOST_FILE"])
    assert other.read_text() == "a\n"
    assert len(said) == 1 and said[0].startswith(f"{other} is used instead of {place} (")


def test_hosts_that_come_back() -> None:
    """The one that failed first, as soon as the others have too few places."""
    hosts = ["a:2", "b:2", "c"]
    assert run._choose(hosts, ["b", "c"], 2) == ["a:2"]
    assert run._choose(hosts, ["b", "c"], 3) == ["a:2", "b:2"]
    assert run._choose(hosts, ["c", "b"], 3) == ["a:2", "c"]
    assert run._choose(hosts, ["a", "b", "c"], 5) == hosts
    assert run._choose(hosts, ["a", "b", "c"], 1) == ["a:2"], "rather a bad one than none"
    assert run._choose(hosts, ["b"], 6) == ["a:2", "c"], "more ranks than places were wanted"


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "ended by SIGTERM")])
def test_a_signal_between_two_attempts(number: signal.Signals, reason: str) -> None:
    """The signal comes while signals are waited for. Earlier it would end pytest."""
    waiting = Path(f"/proc/self/task/{threading.get_native_id()}/syscall")

    def when_waiting() -> None:
        while (waiting.read_text().split() or ["?"])[0] != SIGTIMEDWAIT:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=when_waiting, daemon=True).start()
    begin = time.monotonic()
    assert run._signal_within(3600) == reason
    assert time.monotonic() - begin < 600
    assert run._signal_within(0.01) == ""
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def test_an_ignored_signal_between_two_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not end the wait."""
    waited: list[list[signal.Signals]] = []
    monkeypatch.setattr(signal, "sigtimedwait", lambda signals, seconds: waited.append(signals))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run._signal_within(1.0) == ""
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.SIGHUP not in waited[0] and signal.SIGTERM in waited[0]


def test_a_crash_after_a_signal(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank dies while the job is saved: the user wanted the end, so nothing is started again."""
    said: list[str] = []
    failed = Outcome("crashed", 1, "rank 1 died on here", "here")

    def attempt(self: Supervisor, identity: str, nodes: list[str], watch: run.UserWatch, env: object) -> Outcome:
        history.begin()
        assert watch.on_signal(signal.SIGINT) == "interrupted"
        history.end(failed.how, failed.code, failed.reason)
        return failed

    monkeypatch.setattr(Supervisor, "attempt", attempt)
    assert run.supervise(make(history, said), [], None, 0.0) == run.EXIT_INTERRUPTED
    assert history.chain.attempts() == 1
    assert said == [
        "interrupted, and rank 1 died on here: the work since the last checkpoint is lost; continue: manapy run --dir "
        f"{history.chain.dir}"
    ]


def test_begin_that_cannot_be_recorded(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script doesn't start: each manapy-launch in it would be refused."""
    monkeypatch.setattr(supervisor, "BEGIN_SECONDS", 0)
    monkeypatch.setattr(supervisor, "Attempt", None)
    (history.chain.dir / "history.jsonl").mkdir()
    monkeypatch.setattr(history.chain, "_history", list)
    with pytest.raises(ManapyError, match="history cannot be written .*Is a directory"):
        make(history).attempt("", [], run.UserWatch(), {})
