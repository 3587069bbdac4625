"""The guard of a batch job, with commands in place of Slurm's."""

from __future__ import annotations

import errno
import signal
import subprocess
import threading
import time
from pathlib import Path

import fake_slurm
import pytest
from fake_slurm import FakeSlurm
from histories import History, events_in
from manapy.chain import batch, sentinel, timing
from manapy.chain.attempt import Attempt, Outcome, Policy
from manapy.chain.lock import BusyError, Lock
from manapy.chain.policy import Limits
from manapy.chain.slurm import Allocation, TooFewNodes, exclude
from manapy.chain.supervisor import Supervisor
from manapy.core.errors import ManapyError


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return FakeSlurm(tmp_path / "bin", monkeypatch)


def test_warnings_of_slurm(slurm: FakeSlurm, tmp_path: Path) -> None:
    """`sbatch --signal` sends them at any time. They only make the guard ask Slurm."""
    slurm.job("kill -USR1 $PPID; kill -USR2 $PPID; kill -HUP $PPID")
    done = fake_slurm.guard(tmp_path / "chain", script="kill -USR2 $PPID; exit 3")
    assert done.returncode == 3, done.stderr


def test_sigterm_between_attempts(slurm: FakeSlurm, tmp_path: Path) -> None:
    """The next attempt leaves at once, and the job comes again."""
    slurm.job("kill -TERM $PPID")
    done = fake_slurm.guard(tmp_path / "chain", script="exec sleep 600")
    assert "Slurm sent SIGTERM: saving the job" in done.stderr, done.stderr
    assert slurm.calls("scontrol requeue") == ["scontrol requeue 17"]
    assert [end["how"] for end in events_in(tmp_path / "chain", "end")] == ["yielded"]


def test_scancel_between_attempts(slurm: FakeSlurm, tmp_path: Path) -> None:
    """It ends the chain: the job is not requeued."""
    slurm.job("kill -TERM $PPID", JobState="CANCELLED")
    fake_slurm.guard(tmp_path / "chain", script="exec sleep 600")
    assert slurm.calls("scontrol requeue") == []
    assert [event["reason"] for event in events_in(tmp_path / "chain", "stopped")] == ["job 17 was cancelled"]


@pytest.mark.parametrize("state", ["RUNNING", "CANCELLED"])
def test_sigterm_while_no_job_of_the_script_runs(slurm: FakeSlurm, tmp_path: Path, state: str) -> None:
    """It ends the script, too. The job comes again, unless somebody has cancelled it."""
    script = "kill -TERM $PPID; exit 143"
    slurm.job(JobState=state)
    assert fake_slurm.guard(tmp_path / "chain", script=script).returncode == batch.EXIT_GAVE_UP
    assert slurm.calls("scontrol requeue") == ["scontrol requeue 17"] * (state == "RUNNING")
    assert [end["how"] for end in events_in(tmp_path / "chain", "end")] == ["taken"]
    cancelled = ["job 17 was cancelled"] * (state == "CANCELLED")
    assert [event["reason"] for event in events_in(tmp_path / "chain", "stopped")] == cancelled
    assert events_in(tmp_path / "chain", "finished") == []


class Waiting:
    """A guard of job 17, while another supervisor works on the chain."""

    def __init__(self, history: History, monkeypatch: pytest.MonkeyPatch, mode: str, job: str = "17") -> None:
        monkeypatch.setattr("manapy.chain.supervisor.LOCK_WAIT", 0.1)
        monkeypatch.setattr("manapy.chain.supervisor.ORPHAN_WAIT", 0.1)
        monkeypatch.setattr(batch, "BUSY_SECONDS", 0.1)
        history.chain.record |= {"mode": mode, "sbatch": []}
        history.begin(id=job)
        self.chain, self.said = history.chain, list[str]()
        self.other = Supervisor(history.chain, Policy(), Limits(), print)

    def guard(self) -> int:
        """Returns the exit code of the batch job."""
        return batch.guard(Supervisor(self.chain, Policy(), Limits(), self.said.append, at_once=False), None, 0.05)


