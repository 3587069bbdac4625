"""MPI objects of every kind after several restarts (tests/programs/state_mpi.c)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import PROGRAMS, Job


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """state_mpi, linked to the real library by its soname only: at run time it finds ours."""
    include, lib = Path(sys.prefix) / "include", Path(sys.prefix) / "lib"
    if not (include / "mpi.h").exists():
        pytest.skip("no mpi.h (pip install mpich)")
    built = tmp_path_factory.mktemp("programs") / "state_mpi"
    flags = ["-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{include}"]
    subprocess.run(["gcc", *flags, str(PROGRAMS / "state_mpi.c"), "-o", str(built), str(lib / "libmpi.so.12"), "-Wl,--allow-shlib-undefined"], check=True)
    return built


def start(make_job: Callable[..., Job], program: Path, ranks: int) -> tuple[Job, Path]:
    job = make_job(ranks)
    go = job.where / "go"
    job.env["STATE_GO"] = str(go)
    job.start(program)
    job.wait_for(lambda text: text.count("ready") == ranks)
    return job, go


def check(job: Job, go: Path, ranks: int) -> None:
    go.touch()
    output = job.finish()
    assert output.count("ok") == ranks and "FAILED" not in output, output


def test_undisturbed(make_job: Callable[..., Job], program: Path) -> None:
    job, go = start(make_job, program, 3)
    check(job, go, 3)


def test_after_a_checkpoint(make_job: Callable[..., Job], program: Path) -> None:
    job, go = start(make_job, program, 3)
    job.checkpoint()
    check(job, go, 3)


def test_after_restarts(make_job: Callable[..., Job], program: Path) -> None:
    job, go = start(make_job, program, 3)
    for _ in range(3):
        job.checkpoint()
        job.kill()
        job.restart()
    check(job, go, 3)
