"""The result of a run of one of MPICH's test programs, and whether two results are the same.

A program of the suite says " No Errors" and nothing else, and ends with 0; a few are to end with an error (`resultTest`
in the lists). Lines of the launcher and of manapy itself are no output of the program.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

NO_ERRORS = re.compile(r"\s*No [Ee]rrors\s*")
SKIPPED = re.compile(r"\s*Test [Ss]kipped\s*")
WARNING = re.compile(r"(MPICH: |WARNING: |(Abort.*)?application called MPI_Abort)")
NOISE = re.compile(r"manapy(-launch|-restart)?: |\[mpiexec@|\[proxy:|\s*$")  # lines of the launcher and of manapy
ENDS_BADLY = ("TestStatus", "TestErrFatal", "TestStatusNoErrors")  # rules for programs that must end with an error


class Outcome(enum.StrEnum):
    """The result of one run."""

    PASSED = "passes"
    SKIPPED = "skipped"  # the program says that something it needs is missing
    FAILED = "fails"
    HUNG = "hangs"
    NOT_BUILT = "not built"
    REFUSED = "refused"  # no checkpoint was taken, for a reason that manapy gave; the program passed
    TOO_SHORT = "too short"  # it had ended before each request for a checkpoint


@dataclass(frozen=True)
class Shown:
    """One run. code: of mpirun, None if it had to be ended. detail: one or a few lines for a reader."""

    outcome: Outcome
    seconds: float
    detail: str = ""


def judge(rule: str, output: str, code: int | None) -> tuple[Outcome, str]:
    """The outcome of a run by a rule of the lists ("" is the usual one), and the reason why it isn't PASSED."""
    said = [line for line in output.splitlines() if line.strip()]
    lines = [line for line in said if not NOISE.match(line)]
    passed = any(NO_ERRORS.fullmatch(line) for line in lines)
    skipped = any(SKIPPED.fullmatch(line) for line in lines)
    stray = [
        line for line in lines if not (NO_ERRORS.fullmatch(line) or SKIPPED.fullmatch(line) or WARNING.match(line))
    ]
    warned = [line for line in lines if WARNING.match(line)]
    if code is None:
        return Outcome.HUNG, _last(said)
    if rule in ENDS_BADLY:
        if code == 0:
            return Outcome.FAILED, "ended with 0, but has to end with an error"
        if rule == "TestStatusNoErrors" and not passed:
            return Outcome.FAILED, f"did not say No Errors; {_last(said)}"
        return Outcome.PASSED, ""
    if code != 0:
        return Outcome.FAILED, f"exit code {code}; {_last(said)}"
    if rule == "TestBench":
        return Outcome.PASSED, ""
    if skipped:
        return Outcome.SKIPPED, _last(lines)
    if not passed:
        return Outcome.FAILED, f"did not say No Errors; {_last(said)}"
    unexpected = stray + (warned if rule != "TestAllowWarnings" else [])
    if unexpected:
        return Outcome.FAILED, f"said more than No Errors: {_last(unexpected)}"
    return Outcome.PASSED, ""


def differs(native: Shown, other: Shown) -> bool:
    """Does a run under manapy differ from the native one? One in which no checkpoint could be tried doesn't."""
    if other.outcome in (Outcome.REFUSED, Outcome.TOO_SHORT):
        return native.outcome is not Outcome.PASSED
    return native.outcome is not other.outcome


def _last(lines: list[str], count: int = 3) -> str:
    return " | ".join(line.strip() for line in lines[-count:])[-400:]
