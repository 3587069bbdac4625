"""Kills and restarts jobs of programs with the frame checkpointed.h, which print nothing meanwhile."""

from __future__ import annotations

import time
from pathlib import Path

from jobs import PATIENCE, Job, JobError


def check(job: Job, go: Path, ranks: int) -> None:
    go.touch()
    output = job.finish()
    assert output.count("ok") == ranks and "FAILED" not in output, output


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
