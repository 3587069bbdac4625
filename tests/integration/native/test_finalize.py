"""Jobs end under manapy with the same exit code and errors as natively (tests/programs/native/unreceived.c)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import BIN, PROGRAMS, Job

UNMATCHED = "1 unmatched message(s)"
# MPI_ERR_OTHER; or SIGKILL, if mpirun, which is told of the abort, is faster than the rank that ends with that code;
# or SIGABRT, by which the program ends itself
ABORTING = (15, 9, 6)
ABORTED = ABORTING[0]


def ends(job: Job, program: Path, mode: str, *launcher: Path) -> tuple[int, set[str], bool]:
    """Exit code (ABORTED: MPI or the program has ended the job), the output of the ranks that reached it, and whether
    the library's message was printed."""
    job.env["LD_LIBRARY_PATH"] = str(Path(sys.prefix) / "lib")
    job.spawn([BIN / "mpirun", "-n", "2", *launcher, program, mode])
    code = job.wait()
    output = job.output()
    return (
        ABORTED if code in ABORTING else code,
        {line for line in output.splitlines() if line.startswith("rank ")},
        UNMATCHED in output,
    )


@pytest.mark.parametrize("mode", ["early", "met", "returned", "freed"])
def test_a_message_that_is_never_received(
    make_job: Callable[..., Job], c_program: Callable[[Path], Path], mode: str
) -> None:
    program = c_program(PROGRAMS / "native/unreceived.c")
    native = ends(make_job(2), program, mode)
    under_manapy = ends(make_job(2), program, mode, BIN / "manapy-launch")
    assert under_manapy == native
    assert (native[0], native[2]) == {"met": (ABORTED, True), "returned": (ABORTED, False)}.get(mode, (0, False))
