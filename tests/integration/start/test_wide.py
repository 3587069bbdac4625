"""Many ranks on one node, and the descriptors that their launcher leaves open to them. Hydra leaves four pipes per
rank, so with 128 ranks the last one begins with about 500."""

from __future__ import annotations

import fcntl
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import BIN, PROGRAMS, Job
from rounds import rounds

# Becomes mpirun after it has left descriptors open, under a limit of 1024: 700 pipes, and one of each kind that can't
# be saved, or can't be saved twice.
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
    """The descriptors don't belong to the program, whatever they are and whatever numbers they have. A restart needs
    none of them, and keeps its own connections away from the numbers of the program's descriptors."""
    job = make_job(2)
    go, program = job.where / "go", c_program(PROGRAMS / "native/wide.c")
    job.mpirun = [sys.executable, "-c", LEAKS, BIN / "mpirun"]
    job.start(program, go)
    assert int(re.findall(r"descriptor (\d+)", job.wait_for("ready"))[0]) > 700
    job.checkpoint()
    job.kill()
    with (job.where / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process holds the lock now
        job.mpirun = [BIN / "mpirun"]
        job.restart()
        ended(job, go)


@pytest.mark.slow
def test_many_ranks_on_a_node(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    job = make_job(rounds(128, 256))
    go = job.where / "go"
    job.start(c_program(PROGRAMS / "native/wide.c"), go)
    job.wait_for("ready")
    job.checkpoint()
    job.kill()
    job.restart()
    ended(job, go)
