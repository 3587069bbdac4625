"""The whole MPI surface: programs tests/programs/surface/*/surface_*.c, one per family, each a list of cases "make
objects with these functions", "they behave as before" (frame: checkpointed.h).

native   without manapy: what the cases themselves expect is right
restart  checkpoint, SIGKILL, restart, twice; every case checks its objects in the last generation
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import BIN, Job
from restarts import through_restart
from surface import SURFACE

RANKS = 4


@pytest.mark.parametrize("source", SURFACE, ids=lambda p: p.stem)
def test_native(make_job: Callable[..., Job], c_program: Callable[[Path], Path], source: Path) -> None:
    job = make_job(RANKS)
    go = job.where / "go"
    go.touch()
    job.env |= {"STATE_GO": str(go), "STATE_NATIVE": "1", "LD_LIBRARY_PATH": str(Path(sys.prefix) / "lib")}
    job.spawn([BIN / "mpirun", "-n", str(RANKS), c_program(source)])
    output = job.finish()
    assert output.count("ok") == RANKS and "FAILED" not in output, output


@pytest.mark.parametrize("source", SURFACE, ids=lambda p: p.stem)
def test_restart(make_job: Callable[..., Job], c_program: Callable[[Path], Path], source: Path) -> None:
    job = make_job(RANKS)
    job.env["LD_LIBRARY_PATH"] = str(Path(sys.prefix) / "lib")  # for what the program spawns, which runs natively
    through_restart(job, c_program(source))
