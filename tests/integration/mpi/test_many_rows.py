"""Thousands of rows in the clock: their lists don't fit into one line of the control protocol."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import pytest
from jobs import Job


@pytest.mark.parametrize(("communicators", "requests"), [(1500, 10_000)])
def test_many_rows(make_job: Callable[..., Job], communicators: int, requests: int) -> None:
    job = make_job(2)
    go = job.where / "go"
    job.start_python("mpi/many_rows.py", str(communicators), str(requests), str(go))
    job.wait_for("made")
    for _ in range(2):
        job.checkpoint()
    job.kill()
    job.restart()
    job.wait_until_it_runs()
    job.checkpoint()
    go.touch()
    assert "ok" in job.finish().splitlines()


FREED = """
import sys
from mpi4py import MPI
from manapy.core import boundary
for _ in range(150):
    rows = MPI.COMM_WORLD.Split(0, 0)
    columns = rows.Dup()
    for comm in (rows, columns) if MPI.COMM_WORLD.rank else (columns, rows):
        comm.Free()
sys.stdout.write(f"rows {boundary.upper().clock.nrows}\\n")  # in one piece, also if unbuffered
"""


def test_rows_of_freed_communicators_go(make_job: Callable[..., Job]) -> None:
    """Rows are removed from time to time, because no rank knows at once that the others have freed a communicator,
    too."""
    output = make_job(2).start(sys.executable, "-c", FREED).finish()
    rows = [int(n) for n in re.findall(r"rows (\d+)", output)]
    assert len(rows) == 2 and max(rows) < 170, output
