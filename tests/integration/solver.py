"""The solver that most tests checkpoint (tests/programs/steps/heat2d.py): its options, and the steps that a run has
reported. Where the program does not matter, tests start heat2d.c instead, which spares the start of Python."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from compiling import TESTS, mpi_programs

if TYPE_CHECKING:
    from jobs import Job

EVERY = 20  # steps from one report to the next
PAUSE = "0.06"  # seconds after each report: tests need a job that lasts, not one that computes
SOLVER = ("--n", "96", "--steps", "1000", "--every", str(EVERY), "--pause", PAUSE)
MIDDLE, LAST = 500, 980  # steps at which tests hold it, to do something before it ends


def in_c() -> Path:
    """heat2d.c, compiled. It runs only under manapy."""
    return mpi_programs()(TESTS / "programs/steps/heat2d.c")


def step(text: str) -> int:
    """The last step that a run reported."""
    return max(
        (int(line.split()[1]) for line in text.splitlines() if line.startswith("step ") and "residual" in line),
        default=0,
    )


def residuals(text: str) -> list[str]:
    """The steps that a run reported, with their residuals."""
    return re.findall(r"step \d+ residual \S+", text)


def residuals_of_all_runs(job: Job) -> list[str]:
    """Those of all runs of a job, each once, sorted as texts."""
    return sorted({line for run in range(len(job.runs)) for line in residuals(job.output(run))})


def after(last: int) -> Callable[[str], bool]:
    return lambda text: step(text) > last


def goes_further(job: Job, last: int | None = None) -> None:
    """Wait until the run has reported a step after `last` (default: the last one until now), unless it stands at the
    step at which it is held: on a busy machine it may have come so far."""
    before = step(job.output()) if last is None else last
    job.wait_for(lambda text: step(text) > min(before, job.held - EVERY))
