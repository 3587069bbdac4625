"""`manapy stop --next` and `--before`: the end of a job that is ordered in advance."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta

from jobs import BIN, Job, manapy
from solver import MIDDLE, after, step
from waiting import until


def stop(job: Job, *options: str) -> subprocess.Popen[str]:
    command = [str(BIN / "manapy"), "stop", str(job.dir), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_later_stop(make_job: Callable[..., Job], undisturbed: bytes) -> None:
    """An order is shown, withdrawn, given again, and the job ends as ordered. It continues."""
    job = make_job(2)
    job.hold(MIDDLE)
    job.start_solver()
    job.wait_for(after(100))
    far = datetime.now() + timedelta(days=2)
    ordered = stop(job, "--before", far.isoformat(timespec="seconds"))
    until(lambda: f"the job ends before {far:%F %T}" in job.status()["waiting"], job.report)
    assert "the job goes on" in manapy("stop", job.dir, "--cancel").stdout
    assert "was withdrawn" in ordered.communicate(timeout=60)[1] and ordered.returncode == 1
    ordered = stop(job, "--next")
    until(lambda: "the job ends with its next checkpoint" in job.status()["waiting"], job.report)
    path = job.checkpoint()
    assert job.wait() == 0
    assert ordered.communicate(timeout=60)[0].strip() == str(path) and ordered.returncode == 0
    last = step(job.output())
    job.restart()
    job.wait_until_it_runs()
    assert step(job.finish()) > last
    assert (job.where / "field.npy").read_bytes() == undisturbed
