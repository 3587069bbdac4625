"""The results that `manapy bench --only training` makes from the job's output. The job itself runs in
tests/rdma/test_mpi.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from manapy.bench.rdma.failing_training import BASELINE, CASES, RESTART, Run, draw
from manapy.bench.shared import plots


def run(steps: list[int], case=BASELINE, pause: float = 0.0, **more) -> Run:
    """A step each second, and a pause before the fifth."""
    return Run(case, [(i + (pause if i >= 4 else 0), step) for i, step in enumerate(steps)], **more)


def test_nothing_is_done_again() -> None:
    undisturbed = run([1, 2, 3, 4, 5, 6])
    assert (undisturbed.again, undisturbed.standstill) == (0, 1)


def test_steps_after_the_checkpoint_are_done_again() -> None:
    """Steps that are repeated don't count as progress."""
    restarted = run([1, 2, 3, 4, 3, 4, 5], RESTART, pause=10)
    assert restarted.again == 2 and restarted.standstill == 13


def test_a_pause_is_no_repetition() -> None:
    assert (run([1, 2, 3, 4, 5, 6], pause=7).again, run([1, 2, 3, 4, 5, 6], pause=7).standstill) == (0, 8)


@pytest.mark.skipif(not plots.available(), reason="no matplotlib")
def test_picture(tmp_path: Path) -> None:
    """Also of the remaining cases when others have failed."""
    runs = [run([1, 2, 3, 4, 5], case, saved=[(2.0, 3)], cut=2.5 if case.after else None) for case in CASES]
    for number, chosen in enumerate((runs, runs[:1], runs[2:3])):
        draw(chosen, tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").stat().st_size > 5000
