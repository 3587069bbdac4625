"""Faults of ranks that are trees of processes: each time one clear line, and the checkpoint stays as it was."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import BIN, PATIENCE, PROGRAMS, Job, manapy, oks, run
from waiting import until, until_gone

pytestmark = pytest.mark.mpi

# A companion with much memory that cannot be compressed, beside the MPI program
LARGE = """
import os, time
data = os.urandom(400 << 20)
print("large", os.getpid(), flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
"""
SHARING = """
import os, subprocess, sys
from multiprocessing import shared_memory
memory = shared_memory.SharedMemory(create=True, size=8 << 20)
memory.buf[:] = os.urandom(8 << 20)
assert subprocess.call([sys.argv[1], "go"]) == 0
memory.close()
memory.unlink()
print("ended", flush=True)
"""
SMALL = "mount -t tmpfs -o size=2m manapy-test /dev/shm"


@pytest.fixture
def wide(c_program: Callable[[Path], Path]) -> str:
    return str(c_program(PROGRAMS / "native/wide.c"))


def begun(job: Job, size: int) -> bool:
    """Is an image of a companion being written that is as large already?"""
    with contextlib.suppress(FileNotFoundError):
        return any(path.stat().st_size > size for path in job.dir.glob("tmp-*/rank-00000.*.img"))
    return False


def test_a_process_dies_during_the_checkpoint(make_job: Callable[..., Job], wide: str) -> None:
    job = make_job(1)
    job.start("bash", "-c", f"{sys.executable} -c '{LARGE}' & {wide} go; wait; echo goes on")
    job.wait_for(lambda text: "ready" in text and "large " in text)
    victim = int(next(line for line in job.output().splitlines() if line.startswith("large ")).split()[1])
    asked = subprocess.Popen([BIN / "manapy", "checkpoint", job.dir], stderr=subprocess.PIPE, text=True)
    until(lambda: begun(job, 50 << 20), "its image")
    os.kill(victim, signal.SIGKILL)
    said = asked.communicate(timeout=PATIENCE)[1].splitlines()
    assert asked.returncode != 0 and f"process {victim} has ended" in said[-1], said
    assert not list(job.dir.glob("ckpt-*"))
    until_gone([victim])
    assert job.checkpoint().exists()
    (job.where / "go").touch()
    assert oks(output := job.finish()) == 1 and "goes on" in output


@pytest.mark.parametrize("compress", ["on", "off"])
def test_restart_where_shared_memory_is_smaller(make_job: Callable[..., Job], wide: str, compress: str) -> None:
    if os.geteuid() != 0 or run(["unshare", "--mount", "bash", "-c", SMALL]).returncode:
        pytest.skip("mounting a tmpfs needs root")
    job = make_job(1)
    job.start(sys.executable, "-c", SHARING, wide, options=["--compress", compress])
    job.wait_for("ready")
    assert manapy("checkpoint", job.dir, "--then", "exit").returncode == 0
    job.wait()
    again = f"{SMALL}\n{BIN}/mpirun -n 1 {BIN}/manapy-restart {job.dir}"
    done = run(["unshare", "--mount", "bash", "-c", again], cwd=job.where)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("manapy")]
    said = [line for line in lines if "are not recorded" not in line]
    assert done.returncode != 0 and len(said) == 1 and "/dev/shm is full here, or smaller" in said[0], done
    assert manapy("verify", job.dir).returncode == 0
    job.restart()
    job.wait_until_it_runs()
    (job.where / "go").touch()
    assert oks(output := job.finish()) == 1 and "ended" in output
