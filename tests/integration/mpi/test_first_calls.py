"""Several threads make the process's first call of MPI at the same time (tests/programs/mpi/first_calls.c)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import PROGRAMS, Job

OFTEN = 3  # the threads rarely miss each other even once


@pytest.mark.parametrize("which", ["info", "session", "mixed"])
@pytest.mark.parametrize("below_shell", [False, True])
def test_first_calls(
    make_job: Callable[..., Job], c_program: Callable[[Path], Path], which: str, below_shell: bool
) -> None:
    """Below a shell the process also becomes the rank in this call."""
    program = c_program(PROGRAMS / "mpi/first_calls.c")
    for _ in range(OFTEN):
        job = make_job(2)
        job.start(*(("sh", "-c", f"{program} {which}; true") if below_shell else (program, which)))
        assert job.finish().splitlines().count("ok") == 2
