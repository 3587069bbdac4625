"""Programs with memory on a GPU of NVIDIA. Where there is none, a stand-in for the driver's library is used
(programs/cuda/driver.c), whose GPU forgets everything between the runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from compiling import SHARED, STRICT, build
from jobs import PROGRAMS, Job, manapy, oks
from manapy.ckpt.store import publish

DRIVERS = ["stand-in", *(["real"] if os.path.exists("/dev/nvidiactl") else [])]


class Gpu:
    """The file that is the GPU of the stand-in. Each rank has one of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.to_fail = path.with_name(f"{path.name}.fail")

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)

    def remove(self) -> None:
        self.forget()
        self.to_fail.unlink(missing_ok=True)


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    if not os.access("/dev", os.W_OK):
        pytest.skip("needs to write to /dev")
    gpu = Gpu(Path(f"/dev/nvidia-of-test-{os.getpid()}"))
    try:
        yield gpu
    finally:
        gpu.remove()


@pytest.fixture
def start(make_job: Callable[..., Job], gpu: Gpu, tmp_path: Path) -> Callable[..., Job]:
    def start(driver: str = "stand-in", *options: str | Path) -> Job:
        job = make_job(1 if driver == "stand-in" else 2)
        if driver == "stand-in":
            library = build(
                tmp_path / "libcuda.so.1", PROGRAMS / "cuda/driver.c", *SHARED, *STRICT, "-pthread", *options
            )
            job.env |= {"LD_LIBRARY_PATH": str(library.parent), "MANAPY_TEST_GPU": str(gpu.path)}
        job.start_python("cuda/counting.py", job.where, options=["--dirty", "auto", "--background", "auto"])
        steps(job)
        return job

    return start


def steps(job: Job) -> None:
    """It counts on."""
    seen = job.output().count("step")
    job.wait_for(lambda text: text.count("step") > seen + job.ranks)


def end(job: Job) -> None:
    (job.where / "end").touch()
    text = job.finish()
    assert oks(text) == job.ranks and "FAILED" not in text and "Traceback" not in text, text


def refused(job: Job) -> str:
    done = manapy("checkpoint", job.dir)
    assert done.returncode == 1 and not list(job.dir.glob("ckpt-*")), done
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("driver", DRIVERS)
def test_memory_of_a_gpu_is_saved(start: Callable[..., Job], gpu: Gpu, driver: str) -> None:
    """Two checkpoints after which the program goes on, and two restarts."""
    job = start(driver)
    job.checkpoint()
    steps(job)
    second = publish.read_manifest(job.checkpoint()).ranks[0]
    assert second.kept > 0 and second.way == "hash", "what a GPU writes to memory, the kernel does not see"
    steps(job)
    job.kill()
    for _ in range(2):
        gpu.forget()
        job.restart()
        steps(job)
        job.checkpoint()
        job.kill()
    gpu.forget()
    job.restart()
    end(job)


def test_a_lazy_restart_reads_all_memory_first(start: Callable[..., Job], gpu: Gpu) -> None:
    job = start()
    job.checkpoint()
    job.kill()
    gpu.forget()
    job.restart(options=["--lazy"])
    end(job)
    assert "--lazy is not possible: the program uses a GPU; the memory is read before the program runs" in job.output()


def test_a_driver_that_is_too_old(start: Callable[..., Job]) -> None:
    job = start("stand-in", "-DOLD")
    assert refused(job).endswith(
        "rank 0: CUDA's checkpoint is not possible: the NVIDIA driver is too old; version 570 "
        "and later can save what is on a GPU"
    )
    steps(job)
    end(job)


def test_a_failure_leaves_the_gpu_as_it_is(start: Callable[..., Job], gpu: Gpu) -> None:
    job = start()
    gpu.to_fail.write_text("checkpoint")
    assert refused(job).endswith("rank 0: CUDA's checkpoint failed: out of memory (CUDA error 2)")
    steps(job)
    gpu.to_fail.unlink()
    job.checkpoint()
    end(job)


def test_a_gpu_that_cannot_take_it_back_ends_the_job(start: Callable[..., Job], gpu: Gpu) -> None:
    """With one line; nothing waits for ever, and the checkpoint can be used elsewhere."""
    job = start()
    job.checkpoint()
    job.kill()
    gpu.to_fail.write_text("absent")
    job.restart()
    assert job.wait() == 1
    said = "manapy: rank 0: what was on the GPU cannot be brought back: it failed: another error (CUDA error 100)\n"
    assert said in job.output()
    gpu.remove()
    job.restart()
    end(job)


@pytest.mark.parametrize("restarted", [False, True])
def test_memory_of_the_gpu_that_others_have_for_a_while(start: Callable[..., Job], gpu: Gpu, restarted: bool) -> None:
    job = start()
    if restarted:
        job.checkpoint()
        job.kill()
    gpu.to_fail.write_text("restore")
    if restarted:
        job.restart()
    else:
        job.checkpoint()
    job.wait_for(
        "manapy: rank 0: what was on the GPU cannot be brought back: it failed: out of memory (CUDA error 2); trying "
        "again for a minute\n"
    )
    gpu.to_fail.unlink()
    steps(job)
    job.checkpoint()
    end(job)
