"""The result of a run of a test program."""

from __future__ import annotations

import pytest
from verdict import Outcome, Shown, differs, judge

ABORTED = "Abort(3) on node 0 (rank 0 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 3) - process 0"


@pytest.mark.parametrize(
    ("rule", "output", "code", "outcome"),
    [
        ("", " No Errors\n", 0, Outcome.PASSED),
        ("", "manapy-launch: this job is not recorded\n\n No errors\n", 0, Outcome.PASSED),
        ("", " No Errors\n", 1, Outcome.FAILED),
        ("", " No Errors\nassertion failed\n", 0, Outcome.FAILED),
        ("", "Found 3 errors\n", 0, Outcome.FAILED),
        ("", "", 0, Outcome.FAILED),
        ("", "no such feature\nTest Skipped\n", 0, Outcome.SKIPPED),
        ("", " No Errors\n", None, Outcome.HUNG),
        ("", f"{ABORTED}\n No Errors\n", 0, Outcome.FAILED),
        ("TestAllowWarnings", f"{ABORTED}\n No Errors\n", 0, Outcome.PASSED),
        ("TestStatus", ABORTED, 3, Outcome.PASSED),
        ("TestErrFatal", " No Errors", 0, Outcome.FAILED),
        ("TestStatusNoErrors", f" No Errors\n{ABORTED}", 3, Outcome.PASSED),
        ("TestStatusNoErrors", ABORTED, 3, Outcome.FAILED),
        ("TestBench", "1 2 3", 0, Outcome.PASSED),
    ],
)
def test_judge(rule: str, output: str, code: int | None, outcome: Outcome) -> None:
    found, why = judge(rule, output, code)
    assert found is outcome
    assert bool(why) == (outcome in (Outcome.FAILED, Outcome.SKIPPED, Outcome.HUNG))


@pytest.mark.parametrize(
    ("native", "other", "different"),
    [
        (Outcome.PASSED, Outcome.PASSED, False),
        (Outcome.FAILED, Outcome.FAILED, False),
        (Outcome.PASSED, Outcome.HUNG, True),
        (Outcome.FAILED, Outcome.PASSED, True),
        (Outcome.PASSED, Outcome.REFUSED, False),
        (Outcome.PASSED, Outcome.TOO_SHORT, False),
    ],
)
def test_differs(native: Outcome, other: Outcome, different: bool) -> None:
    assert differs(Shown(native, 1.0), Shown(other, 9.0)) is different