@pytest.mark.parametrize("mode", ["requeue", "chain"])
@pytest.mark.parametrize("busy", ["supervisor", "job"])
def test_allocation_that_waits_until_its_end(
    slurm: FakeSlurm, history: History, monkeypatch: pytest.MonkeyPatch, mode: str, busy: str
) -> None:
    """Slurm has requeued a job whose node does not answer, but the supervisor there, or its job, is still at work. The
    next allocation waits on."""
    waiting = Waiting(history, monkeypatch, mode)
    if busy == "job":
        history.step(history.job(1, "running"))
        monkeypatch.setattr("manapy.ckpt.store.job.Job.is_live", lambda self: True)
        waiting.other._lock.close()
    slurm.job(EndTime=fake_slurm.at(time.time() + timing.SETTLE + 2))
    slurm.answer("scontrol", "kill -TERM $PPID")
    assert waiting.guard() == (batch.EXIT_GAVE_UP if mode == "requeue" else 0)
    assert slurm.calls("scontrol requeue") == ["scontrol requeue 17"] * (mode == "requeue")
    assert len(slurm.calls("sbatch")) == (mode == "chain")
    what = "another manapy is at work on this chain" if busy == "supervisor" else "still runs"
    lines = [line for line in waiting.said if line.endswith("; this allocation waits")]
    assert len(lines) > 1 and all(what in line for line in lines)
    assert waiting.said.count("the allocation ends: the next allocation waits on") == 1
    assert not [*history.chain.events("end"), *history.chain.events("stopped")]


