"""What a chain does about a hung job: a function of the verdict alone.

A dead rank is not handled here: the job's coordinator ends such a job, and the attempt counts as crashed.
"""

from __future__ import annotations

from typing import NamedTuple

from .watching import Hung

# The values of trace.model.verdict.Cause. The program itself is at fault: its state has the fault in it, and it can
# hang at the same place on any host.
OF_THE_PROGRAM = ("deadlock", "mismatched calls", "missing call")
# The ranks are well, and may be saved as they are.
OF_THE_SURROUNDINGS = ("network", "starved processor")
OF_THE_HOST = (*OF_THE_SURROUNDINGS, "stopped process", "compute")
IGNORED = ("dead process",)


class Remedy(NamedTuple):
    """``save``: a checkpoint of this state is worth having; ``host``: the host to exclude from the next attempt, or "";
    ``place``: of a fault of the program, to recognize it; empty for other faults."""

    save: bool
    host: str
    place: tuple[str, ...]


def remedy(hung: Hung) -> Remedy | None:
    """Return what to do before the next attempt; None: nothing."""
    if hung.cause in IGNORED:
        return None
    place = (hung.cause, str(hung.rank), hung.call) if hung.cause in OF_THE_PROGRAM else ()
    return Remedy(hung.cause in OF_THE_SURROUNDINGS, hung.host if hung.cause in OF_THE_HOST else "", place)
