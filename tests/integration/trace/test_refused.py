"""`manapy why` names the rank, the call and the error class if MPI has refused a call and this has ended the job."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import BIN, PROGRAMS, Job
from verdicts import why

RANKS = 2
SAID = {
    "count": "MPI_Send to rank 0, tag 7 failed with MPI_ERR_COUNT",
    "tag": "MPI_Ssend to rank 0, tag -5 failed with MPI_ERR_TAG",
    "large": "MPI_Irecv from rank 0, tag 2147483647 failed with MPI_ERR_TAG",
    "type": "MPI_Type_vector failed with MPI_ERR_",
    "null": "MPI_Type_create_hindexed_block_c failed with MPI_ERR_ARG",
    "comm": "MPI_Allreduce failed with MPI_ERR_COMM",
    "before": "MPI_Barrier came before MPI_Init",
    "after": "MPI_Send came after MPI_Finalize",
}


@pytest.mark.parametrize("what", SAID)
def test_what_has_ended_the_job(make_job: Callable[..., Job], c_program: Callable[[Path], Path], what: str) -> None:
    native = make_job(RANKS)
    native.env["LD_LIBRARY_PATH"] = str(Path(sys.prefix) / "lib")
    native.spawn([BIN / "mpirun", "-n", str(RANKS), c_program(PROGRAMS / "trace/refused.c"), what])
    job = make_job(RANKS)
    job.start(c_program(PROGRAMS / "trace/refused.c"), what)
    assert job.wait() != 0 and native.wait() != 0, (job.report(), native.report())
    assert "wasn't refused" not in job.output() + native.output(), job.report()
    code, said, _ = why(job.dir)
    first = said["verdicts"][0]
    assert (code, first["cause"]) == (4, "dead process"), (said, job.report())
    assert first["rank"] == 1 or what == "before", said
    assert SAID[what] in first["sentence"], said
