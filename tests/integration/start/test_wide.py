"""Many ranks on one node, and what their launcher leaves open to them: hydra four pipes a rank, so that with 128 ranks
the last one begins with 500."""

from __future__ import annotations

import fcntl
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import BIN, PROGRAMS, Job

# Becomes mpirun after it has left open, under a limit of 1024 descriptors: 700 pipes, and one of each kind that can't
# be saved, or not twice.
LEAKS = """
import ctypes, fcntl, os, resource, select, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
epoll, lock = select.epoll(), open("lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
leaked = [fd for _ in range(350) for fd in os.pipe()] + [epoll.fileno(), lock.fileno(), os.eventfd(0), \
ctypes.CDLL(None).inotify_init()]
for fd in leaked:
    os.set_inheritable(fd, True)
os.execv(sys.argv[1], sys.argv[1:])
"""


def ended(job: Job, go: Path) -> None:
    go.touch()
    assert job.finish().splitlines()[-1] == "ok"


def test_a_launcher_that_leaves_much_open(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    """Whatever it is, and at whatever number: it is not the program's. A restart needs nothing of it, and has its own
    connections elsewhere than where the program's descriptors have to go."""
    job = make_job(2)
    go, program = job.where / "go", c_program(PROGRAMS / "native/wide.c")
    job.mpirun = [sys.executable, "-c", LEAKS, BIN / "mpirun"]
    job.start(program, go)
    assert int(re.findall(r"descriptor (\d+)", job.wait_for("ready"))[0]) > 700
    job.checkpoint()
    job.kill()
    with (job.where / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # somebody else's now
        job.mpirun = [BIN / "mpirun"]
        job.restart()
        ended(job, go)


@pytest.mark.slow
def test_128_ranks_on_a_node(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    job = make_job(128)
    go = job.where / "go"
    job.start(c_program(PROGRAMS / "native/wide.c"), go)
    job.wait_for("ready")
    job.checkpoint()
    job.kill()
    job.restart()
    ended(job, go)
