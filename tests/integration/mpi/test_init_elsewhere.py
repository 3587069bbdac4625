"""MPI_Init on a thread other than the process's first one (tests/programs/mpi/init_elsewhere.c).

Such a program is checkpointed and restarted, or refused before anything stops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import PROGRAMS, Job, manapy


def start(job: Job, program: Path, mode: str) -> Path:
    """Start the job, and wait until all threads work. Creating the returned file ends the program."""
    go = job.where / "go"
    job.env["STATE_GO"] = str(go)
    job.start(program, mode)
    job.wait_for("goes on")
    return go


def test_restart(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    job = make_job(2)
    go = start(job, c_program(PROGRAMS / "mpi/init_elsewhere.c"), "all")
    for _ in range(2):
        job.checkpoint()
        job.checkpoint()
        job.kill()
        job.restart()
        job.wait_for("goes on")
    go.touch()
    assert job.finish().splitlines()[-1] == "ok"


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("init_ends", "the thread that called MPI_Init has ended"),
        ("first_ends", "the program's first thread has ended"),
    ],
)
def test_refused(make_job: Callable[..., Job], c_program: Callable[[Path], Path], mode: str, why: str) -> None:
    job = make_job(2)
    go = start(job, c_program(PROGRAMS / "mpi/init_elsewhere.c"), mode)
    done = manapy("checkpoint", job.dir)
    assert (done.returncode, why in done.stderr) == (1, True), done
    assert not list(job.dir.glob("ckpt-*"))
    assert "stopping" not in done.stderr, "refused only when the ranks had stopped"
    go.touch()
    assert job.finish().splitlines()[-1] == "ok"
