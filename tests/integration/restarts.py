"""Kills and restarts jobs of programs with the frame checkpointed.h, which print nothing meanwhile."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from jobs import PATIENCE, Job, JobError, oks
from launchers import Launcher
from rounds import rounds


def check(job: Job, go: Path, ranks: int, timeout: float = PATIENCE) -> None:
    go.touch()
    output = job.finish(timeout)
    assert oks(output) == ranks and "FAILED" not in output, output


def restart(job: Job) -> None:
    """Kill and restart a job; returns when all ranks run again (the program prints nothing)."""
    coordinator = job.status()["pid"]
    job.kill()
    job.restart()
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            status = job.status()
            if status["pid"] != coordinator and all(
                (r.get("mpi"), r["state"]) == ("up", "running") for r in status["ranks"]
            ):
                return
        except JobError:  # neither the old coordinator nor the new one exists
            pass
        assert job.process is not None and job.process.poll() is None and time.monotonic() < deadline, job.report()
        time.sleep(0.05)


def restart_twice(job: Job) -> None:
    """Through two restarts, and a checkpoint after which it goes on."""
    job.wait_for("ready")
    for _ in range(2):
        job.checkpoint()
        restart(job)
    job.checkpoint()
    (job.where / "go").touch()


def refused(job: Job, reason: str) -> None:
    """A job of one rank cannot be saved for this reason, and goes on."""
    job.wait_for("ready")
    with pytest.raises(JobError, match=f"rank 0: .*{reason}"):
        job.checkpoint()
    (job.where / "go").touch()
    assert "goes on" in job.finish()


def through_restart(job: Job, program: Path, second: Launcher | None = None, timeout: float = PATIENCE) -> None:
    """Start a program that waits for STATE_GO, kill and restart it twice, and let it check. second: restart it under
    this MPI. If it is another one than at first, once: what a second restart does is then the same as for a job that
    was started there. timeout: seconds for the check."""
    go = job.where / "go"
    job.env["STATE_GO"] = str(go)
    job.start(program)
    job.wait_for(lambda text: text.count("ready") == job.ranks)
    changes = second is not None and second.mpirun != job.mpirun
    for _ in range(rounds(1, 2) if changes else 2):
        job.checkpoint()
        job.mpirun = second.mpirun if second else job.mpirun
        restart(job)
    check(job, go, job.ranks, timeout)
