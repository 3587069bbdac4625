"""The process that speaks for a rank changes, or another program takes its place, at an inconvenient moment."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

import compiling
import pytest
from jobs import PROGRAMS, Job, JobError, oks
from restarts import restart
from waiting import until

pytestmark = pytest.mark.mpi

# When the coordinator knows rank 0, that forks, and then execs
HOLDING = """
if [ $PMI_RANK != 0 ]; then "$@"; sleep 4; exit; fi
echo starting
while [ ! -e begin ]; do sleep 0.1; done
(while kill -0 $$; do sleep 0.1; done) > /dev/null 2>&1 &
exec "$@"
"""
HELPED = """
sh -c 'while [ ! -e go ]; do sleep 0.2; done; echo helper: ends' &
echo starting
while [ ! -e begin ]; do sleep 0.1; done
exec "$@"
"""
# cannot be saved, and so each check lasts as long as the grace time
STATIC = "#include <unistd.h>\nint main(void) { return sleep(1000); }\n"
BESIDE = '"$0" & "$@"; code=$?; kill $!; exit $code'
DISABLED = """
import os, subprocess, sys, time
from manapy import dmtcp
dmtcp.dmtcp_disable_ckpt()
print("disabled", flush=True)
while not os.path.exists("begin"):
    time.sleep(0.01)
sys.exit(subprocess.call(sys.argv[1:]))
"""


@pytest.fixture
def wide(c_program: Callable[[Path], Path]) -> str:
    return str(c_program(PROGRAMS / "native/wide.c"))


def test_a_child_of_before_the_exec_lives_on(job: Job, wide: str) -> None:
    """It has a copy of the connection to the coordinator. It is saved with the rank."""
    job.start("bash", "-c", HOLDING, "bash", wide, "go")
    job.wait_for("starting")
    job.pids()
    (job.where / "begin").touch()
    job.wait_for("ready")
    job.checkpoint()
    (job.where / "go").touch()
    assert oks(job.finish()) == 1


def test_a_helper_of_before_the_exec(make_job: Callable[..., Job], wide: str) -> None:
    """It was a member of the tree of the program that the exec has replaced."""
    job = make_job(1)
    job.start("bash", "-c", HELPED, "bash", wide, "go")
    job.wait_for("starting")
    job.pids()
    (job.where / "begin").touch()
    job.wait_for("ready")
    for _ in range(2):
        job.checkpoint()
        restart(job)
    (job.where / "go").touch()
    output = job.finish()
    assert oks(output) == 1 and "helper: ends" in output, output


def test_the_mpi_process_ends_while_it_is_checked(make_job: Callable[..., Job], wide: str, tmp_path: Path) -> None:
    sleeper = compiling.build(tmp_path / "sleeper", STATIC, "-static")
    job = make_job(1)
    job.start("bash", "-c", BESIDE, sleeper, wide, "go", options=["--child-grace", "20", "--interval", "0.5"])
    job.wait_for("ready")
    until(lambda: job.status()["phase"] == "checking", "a check")
    (job.where / "go").touch()
    assert oks(job.finish()) == 1
    assert job.record()["code"] == 0


def test_the_parent_has_disabled_checkpoints(job: Job, wide: str) -> None:
    """It waits for the MPI program, and the checkpoint for the parent."""
    job.start(sys.executable, "-c", DISABLED, wide, "go", options=["--interval", "0.5"])
    job.wait_for("disabled")
    until(lambda: job.status()["phase"] == "checking", "a check")
    (job.where / "begin").touch()
    job.wait_for("ready")
    with contextlib.suppress(JobError):
        job.checkpoint()
    (job.where / "go").touch()
    assert oks(job.finish()) == 1
