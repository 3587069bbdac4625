"""Checkpoints asked for at inconvenient moments: never a hang, never a wrong result, and who is waited for is named."""

from __future__ import annotations

import ctypes
import random
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import BIN, PROGRAMS, Job, manapy

from manapy import _boundary
from manapy.ckpt import image
from manapy.ckpt.image import Image

UPPER = 0x200000010000  # MPY_UPPER_ADDR
RIP = 168  # offset in a ucontext_t


def restart_and_check(job: Job) -> None:
    """Kill, continue, and the program's own check passes."""
    job.kill()
    assert "ok" in job.restart().finish(90).splitlines()


@pytest.mark.parametrize("phase", ["recv", "recv_parked", "sleep"])
def test_while(make_job: Callable[..., Job], phase: str) -> None:
    job = make_job(3).start_python("moments.py", phase, "6")
    job.wait_for(f"in {phase}")
    time.sleep(0.5)
    begin = time.monotonic()
    job.checkpoint()
    assert time.monotonic() - begin < 5, "the checkpoint waited for the phase to end"
    restart_and_check(job)


@pytest.mark.slow
def test_while_one_computes(make_job: Callable[..., Job]) -> None:
    """A rank that computes below its target must be waited for, and is named."""
    job = make_job(2).start_python("moments.py", "compute", "12")
    job.wait_for("in compute")
    time.sleep(0.5)
    command = subprocess.Popen([str(BIN / "manapy"), "checkpoint", str(job.dir)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(6)
    status = job.status()
    output, errors = command.communicate(timeout=60)
    assert command.returncode == 0, errors
    assert "rank 0" in errors or "rank 0" in str(status)
    restart_and_check(job)


def test_during_init(make_job: Callable[..., Job]) -> None:
    job = make_job(2).start_python("moments.py", "init", "4")
    job.wait_for("in init")
    job.checkpoint()
    restart_and_check(job)


def test_during_finalize(make_job: Callable[..., Job]) -> None:
    job = make_job(2).start_python("moments.py", "finalize", "4")
    job.wait_for("ok")
    done = manapy("checkpoint", job.dir)
    assert done.returncode in (0, 1)
    if done.returncode:
        assert re.search("finish|end", done.stderr), done.stderr
    job.finish()


def test_child_outlives_the_grace_time(make_job: Callable[..., Job]) -> None:
    job = make_job(2).start_python("moments.py", "child", "6")
    job.wait_for("in child")
    time.sleep(0.3)
    done = manapy("checkpoint", job.dir, "--child-grace", "500ms")
    assert done.returncode == 1
    assert re.search(r"rank \d.*(child|process).*\d+", done.stderr), done.stderr
    assert "ok" in job.finish().splitlines()


def test_child_ends_within_the_grace_time(make_job: Callable[..., Job]) -> None:
    job = make_job(2).start_python("moments.py", "child", "3")
    job.wait_for("in child")
    job.checkpoint("--child-grace", "20s")
    restart_and_check(job)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_random_moments(make_job: Callable[..., Job]) -> None:
    """From the very start to the very end; some generations die, some requests come too late."""
    generator = random.Random(2)
    job = make_job(3).start_python("heat2d.py", "--n", "64", "--steps", "3000", "--every", "20", "--pause", "0.02", "--out", "field.npy")
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


def test_no_thread_is_halted_inside_the_wrappers(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    """Between two instructions there a thread may hold what a restart replaces (invariant 6 of boundary.h)."""
    job = make_job(1)
    stop = job.where / "stop"
    job.start(c_program(PROGRAMS / "busy_threads.c"), stop)
    job.wait_for("in loop")
    for _ in range(5):
        saved = Image.open(next(job.checkpoint("--then", "continue").glob("rank-*")))
        upper = _boundary.UpperStruct.from_buffer_copy(memory(saved, UPPER, ctypes.sizeof(_boundary.UpperStruct)))
        threads = (image.ThreadStruct * len(saved.threads)).from_buffer_copy(saved.sections[image.SECTION_THREADS])
        places = [int.from_bytes(memory(saved, thread.ucontext + RIP, 8), "little") for thread in threads]
        assert len(places) == 4 and upper.code_begin < upper.code_end
        assert not [place for place in places if upper.code_begin <= place < upper.code_end]
    job.kill()
    stop.touch()
    assert "ok" in job.restart().finish(90).splitlines()


def memory(saved: Image, address: int, size: int) -> bytes:
    """What the image has there."""
    run = next(run for run in saved.runs if run.kind == image.RUN_DATA and run.address <= address and address + size <= run.address + run.bytes)
    with saved.path.open("rb") as stream:
        stream.seek(run.offset + address - run.address)
        return stream.read(size)
