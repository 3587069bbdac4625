"""Pseudo-terminals between processes of a rank are saved and come back. (state_ptys.py: within one process.)"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import PROGRAMS, Job, oks
from restarts import refused, restart, restart_twice

CHILDREN = PROGRAMS / "state/terminal_children.py"


@pytest.fixture
def wide(c_program: Callable[[Path], Path]) -> str:
    return str(c_program(PROGRAMS / "native/wide.c"))


def test_they_go_on(job: Job) -> None:
    job.start(sys.executable, CHILDREN, "go")
    job.wait_for("ready")
    job.checkpoint()
    job.checkpoint()
    (job.where / "go").touch()
    assert oks(job.finish()) == 1


@pytest.mark.parametrize("ways", ["", "--background auto --dirty auto --compress on"], ids=["plain", "all ways"])
def test_they_come_back(job: Job, ways: str) -> None:
    job.start(sys.executable, CHILDREN, "go", options=ways.split())
    restart_twice(job)
    assert oks(job.finish()) == 1


def test_their_numbers_are_taken(job: Job) -> None:
    """The paths that the program knows lead to them, also when other terminals have these names at the restart."""
    job.start(sys.executable, CHILDREN, "go")
    job.wait_for("ready")
    job.checkpoint()
    job.kill()
    taken = [os.openpty() for _ in range(8)]
    job.restart()
    job.wait_until_it_runs()
    for end in itertools.chain(*taken):
        os.close(end)
    job.checkpoint()
    restart(job)
    (job.where / "go").touch()
    assert oks(job.finish()) == 1


def test_script(job: Job, wide: str) -> None:
    """The MPI program itself is on a terminal that the command script has made."""
    job.start("script", "-qec", f"{wide} go; tty -s; echo on a terminal: $?", "/dev/null")
    restart_twice(job)
    output = job.finish()
    assert oks(output) == 1 and output.count("on a terminal: 0") == job.ranks, output


def test_the_terminal_of_a_rank_itself(make_job: Callable[..., Job]) -> None:
    """A restart cannot give it to the process that mpirun starts."""
    job = make_job(1)
    program = """
import fcntl, os, pty, sys, termios, time
from mpi4py import MPI
os.getsid(0) == os.getpid() or os.setsid()
master, slave = pty.openpty()
fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
print("ready", flush=True)
while not os.path.exists("go"): time.sleep(0.01)
print("goes on", flush=True)
os._exit(0)
"""
    job.start(sys.executable, "-c", program)
    refused(job, r"descriptor \d+ is the controlling terminal of process \d+, which mpirun has started")
