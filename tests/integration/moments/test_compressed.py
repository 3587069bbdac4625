"""Checkpoints of real jobs whose images are compressed (--compress), and machines without libzstd."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import solver
from jobs import BIN, PROGRAMS, Job, manapy, run
from launchers import MPICH, OPEN_MPI_4, Launcher, job_under
from manapy.ckpt.store import image
from manapy.core import boundary
from phases import BESIDE, STANDING

ON, AUTO = ("--compress", "on"), ("--compress", "auto")
LAST = 300


def images_of(job: Job) -> list[image.Image]:
    return [image.Image.open(path) for path in sorted((job.dir / "latest").glob("rank-*.img"))]


def take(job: Job, compressed: bool = True) -> None:
    """A checkpoint whose images are as they should be."""
    job.checkpoint()
    assert manapy("verify", job.dir).returncode == 0
    for saved in images_of(job):
        zipped, plain = (saved.bytes_of(kind) for kind in (image.RUN_ZIPPED, image.RUN_DATA))
        assert zipped > plain if compressed else zipped == 0


def changing(job: Job, *options: str) -> Job:
    """A program whose data are random and few, so that most of its memory shrinks."""
    job.start_python("moments/changing.py", "2", options=options)
    job.wait_for("step ")
    return job


def ends_well(job: Job) -> None:
    (job.where / "end").touch()
    assert "ok" in job.finish().splitlines(), job.report()


@pytest.mark.quick
@pytest.mark.parametrize("way", [STANDING, BESIDE], ids=["standing", "beside"])
def test_through_restarts(make_job: Callable[..., Job], way: Sequence[str]) -> None:
    job = changing(make_job(), *ON, *way)
    for _ in range(2):
        take(job)
        for saved in images_of(job):
            assert saved.header.file_bytes < 0.6 * saved.bytes_of(image.RUN_DATA, image.RUN_ZIPPED)
            (head,) = [r for r in saved.runs if r.address <= boundary.UPPER_ADDR < r.address + r.bytes]
            assert head.kind == image.RUN_ZIPPED  # a restart reads it before the other memory
        job.kill()
        job.restart_by_command(*ON, *way)
        job.wait_until_it_runs()
    take(job)
    ends_well(job)


def test_restart_does_not_compress_by_itself(make_job: Callable[..., Job]) -> None:
    job = changing(make_job(1), *ON)
    take(job)
    job.kill()
    job.restart()
    job.wait_until_it_runs()
    take(job, compressed=False)
    ends_well(job)


@pytest.mark.parametrize(("first", "second"), [(OPEN_MPI_4, MPICH), (MPICH, OPEN_MPI_4)], ids=lambda x: x.name)
def test_restart_under_another_mpi(make_job: Callable[..., Job], first: Launcher, second: Launcher) -> None:
    second.skip_if_missing()
    job = job_under(first, make_job, 2)
    words = ["--n", "96", "--steps", str(LAST), "--every", "20"]
    native = run([BIN / "mpirun", "-n", "2", sys.executable, PROGRAMS / "steps/heat2d.py", *words], cwd=job.where)
    go = job.hold(LAST - 20)
    job.start_python("steps/heat2d.py", *words, "--pause", "0.005", options=ON)
    job.wait_for("step 60 ")
    take(job)
    job.kill()
    job.mpirun = second.mpirun
    job.restart()
    job.wait_until_it_runs()
    go.touch()
    job.finish()
    assert solver.residuals_of_all_runs(job) == sorted(solver.residuals(native.stdout))


def test_exec_keeps_the_option(make_job: Callable[..., Job]) -> None:
    job = make_job(1)
    job.start("sh", "-c", f"exec {sys.executable} {PROGRAMS / 'moments/changing.py'} 1", options=ON)
    job.wait_for("step ")
    take(job)
    ends_well(job)


LIBRARY = next(Path("/usr/lib").glob("*/libzstd.so.1"), None)
MISSING = "libzstd.so.1 cannot be loaded: install the package libzstd1 (Debian, Ubuntu) or libzstd (other systems)"


@pytest.fixture
def without_library(tmp_path: Path) -> list[str]:
    """Put before a command, it hides the library from it."""
    if os.geteuid() != 0 or LIBRARY is None:
        pytest.skip("only root can hide libzstd, where it is installed")
    (tmp_path / "nothing").touch()
    return ["unshare", "-m", "sh", "-c", f'mount --bind {tmp_path / "nothing"} {LIBRARY.resolve()} && exec "$@"', "sh"]


def test_no_library_for_on(without_library: list[str]) -> None:
    """Nothing has begun."""
    done = run([*without_library, BIN / "manapy-launch", *ON, "true"])
    assert (done.returncode, done.stderr) == (1, f"manapy-launch: --compress on: {MISSING}\n")


def test_no_library_for_auto(make_job: Callable[..., Job], without_library: list[str]) -> None:
    job = changing(make_job(1, mpirun=[*without_library, BIN / "mpirun"]), *AUTO)
    take(job, compressed=False)
    ends_well(job)


def test_no_library_for_a_restart(make_job: Callable[..., Job], without_library: list[str]) -> None:
    """Each rank says so before the program or MPI runs. The checkpoint stays as it is."""
    job = changing(make_job(1), *ON)
    take(job)
    job.kill()
    job.mpirun = [*without_library, BIN / "mpirun"]
    job.restart()
    assert job.wait() == 1
    path = (job.dir / "latest").resolve() / "rank-00000.img"
    assert f"manapy-restart: {path}: it is compressed, and {MISSING}\n" in job.output()
    assert run([*without_library, BIN / "manapy", "verify", job.dir]).returncode == 0
    job.mpirun = [BIN / "mpirun"]
    job.restart()
    job.wait_until_it_runs()
    ends_well(job)
