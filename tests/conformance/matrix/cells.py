"""One cell of the matrix: a program is launched under one MPI, checkpointed, killed by SIGKILL, restarted under another
one, and gives its native result."""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from applications.cause import cause, first_line
from applications.results import Agreement, Result, ResultError, compare
from jobs import Job, JobError
from launchers import ENVIRONMENT, Launcher

from .programs import LAST, Program

RANKS = 2
CHECKPOINT, HELD = 40, LAST - 20  # a checkpoint comes after the first step; nobody goes beyond the second before it
# what the program is linked to, and what is below manapy
LIBRARY = re.compile(r"\S*/lib(?:mpi|mpich|mpi_abi)\.so\.\S*")


@dataclass(frozen=True)
class Cell:
    """What one cell has shown. launch, restart: titles of the MPIs. cause: why it fails; empty if it does not."""

    program: str
    launch: str
    restart: str
    seconds: float
    cause: str = ""


def native(program: Program, command: list[str], where: Path, limit: float) -> Result:
    """The result without manapy, under the program's own MPI. ResultError: there is none."""
    job = _job(where, program.mpi)
    job.env |= program.mpi.native
    try:
        job.spawn([*job.mpirun, "-n", str(RANKS), *command])
        job.finish(limit)
        return program.extract(where, job.output())
    except (JobError, ResultError) as error:
        raise ResultError(f"natively: {first_line(str(error))}: {cause(job)}") from None
    finally:
        job.end()


def run(
    program: Program,
    command: list[str],
    pair: tuple[Launcher, Launcher],
    expected: Result,
    where: Path,
    limit: float,
) -> Cell:
    """One cell. pair: the MPIs at launch and at the restart. limit: seconds for each step. The directory is removed
    unless the cell fails."""
    launch, restart = pair
    job, began, why = _job(where, launch), time.monotonic(), ""
    go = job.hold(HELD)
    try:
        job.start(*command)
        job.wait_for(f"step {CHECKPOINT}", limit)
        _check_library(job, launch)
        job.checkpoint(timeout=limit)
        job.kill()
        job.mpirun = restart.mpirun
        job.restart()
        job.wait_until_it_runs()
        _check_library(job, restart)
        go.touch()
        job.finish(limit)
        found = program.extract(where, "\n".join(job.output(number) for number in range(len(job.runs))))
        why = _compare(expected, found)
    except (JobError, ResultError) as error:
        why = f"{first_line(str(error))}: {cause(job)}"
    finally:
        job.end()
    if not why:
        shutil.rmtree(where)
    return Cell(program.name, launch.title, restart.title, time.monotonic() - began, why)


def _job(where: Path, mpi: Launcher) -> Job:
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    return Job(where, RANKS, mpirun=mpi.mpirun, env={**ENVIRONMENT, "MANAPY_TRACE_ROOT": str(where)})


def _check_library(job: Job, mpi: Launcher) -> None:
    """JobError: rank 0 has loaded another MPI."""
    mapped = set(LIBRARY.findall(Path(f"/proc/{job.pids()[0]}/maps").read_text()))
    found = sorted(path for path in mapped if "/manapy/upper/" not in path)
    if found != [str(mpi.library.resolve())]:
        raise JobError(f"the MPI below is not {mpi.library}, but {found}")


def _compare(expected: Result, found: Result) -> str:
    """How two results differ; empty if they are equal bit for bit."""
    agreement, why = compare(expected, found, 0.0)
    return "" if agreement is Agreement.EXACT else f"natively and here: {why}"
