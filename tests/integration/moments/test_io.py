"""MPI-IO at random moments: data that a killed run wrote after a checkpoint must not appear in the files. Also files
that no longer exist."""

from __future__ import annotations

import random
import re
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from jobs import Job
from rounds import rounds
from test_random_moments import checkpoints, in_output, kills


def mix(job: Job, seed: int, steps: int, protocol: str = "cc") -> Path:
    """Start the job, and wait until its files are open: data written into a file that isn't open stays there. Returns
    the file that lets the job end."""
    go = job.hold(steps - 20)
    job.start_python(
        "steps/io_mix.py",
        str(seed),
        str(steps),
        str(job.where / "file"),
        "--pause",
        "0.05",
        options=["--keep", "2", "--protocol", protocol],
    )
    job.wait_for("step 0")
    return go


def test_and_go_on(make_job: Callable[..., Job]) -> None:
    job = make_job(3)
    checkpoints(job, mix(job, 1, 100), random.Random(1))
    assert in_output(job, "files right"), job.report()


@pytest.mark.parametrize(("ranks", "protocol"), [(4, "cc"), (3, "2pc")])
def test_and_restart(make_job: Callable[..., Job], ranks: int, protocol: str) -> None:
    job = make_job(ranks)
    kills(job, mix(job, 10 + ranks, 100, protocol), 10 + ranks, rounds(2, 4))
    assert in_output(job, "files right"), job.report()


MODE_DELETE_ON_CLOSE = 16

HOLD = """
import os, sys, time
from mpi4py import MPI
f = MPI.File.Open(MPI.COMM_WORLD, "held", MPI.MODE_RDWR | MPI.MODE_CREATE | int(sys.argv[1]))
f.Write_at_all(MPI.COMM_WORLD.rank * 100, bytes([1]) * 100)
print("ready", flush=True)
while not os.path.exists("go"): time.sleep(0.01)
MPI.COMM_WORLD.Barrier()
data = bytearray(200)
f.Read_at(0, data)
os.write(1, b"size %d %d\\n" % (f.Get_size(), data.count(1)))
f.Close()
"""


def killed(job: Job, mode: int = 0) -> Job:
    """A job of two ranks that was killed after a checkpoint. The file `held` is open and has 200 bytes with the value
    1."""
    job.start(sys.executable, "-c", HOLD, str(mode))
    job.wait_for(lambda text: text.count("ready") == 2)
    job.checkpoint()
    job.kill()
    return job


@pytest.fixture
def held(make_job: Callable[..., Job]) -> Job:
    return killed(make_job(2))


def refused(job: Job) -> str:
    assert job.restart().wait() != 0
    return job.output()


def test_grown_file_is_cut(held: Job) -> None:
    with (held.where / "held").open("ab") as file:
        file.write(bytes(50))
    (held.where / "go").touch()
    assert held.restart().finish().count("size 200 200") == 2


def test_file_to_which_others_write(make_job: Callable[..., Job]) -> None:
    """At the checkpoint each rank sees another size; after the restart all have the same."""
    job = make_job(2)
    job.start(sys.executable, "-c", HOLD, "0")
    job.wait_for(lambda text: text.count("ready") == 2)
    enough = threading.Event()

    def write() -> None:
        with (job.where / "held").open("ab", buffering=0) as file:
            while not enough.is_set():
                file.write(bytes(1))

    with ThreadPoolExecutor() as pool:
        writing = pool.submit(write)
        try:
            job.checkpoint()
        finally:
            enough.set()
        writing.result()
    job.kill()
    (job.where / "go").touch()
    sizes = re.findall(r"size (\d+) 200", job.restart().finish())
    assert len(sizes) == 2 and sizes[0] == sizes[1] and int(sizes[0]) >= 200, job.report()


def test_shorter_file_is_refused(held: Job) -> None:
    (held.where / "held").write_bytes(bytes(199))
    assert "MPI file 'held' is shorter now than at the checkpoint" in refused(held)


def test_missing_file_is_refused(held: Job) -> None:
    (held.where / "held").unlink()
    assert "cannot open again the MPI file 'held': File does not exist" in refused(held)


@pytest.mark.parametrize("change", ["gone", "longer", "shorter"])
def test_file_to_be_deleted_is_saved(make_job: Callable[..., Job], change: str) -> None:
    """The content is restored, whatever has happened to the file."""
    job = killed(make_job(2), MODE_DELETE_ON_CLOSE)
    file = job.where / "held"
    if change == "gone":
        file.unlink()
    else:
        file.write_bytes(bytes(300 if change == "longer" else 7))
    (job.where / "go").touch()
    assert job.restart().finish().count("size 200 200") == 2
    assert not file.exists()
