"""Programs that start the MPI program as a child process: the message says what to do, and no script hides the failure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import BIN, PROGRAMS, Job


@pytest.mark.parametrize("wrapper", ["timeout 60 {wide} go; echo goes on", "{wide} go | cat"])
def test_child_of_a_script(make_job: Callable[..., Job], c_program: Callable[[Path], Path], wrapper: str) -> None:
    job = make_job(2)
    job.start("sh", "-c", wrapper.format(wide=c_program(PROGRAMS / "wide.c")))
    assert job.wait() != 0
    starter = "timeout" if "timeout" in wrapper else "sh"
    assert f"manapy: 'wide' calls MPI, but it is a child process of '{starter}'" in job.output()
    assert f"({starter} ... manapy-launch wide ...)" in job.output()


def test_what_the_message_says_works(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    job = make_job(2)
    (job.where / "go").touch()
    inside = f"timeout 60 {BIN}/manapy-launch --dir {job.dir} {c_program(PROGRAMS / 'wide.c')} go | cat"
    assert job.spawn([*job.mpirun, "-n", "2", "sh", "-c", inside]).finish().splitlines()[-1] == "ok"
    job.start("sh", "-c", f"true; exec {c_program(PROGRAMS / 'wide.c')} go")
    assert job.finish().splitlines()[-1] == "ok"
