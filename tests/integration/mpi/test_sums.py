"""A restart changes no bit of a sum, though MPICH adds in a different order on a new communicator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from jobs import Job

pytestmark = pytest.mark.mpi


def test_sums_keep_their_bits(make_job: Callable[..., Job]) -> None:
    job = make_job(4, env={"OPENBLAS_NUM_THREADS": "1"})
    go = job.where / "go"
    job.start_python("mpi/sums.py", str(go))
    job.wait_for("summed")
    for _ in range(2):
        job.checkpoint()
        job.kill()
        job.restart()
        job.wait_until_it_runs()
    go.touch()
    assert "ok" in job.finish().splitlines()
