"""The solver that most tests checkpoint (tests/programs/steps/heat2d.py): its options, and the steps that a run has
reported."""

from __future__ import annotations

from collections.abc import Callable

SOLVER = ("--n", "96", "--steps", "2000", "--every", "20", "--pause", "0.03")


def step(text: str) -> int:
    """The last step that a run reported."""
    return max(
        (int(line.split()[1]) for line in text.splitlines() if line.startswith("step ") and "residual" in line),
        default=0,
    )


def after(last: int) -> Callable[[str], bool]:
    return lambda text: step(text) > last
