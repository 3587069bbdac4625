"""`manapy run` watches its jobs: hung ones are ended and continue, all others are left alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs import PROGRAMS, manapy
from manapy.core import proc
from manapy.ckpt.store import publish
from runs import LAUNCH, Run, heat
from waiting import until

PATIENCE = "2s"
PATIENT = "1h"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Run]:
    """A chain that hasn't started."""
    made = Run(tmp_path)
    yield made
    made.end()


def hanging(kind: str) -> list[str]:
    return [*LAUNCH, str(PROGRAMS / "trace/stuck.py"), kind]


def watch_of(job: Run) -> int:
    """Wait until the job is watched: the process that does it."""

    def found() -> list[int]:
        assert job.process is not None
        watches = []
        for pid in proc.descendants(job.process.pid):
            with contextlib.suppress(OSError):  # it has ended
                if b"_watch" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    watches.append(pid)
        return watches

    return int(until(found, job.report)[0])


def evidence(job: Run, attempt: int) -> Path:
    return job.chain / "evidence" / f"attempt-{attempt:03d}" / "step-001"


def test_a_stopped_rank(job: Run, undisturbed: bytes) -> None:
    """It is ended after the patience, with evidence. The job continues, and its result is right.

    The states of processes are not in the copy of the recording: it must be long enough to show the rank as late."""
    job.run("--interval", "1s", "--patience", "8s", command=heat())
    job.wait_for_event("checkpoint", 2)
    os.kill(job.pids()[1], signal.SIGSTOP)
    hung = job.wait_for_event("hung")
    assert hung["sentence"].startswith("rank 1") and hung["host"] and not hung["place"]
    shown = manapy("status", job.chain).stdout  # its last events: checkpoints of the next attempt may have come
    assert f"certain: {hung['sentence']}" in shown or shown.count(" checkpoint ") > 2, shown
    job.finish()
    assert job.ends() == ["hung", "finished"]
    assert (job.where / "field.npy").read_bytes() == undisturbed
    assert "this is certain: ending the job" in job.output()
    verdicts = json.loads((evidence(job, 1) / "verdicts.json").read_text())
    assert (verdicts[0]["rank"], verdicts[0]["cause"]) == (1, "stopped process")
    assert b"rank 1" in (evidence(job, 1) / "report.html").read_bytes()
    again = manapy("why", evidence(job, 1) / "recording")
    assert again.returncode in (1, 3, 4), again.stdout + again.stderr
    assert "hung" in manapy("history", job.chain, "--no-plot").stdout
    (_, second) = json.loads(manapy("history", job.chain, "--json").stdout)["history"]
    assert set(second["recovery"]) == {"ended", "paused", "started", "restored"}
    assert all(0 <= seconds < 60 for seconds in second["recovery"].values())


@pytest.mark.parametrize(("kind", "cause"), [("deadlock", "deadlock"), ("skip", "missing call")])
def test_a_fault_of_the_program(job: Run, kind: str, cause: str) -> None:
    """It comes again at the same place. The chain gives up, and names the reports. A checkpoint of the hung job, if
    there was time for one, is not used."""
    job.run("--interval", "1s", "--patience", PATIENCE, command=hanging(kind))
    assert job.wait() == 1
    assert job.ends() == ["hung", "hung"]
    first, second = job.events("hung")
    assert first["place"] == second["place"] and first["place"][0] == cause
    assert f"giving up: it hung twice at the same place of the program: {second['sentence']}" in job.output()
    assert f"(evidence: {evidence(job, 1)} and {evidence(job, 2)})" in job.output()
    used = [Path(event["path"]) for event in job.events("step") if event["verdict"] == "resume"]
    assert all(publish.read_manifest(path).time < first["since"] for path in used)


def test_taken_back(job: Run, undisturbed: bytes) -> None:
    """A stopped rank is reported at once, and goes on before the patience has passed: nothing happens to the job."""
    job.run("--patience", PATIENT, command=heat())
    watch_of(job)
    rank = job.pids()[1]
    os.kill(rank, signal.SIGSTOP)
    job.wait_for_event("verdict")
    os.kill(rank, signal.SIGCONT)
    job.wait_for_event("withdrawn")
    job.finish()
    assert job.ends() == ["finished"] and not job.events("hung")
    assert "withdrawn: rank 1 goes on" in job.output()
    assert (job.where / "field.npy").read_bytes() == undisturbed


def test_a_late_job(job: Run) -> None:
    """A rank computes for longer than the patience, and the other one waits: this is reported, and nothing more."""
    job.run("--patience", "1s", command=hanging("spin"))
    late = job.wait_for_event("verdict")
    assert late["state"] == "late"
    watch = watch_of(job)
    before = ticks(watch)
    until(lambda: ticks(watch) >= before + 50, job.report)  # it has looked again and again
    assert not job.events("hung") and not job.events("end")


def ticks(pid: int) -> int:
    """Processor time, ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_the_watch_is_killed(job: Run, undisturbed: bytes) -> None:
    """The job goes on, and it is said that nobody watches it."""
    job.run("--patience", PATIENCE, command=heat())
    os.kill(watch_of(job), signal.SIGKILL)
    job.wait_for(f"{job.dir} is not watched: its watch has ended: see {job.chain / 'watch.log'}")
    job.finish()
    assert job.ends() == ["finished"] and (job.where / "field.npy").read_bytes() == undisturbed


def test_without_a_watch(job: Run) -> None:
    job.run("--watch", "off", "--patience", "0s", "--interval", "1s", command=heat())
    job.wait_for_event("checkpoint", 3)
    assert not (job.chain / "watch.log").exists()
    job.finish()
