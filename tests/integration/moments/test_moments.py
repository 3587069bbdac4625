"""Checkpoints at inconvenient moments: they never hang, never change a result, and the awaited rank is named."""

from __future__ import annotations

import ctypes
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import PROGRAMS, Job, manapy
from phases import answer, request, request_until
from test_random_moments import TOO_LATE

from manapy.core import proc
from manapy.ckpt.store import image
from manapy.ckpt.store.image import Image
from manapy.core import boundary

UPPER = 0x200000010000  # MPY_UPPER_ADDR
RIP = 168  # offset in a ucontext_t


def start(job: Job, phase: str) -> tuple[Path, Path]:
    """Start the job and wait for a phase. Returns the file that ends the phase, and the file without which the job
    doesn't end."""
    go, end = job.where / "go", job.where / "end"
    job.start_python("moments/moments.py", phase, str(go), str(end))
    job.wait_for(f"in {phase}")
    return go, end


def restart_and_check(job: Job, *files: Path) -> None:
    """Kill the job and restart it; the program's own check passes."""
    job.kill()
    for file in files:
        file.touch()
    assert "ok" in job.restart().finish().splitlines()


@pytest.mark.parametrize("phase", ["recv", "recv_parked", "sleep", "init"])
def test_while(make_job: Callable[..., Job], phase: str) -> None:
    """The phase doesn't end before the checkpoint is taken."""
    job = make_job(3)
    go, end = start(job, phase)
    job.checkpoint()
    restart_and_check(job, go, end)


def test_while_one_computes(make_job: Callable[..., Job]) -> None:
    """A rank that computes below its target must be waited for, and is named."""
    job = make_job(2)
    go, end = start(job, "compute")
    asked = request_until(job, lambda: any("rank 0" in line for line in job.status()["waiting"]))
    go.touch()
    code, _, errors = answer(asked)
    assert code == 0, errors
    restart_and_check(job, end)


def test_during_finalize(make_job: Callable[..., Job]) -> None:
    job = make_job(2)
    go, _ = start(job, "finalize")
    job.wait_for("ok")
    asked = request(job)
    go.touch()
    code, _, errors = answer(asked)
    assert code == 0 or TOO_LATE.search(errors), errors
    job.finish()


def test_child_outlives_the_grace_time(make_job: Callable[..., Job]) -> None:
    job = make_job(2)
    go, end = start(job, "child")
    job.wait_for(lambda _: all(map(proc.descendants, job.pids())))
    done = manapy("checkpoint", job.dir, "--child-grace", "500ms")
    assert done.returncode == 1
    assert re.search(r"rank \d.*(child|process).*\d+", done.stderr), done.stderr
    go.touch()
    end.touch()
    assert "ok" in job.finish().splitlines()


def test_child_ends_within_the_grace_time(make_job: Callable[..., Job]) -> None:
    job = make_job(2)
    go, end = start(job, "child")
    asked = request(job, "--child-grace", "10m")
    while not any("child" in line for line in job.status()["waiting"]):
        assert asked.poll() is None
    go.touch()
    code, _, errors = answer(asked)
    assert code == 0, errors
    restart_and_check(job, end)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_random_moments(make_job: Callable[..., Job]) -> None:
    """From the very start to the very end. Some generations die, and some requests come too late."""
    generator = random.Random(2)
    job = make_job(3).start_python(
        "steps/heat2d.py", "--n", "64", "--steps", "3000", "--every", "20", "--pause", "0.02", "--out", "field.npy"
    )
    job.wait_for(lambda text: (job.dir / "job.json").exists())
    published = 0
    for _ in range(12):
        time.sleep(generator.random() * 0.8)
        done = manapy("checkpoint", job.dir)
        published += done.returncode == 0
        if done.returncode or job.process is None or job.process.poll() is not None:
            continue
        if generator.random() < 0.4:
            try:
                job.kill()
            except AssertionError:  # it has just ended by itself
                continue
            job.restart()
    job.wait(120)
    assert "heat2d: done" in job.output(), job.report()
    assert published > 0


def test_no_thread_is_halted_inside_the_wrappers(
    make_job: Callable[..., Job], c_program: Callable[[Path], Path]
) -> None:
    """Between two instructions of that code a thread may hold what a restart replaces (invariant 6 of boundary.h)."""
    job = make_job(1)
    stop = job.where / "stop"
    job.start(c_program(PROGRAMS / "moments/busy_threads.c"), stop)
    job.wait_for("in loop")
    for _ in range(5):
        saved = Image.open(next(job.checkpoint("--then", "continue").glob("rank-*")))
        upper = boundary.UpperStruct.from_buffer_copy(memory(saved, UPPER, ctypes.sizeof(boundary.UpperStruct)))
        threads = (image.ThreadStruct * len(saved.threads)).from_buffer_copy(saved.sections[image.SECTION_THREADS])
        places = [int.from_bytes(memory(saved, thread.ucontext + RIP, 8), "little") for thread in threads]
        assert len(places) == 4 and upper.code_begin < upper.code_end
        assert not [place for place in places if upper.code_begin <= place < upper.code_end]
    job.kill()
    stop.touch()
    assert "ok" in job.restart().finish().splitlines()


def memory(saved: Image, address: int, size: int) -> bytes:
    """The content of the image at an address."""
    run = next(
        run
        for run in saved.runs
        if run.kind == image.RUN_DATA and run.address <= address and address + size <= run.address + run.bytes
    )
    with saved.path.open("rb") as stream:
        stream.seek(run.offset + address - run.address)
        return stream.read(size)
