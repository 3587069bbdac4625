"""Children of the MPI process, started by an exec or a fork, with what they share with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from jobs import PROGRAMS, Job, oks
from restarts import check, restart_twice

KINDS = [
    ("popen", "fork"),
    ("aio", "fork"),
    ("pool", "spawn"),
    ("executor", "fork"),
    ("executor", "spawn"),
    ("pipe", "fork"),
    ("pipe_closed", "fork"),
    ("pipe_closed", "spawn"),
    ("value", "fork"),
    ("value", "spawn"),
    ("posix", "fork"),
    ("posix", "spawn"),
    ("manager", "fork"),
    ("manager", "spawn"),
    ("pool", "forkserver"),
]


@pytest.mark.parametrize("kind, method", KINDS)
def test_helpers_of_python(job: Job, kind: str, method: str) -> None:
    job.start(sys.executable, PROGRAMS / "state/helper_processes.py", kind, method, "go")
    restart_twice(job)
    assert oks(job.finish()) == 1


def test_posix_memory_is_that_of_the_checkpoint(job: Job) -> None:
    """Meanwhile one file has gone, and another one was written to."""
    go = job.where / "go"
    job.env["STATE_GO"] = str(go)
    job.start(sys.executable, PROGRAMS / "state/state_files.py", "posix_memory")
    job.wait_for(lambda text: text.count("ready") == job.ranks)
    pids = job.pids()
    job.checkpoint()
    job.kill()
    for pid in pids:
        Path(f"/dev/shm/manapy-test-{pid}-lost").unlink()
        Path(f"/dev/shm/manapy-test-{pid}-changed").write_bytes(b"other")
    job.restart()
    check(job, go, job.ranks)
