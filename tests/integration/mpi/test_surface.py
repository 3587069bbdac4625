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
from compiling import Programs
from jobs import BIN, Job
from restarts import check, through_restart
from surface import SURFACE, Group, groups, name_of_group, patience, program_of

RANKS = 4


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("group", groups(SURFACE), ids=name_of_group)
def test_native(make_job: Callable[..., Job], c_program: Programs, group: Group) -> None:
    job = make_job(RANKS)
    go = job.where / "go"
    job.env |= {"STATE_GO": str(go), "STATE_NATIVE": "1", "LD_LIBRARY_PATH": str(Path(sys.prefix) / "lib")}
    job.spawn([BIN / "mpirun", "-n", str(RANKS), program_of(c_program, group)])
    check(job, go, RANKS, patience(group))


@pytest.mark.parametrize("source", SURFACE, ids=lambda p: p.stem)
def test_restart(make_job: Callable[..., Job], c_program: Programs, source: Path) -> None:
    job = make_job(RANKS)
    job.env["LD_LIBRARY_PATH"] = str(Path(sys.prefix) / "lib")  # for what the program spawns, which runs natively
    through_restart(job, c_program(source))
