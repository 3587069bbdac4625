"""The solver that most tests checkpoint (tests/programs/steps/heat2d.py): its options, and the steps that a run has
reported."""

from __future__ import annotations

import re
from collections.abc import Callable

from jobs import Job

SOLVER = ("--n", "96", "--steps", "2000", "--every", "20", "--pause", "0.03")
MIDDLE, LAST = 1000, 1980  # steps at which tests hold it, to do something before it ends


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
