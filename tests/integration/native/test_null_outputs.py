"""Calls with NULL where a result belongs fail with MPI_ERR_ARG, as natively (tests/programs/native/null_outputs.c)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from jobs import BIN, PROGRAMS, Job, oks

RANKS = 2


def test_natively(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    job = make_job(RANKS)
    job.env["LD_LIBRARY_PATH"] = str(Path(sys.prefix) / "lib")
    job.spawn([BIN / "mpirun", "-n", str(RANKS), c_program(PROGRAMS / "native/null_outputs.c")])
    assert oks(job.finish()) == RANKS, job.report()


def test_under_manapy(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    job = make_job(RANKS)
    job.start(c_program(PROGRAMS / "native/null_outputs.c"))
    assert oks(job.finish()) == RANKS, job.report()