def test_allocation_that_waits_for_the_end_of_the_chain(
    slurm: FakeSlurm, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Waiting(history, monkeypatch, "requeue")

    def finish() -> None:
        history.end("finished", 3)
        history.note("finished", code=3)
        waiting.other._lock.close()

    threading.Timer(1.0, finish).start()
    assert waiting.guard() == 3
    assert slurm.calls("scontrol") == []
    assert waiting.said[-1].endswith("/chain: this chain has finished with exit code 3: nothing is left to do")


def test_scancel_of_an_allocation_that_waits(
    slurm: FakeSlurm, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Waiting(history, monkeypatch, "chain")
    slurm.job("kill -TERM $PPID", JobState="CANCELLED")
    assert waiting.guard() == batch.EXIT_GAVE_UP
    assert slurm.calls("scancel") and history.chain.over() is not None


def test_job_that_is_none_of_the_chain(slurm: FakeSlurm, history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives way at once."""
    waiting = Waiting(history, monkeypatch, "chain", job="16")
    with pytest.raises(BusyError, match="another manapy is at work on this chain"):
        waiting.guard()
    assert slurm.calls() == [] and waiting.said == []


def test_while_slurm_does_not_answer(slurm: FakeSlurm, tmp_path: Path) -> None:
    """The guard asks again until it knows whether the job may be requeued, and until the job is requeued."""
    slurm.job(PreemptTime=fake_slurm.at(0), fails=2)
    slurm.answer("scontrol", "kill -TERM $PPID", fails=3)  # the first call asks for steps
    done = fake_slurm.guard(tmp_path / "chain", script="exec sleep 600")
    assert "the job continues in the next allocation" in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert "must not be requeued" not in done.stderr
    assert slurm.calls("scontrol requeue") == 3 * ["scontrol requeue 17"]


def test_a_successor_while_slurm_does_not_answer(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answer("sbatch", "echo 18", fails=2)
    done = fake_slurm.guard(tmp_path / "chain", "--mode", "chain", script="exit 3")
    assert done.returncode == 3, done.stderr
    assert [event["id"] for event in events_in(tmp_path / "chain", "successor")] == ["18"]


@pytest.mark.parametrize("tries", [0, 1])
@pytest.mark.parametrize(
    ("after", "script", "id"),
    [
        ("afterany:17(unfulfilled)", "batch.sh", "18"),
        ("afterany:17(unfulfilled)", "another.sh", "19"),
        ("afterany:171(unfulfilled)", "batch.sh", "19"),
    ],
)
def test_a_successor_that_slurm_accepts_without_an_answer(
    slurm: FakeSlurm, tmp_path: Path, after: str, script: str, id: str, tries: int
) -> None:
    """It is found in the queue, and no second one is submitted, neither by this guard nor, if that has died, by the
    next one. Others are not taken for it."""
    chain, tried = tmp_path / "chain", f"[ $(grep -c '^sbatch ' {tmp_path}/bin/calls) -ge {tries} ]"
    slurm.answer("sbatch", "echo 19", fails=tries)
    slurm.job(f"case \"$*\" in *PENDING*) {tried} && echo '18|{after}|{chain}/{script}'; exit 0;; esac")
    done = fake_slurm.guard(chain, "--mode", "chain", script="exit 3")
    assert done.returncode == 3, done.stderr
    assert [event["id"] for event in events_in(chain, "successor")] == [id]
    assert len(slurm.calls("sbatch")) == tries + (id == "19")


def test_a_successor_that_slurm_accepts_later(slurm: FakeSlurm, tmp_path: Path) -> None:
    """Slurm has accepted the job of the first try after the look that was to find it. The younger job is cancelled."""
    chain, both = tmp_path / "chain", tmp_path / "both"
    slurm.answer("sbatch", f"touch {both}; echo 18", fails=1)
    queued = "; ".join(f"echo '{id}|afterany:17(unfulfilled)|{chain}/batch.sh'" for id in (19, 18))
    slurm.job(f'case "$*" in *PENDING*) [ ! -e {both} ] || {{ {queued}; }}; exit 0;; esac')
    done = fake_slurm.guard(chain, "--mode", "chain", script="exit 3")
    assert done.returncode == 3, done.stderr
    assert [event["id"] for event in events_in(chain, "successor")] == ["18"]
    assert len(slurm.calls("sbatch")) == 2
    assert slurm.calls("scancel") == [f"scancel --state=PENDING {id}" for id in (19, 18)]


def test_sentinel_while_slurm_does_not_answer(
    slurm: FakeSlurm, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("manapy.chain.slurm.PAUSE", 0.01)
    history.chain.record["mode"] = "chain"
    history.begin()
    slurm.answer("scontrol", "echo n2")  # n1 is lost
    slurm.answer("scancel", "", fails=2)
    sentinel.watch(history.chain, "17", "n1", 0.01)
    assert slurm.calls("scancel") == 3 * ["scancel 17"]


@pytest.mark.parametrize(("state", "submitted"), [("PENDING", ["18"]), ("COMPLETED", ["18", "19"])])
def test_job_that_comes_again_before_its_successor(
    slurm: FakeSlurm, tmp_path: Path, state: str, submitted: list[str]
) -> None:
    """Slurm has requeued it after the loss of a node. It needs no second successor. In the end none is queued."""
    chain = tmp_path / "chain"
    slurm.answer("sbatch", "echo 18")
    slurm.job()
    script = "[ ! -e again ] || exit 3; touch again; kill -KILL $PPID"
    fake_slurm.guard(chain, "--mode", "chain", script=script)
    slurm.answer("sbatch", "echo 19")
    slurm.job(f"case \"$*\" in *jobs=18*) echo '{fake_slurm.line(JobState=state)}'; exit;; esac")
    done = fake_slurm.guard(chain, script=script)
    assert done.returncode == 3, done.stderr
    assert [event["id"] for event in events_in(chain, "successor")] == submitted
    assert sorted(slurm.calls("scancel")) == [f"scancel --state=PENDING {job}" for job in submitted]


def test_successor_that_cannot_be_cancelled_at_once(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answer("scancel", "", fails=2)
    assert fake_slurm.guard(tmp_path / "chain", "--mode", "chain", script="exit 3").returncode == 3
    assert slurm.calls("scancel") == 3 * ["scancel --state=PENDING 18"]


def test_successor_that_cannot_be_cancelled(
    slurm: FakeSlurm, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line says so. A job that is gone is none of these."""
    monkeypatch.setattr(batch, "HASTE_SECONDS", 0)
    said: list[str] = []
    history.begin()
    history.note("successor", id="18")
    supervisor = Supervisor(history.chain, Policy(), Limits(), said.append)
    slurm.answer("scancel", "echo 'scancel: error: Kill job error on job id 18: Invalid job id specified' >&2; exit 1")
    batch._cancel_successors(supervisor)
    assert said == []
    slurm.answer("scancel", "", fails=100)
    batch._cancel_successors(supervisor)
    assert said == ["cannot cancel job 18, which would continue the chain (scancel: no controller): scancel 18"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.EIO, "Input/output error", "/x"), "/x: Input/output error"),
        (ZeroDivisionError("never divide"), "internal error: ZeroDivisionError('never divide')"),
    ],
)
def test_error_of_our_own(
    slurm: FakeSlurm, history: History, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    """The job comes again, and a line says why. It counts as a crash: after the third one the chain gives up."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(Attempt, "run", fail)
    slurm.answer("scontrol", "kill -TERM $PPID")
    history.chain.record |= {"mode": "requeue", "sbatch": []}
    said: list[str] = []
    supervisor = Supervisor(history.chain, Policy(), Limits(), said.append)
    for times in (1, 2, 2):
        assert batch.guard(supervisor, None, 60) == batch.EXIT_GAVE_UP
        assert slurm.calls("scontrol") == ["scontrol requeue 17"] * times
    assert said[:2] == [f"{reason}: the job continues in the next allocation, from the last checkpoint"] * 2
    assert said[2].startswith("giving up: it crashed 3 times in a row")
    assert [(end["how"], end["reason"]) for end in history.chain.events("end")] == [("crashed", reason)] * 3


@pytest.mark.parametrize("passes", [True, False])
def test_error_before_an_attempt(
    slurm: FakeSlurm, history: History, monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    """As while a file server starts again. The guard tries again; if that does not help, the job comes again."""
    monkeypatch.setattr(batch, "PASSING_SECONDS", 60.0 if passes else 0.0)
    monkeypatch.setattr(batch, "PASSING_PAUSE", 0.01)
    monkeypatch.setattr(Attempt, "run", lambda *_: Outcome("finished", 3))
    acquire, calls = Lock.acquire, list[float]()

    def fail(lock: Lock, patience: float) -> None:
        calls.append(patience)
        if not passes or len(calls) <= 2:
            raise OSError(errno.ESTALE, "Stale file handle", "/x")
        acquire(lock, patience)

    monkeypatch.setattr(Lock, "acquire", fail)
    slurm.answer("scontrol", "kill -TERM $PPID")
    history.chain.record |= {"mode": "requeue", "sbatch": []}
    said: list[str] = []
    supervisor = Supervisor(history.chain, Policy(), Limits(), said.append, at_once=False)
    if passes:
        assert batch.guard(supervisor, None, 60) == 3
        assert said[0] == "/x: Stale file handle: trying again" and len(set(calls)) == 1
        assert slurm.calls("scontrol requeue") == []
    else:
        assert batch.guard(supervisor, None, 60) == batch.EXIT_GAVE_UP
        assert said[0] == "/x: Stale file handle: the next allocation tries again"
        assert slurm.calls("scontrol requeue") == ["scontrol requeue 17"]
        assert history.chain.events() == []


def test_error_that_does_not_pass() -> None:
    for error in (ManapyError("another manapy has taken over"), PermissionError(errno.EACCES, "Permission denied")):
        with pytest.raises(type(error)):
            batch.patiently(lambda error=error: fake_slurm.fail(error), print)


def test_spare_nodes_that_cannot_be_chosen(slurm: FakeSlurm, history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job comes again, and this counts as a crash."""
    monkeypatch.setattr("manapy.chain.spares.AllocatedNodes", lambda *_: fake_slurm.fail(ManapyError("no nodes")))
    slurm.answer("scontrol", "kill -TERM $PPID")
    history.chain.record |= {"mode": "requeue", "sbatch": [], "spares": {}}
    supervisor = Supervisor(history.chain, Policy(), Limits(), print)
    assert batch.guard(supervisor, None, 60) == batch.EXIT_GAVE_UP
    assert slurm.calls("scontrol requeue") == ["scontrol requeue 17"]
    assert [(end["how"], end["reason"]) for end in history.chain.events("end")] == [("crashed", "no nodes")]


def test_one_more_attempt(slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user submits a chain again that gave up. --force holds once, also if Slurm requeues this job."""
    chain = tmp_path / "chain"

    def submitted(job: str, *words: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setenv("SLURM_JOB_ID", job)
        return fake_slurm.guard(chain, "--max-restarts", "0", *words, script="kill -KILL $PPID")

    submitted("17")
    again = f"sbatch --chdir={tmp_path} {chain}/batch.sh --force"
    for attempts, job, words in ((1, "18", []), (2, "19", ["--force"])):
        if words:
            submitted(job, *words)
        done = submitted(job, *words)
        assert len(events_in(chain, "attempt")) == attempts
        assert done.returncode == batch.EXIT_GAVE_UP and f"one more attempt: {again}\n" in done.stderr
        assert events_in(chain, "stopped")[-1]["again"] == again
    assert [note["text"] for note in events_in(chain, "note")] == ["--force: one more attempt in any case"]
    assert (chain / "batch.sh").read_text().endswith(' "$@"\n')


@pytest.mark.parametrize("mode", ["requeue", "chain"])
def test_job_of_the_script_that_a_user_has_stopped(
    slurm: FakeSlurm, history: History, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """The chain stays stopped until the user submits it again: no requeue, and no successor."""
    outcomes = [Outcome("stopped", reason="step 1 was stopped by the user"), Outcome("finished", 3)]
    monkeypatch.setattr(Attempt, "run", lambda *_: outcomes.pop(0))
    history.chain.record |= {"mode": mode, "sbatch": ["--time=30"]}
    said: list[str] = []
    supervisor = Supervisor(history.chain, Policy(), Limits(), said.append)
    assert batch.guard(supervisor, None, 60) == batch.EXIT_STOPPED == 75
    assert slurm.calls("scontrol requeue") == []
    assert slurm.calls("scancel") == ["scancel --state=PENDING 18"] * (mode == "chain")
    again = f"sbatch --time=30 {history.chain.dir}/batch.sh"
    assert said[-1] == f"step 1 was stopped by the user; continue: {again}"
    over = history.chain.over()
    assert over is not None and (over["event"], over["again"]) == ("stopped", again)
    assert [event["how"] for event in history.chain.events("end")] == ["stopped"]
    assert batch.guard(supervisor, None, 60) == 3, "submitted again, it goes on"


@pytest.mark.parametrize("mode", ["requeue", "chain"])
@pytest.mark.parametrize("enough", [True, False])
def test_nodes_that_are_excluded(
    slurm: FakeSlurm, history: History, monkeypatch: pytest.MonkeyPatch, mode: str, enough: bool
) -> None:
    """From the requeued job, or from each successor, as soon as it is queued. Those of the user remain excluded. If the
    others are not enough, the job is left as it is, and a line says so."""
    excluded = {"17": "n[7-8]", "18": ""}
    asked = " ".join(f"*jobs={job}*%x*) echo '2|main|{nodes}'; exit;;" for job, nodes in excluded.items())
    slurm.job(f'case "$*" in {asked} esac')
    slurm.answer("sinfo", f"seq -f n%g {5 if enough else 1}")
    slurm.answer("scontrol", 'case "$*" in *hostnames*) echo n7; echo n8;; esac')
    history.chain.record |= {"mode": mode, "sbatch": []}
    history.begin()
    allocation = Allocation(None, 60)
    allocation.ended = "Slurm sent SIGTERM"
    said: list[str] = []
    again = batch._requeue_later(history.chain, allocation, said.append)
    assert slurm.calls("scontrol update") == []
    history.note("excluded", nodes=["n3", "n8"])
    again()
    job, nodes = ("17", "n7,n8,n3") if mode == "requeue" else ("18", "n3,n8")
    updates = [f"scontrol update JobId={job} ExcNodeList={nodes}"] if enough else []
    why_not = "only 1 of the nodes of partition main would be left, and the job needs 2"
    assert said[-1] == "n3, n8: excluded from now on" if enough else said[-1].endswith(f"from job {job} ({why_not})")
    assert slurm.calls("scontrol update") == updates
    calls = [call for call in slurm.calls("scontrol") if "hostnames" not in call]
    assert calls == [*["scontrol requeue 17"] * (mode == "requeue"), *updates]
    if mode == "chain":
        batch._requeue_later(history.chain, allocation, said.append)
        assert slurm.calls("scontrol update") == [*updates, *updates]


@pytest.mark.parametrize(
    ("how", "host", "nodes"),
    [
        ("hung", "n1", ["n2", "n1"]),
        ("hung", "n1.cluster", ["n2", "n1"]),
        ("hung", "n2.cluster", ["n2"]),
        ("hung", "n3.cluster", ["n2", "n3.site"]),
        ("hung", "elsewhere", ["n2"]),
        ("hung", "", ["n2"]),
        ("crashed", "n1", ["n2"]),
    ],
)
def test_names_of_nodes_that_are_excluded(slurm: FakeSlurm, how: str, host: str, nodes: list[str]) -> None:
    """After a hang, the name that Slurm has for the host, whatever the host calls itself."""
    slurm.answer("scontrol", "echo n1; echo n2; echo n3.site")
    slurm.answer("sinfo", "echo n1 allocated; echo n2 down; echo n3.site allocated")
    assert batch._unwell(Allocation(None, 60), Outcome(how, 1, host=host)) == nodes


@pytest.mark.parametrize(
    ("job", "shown", "had", "left", "enough"),
    [
        ("17", "1", "2", 1, False),  # one of its nodes has completed already
        ("17", "1", "2", 2, True),
        ("17", "2", "1", 1, False),
        ("17", "1", "", 1, True),
        ("18", "1", "2", 1, True),  # another job than that of the environment
        ("17_3", "1", "2", 1, False),
        ("18", "1024", "", 1023, False),
    ],
)
def test_nodes_that_a_job_needs(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, job: str, shown: str, had: str, left: int, enough: bool
) -> None:
    """While a requeued job is completing, squeue gives only the nodes that have not completed."""
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", had)
    if "_" in job:
        for name, number in zip(("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"), job.split("_"), strict=True):
            monkeypatch.setenv(name, number)
    rounded = "1K" if shown == "1024" else shown
    slurm.answer("squeue", f"case \"$*\" in *--noconvert*) echo '{shown}|main|';; *) echo '{rounded}|main|';; esac")
    slurm.answer("sinfo", f"echo bad; seq -f n%g {left}")
    if enough:
        assert exclude(job, ["bad"])
    else:
        with pytest.raises(TooFewNodes, match=f"only {left} of the nodes .* the job needs {max(shown, had)}$"):
            exclude(job, ["bad"])
    assert slurm.calls("scontrol update") == [f"scontrol update JobId={job} ExcNodeList=bad"] * enough


def test_job_that_is_killed_after_scancel(slurm: FakeSlurm, tmp_path: Path) -> None:
    """While it is saved: Slurm kills it after KillWait. Its successor was cancelled before."""
    chain = tmp_path / "chain"
    where = tmp_path / "bin"
    wait = f"while ! grep -q scancel {where}/calls; do sleep 0.05; done"
    end = f"mv {where}/squeue.later {where}/squeue; kill -TERM $PPID; {wait}"
    slurm.job(JobState="CANCELLED")
    (where / "squeue").rename(where / "squeue.later")
    slurm.job()
    slurm.answer("scancel", "kill -KILL $PPID")
    done = fake_slurm.guard(chain, "--mode", "chain", script=end)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert slurm.calls("scancel") == ["scancel --state=PENDING 18"]
    assert [event["reason"] for event in events_in(chain, "stopped")] == ["job 17 was cancelled"]
    assert events_in(chain, "end") == []
