"""Children of the MPI process, started by an exec or a fork, with what they share with it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from compiling import build
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
    ("tcp_manager", "fork"),
    ("tcp_manager", "spawn"),
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


TWO_RANKS = """
import mmap, os, sys, time
from mpi4py import MPI
comm = MPI.COMM_WORLD
name = f"/dev/shm/manapy-test-ranks-{comm.bcast(os.getpid(), root=0)}"
if comm.rank == 0:
    with open(name, "xb") as stream:
        stream.truncate(mmap.PAGESIZE)
comm.Barrier()
with open(name, "r+b") as stream:
    memory = mmap.mmap(stream.fileno(), 0)
memory[comm.rank] = 1 + comm.rank
comm.Barrier()
print("ready", flush=True)
while not comm.bcast(os.path.exists("go"), root=0):
    assert bytes(memory[:2]) == bytes([1, 2])
    memory[2 + comm.rank] = (memory[2 + comm.rank] + 1) % 256
    comm.Barrier()
    assert memory[2] == memory[3]
    time.sleep(0.01)
    comm.Barrier()
if comm.rank == 0:
    os.unlink(name)
    print("ok", flush=True)
"""


def test_ranks_share_posix_memory(job: Job) -> None:
    """After a restart they share one new file."""
    job.start(sys.executable, "-c", TWO_RANKS)
    restart_twice(job)
    assert oks(job.finish()) == 1


ELSEWHERE = """
import os, subprocess, sys
from mpi4py import MPI
for _ in range(3):
    said = subprocess.check_output(["/elsewhere", "there"], preexec_fn=lambda: os.chroot("root"))
    assert said == b"there\\n", said
subprocess.run(["/bin/true", "x" * 100000, *["y" * 120000] * 15], check=True)
print("ok", flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change the root directory")
def test_a_child_with_another_root_directory(make_job: Callable[..., Job]) -> None:
    """manapy-launch does not exist there, so the child runs natively."""
    job = make_job(1)
    source = "#include <stdio.h>\nint main(int n, char **words) { return puts(words[n - 1]) < 0; }\n"
    root = job.where / "root"
    for library in ("/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6"):
        (root / library[1:]).parent.mkdir(parents=True)
        shutil.copy(library, root / library[1:])
    build(root / "elsewhere", source)
    job.start(sys.executable, "-c", ELSEWHERE)
    assert oks(job.finish()) == 1
