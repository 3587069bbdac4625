"""MPI objects that threads share (tests/programs/mpi/shared_objects.c, file_threads.c)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from jobs import PROGRAMS, Job


def test_objects_of_several_threads(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    assert "ok" in make_job(1).start(c_program(PROGRAMS / "mpi/shared_objects.c")).finish().splitlines()


def test_file_of_two_threads(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    job = make_job(2)
    job.start(c_program(PROGRAMS / "mpi/file_threads.c"), str(job.where / "shared"))
    assert job.finish().splitlines().count("ok") == 2
