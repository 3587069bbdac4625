"""How well a job uses its processors: the standard metrics of the centre of excellence POP (pop-coe.eu, "POP Standard
Metrics for Parallel Performance Analysis"), of the time of which the records of all ranks are complete.

    parallel efficiency       = load balance x communication efficiency: mean useful time / time
    load balance              mean useful time / longest useful time of a rank
    communication efficiency  longest useful time of a rank / time

Useful is the time outside MPI.

Invariants
 1. The time begins when the last rank has left MPI_Init, or after its last lost record or pause. It ends when the first
    rank calls MPI_Finalize, or now.
 2. Of a rank with several threads, the first one that records counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core.units import span
from .events import OPEN, Op, Trace
from .match import first_of_call


@dataclass(frozen=True)
class Efficiency:
    """The metrics, each 0 to 1. begin, end: of the time to which they refer, ns on the job's clock."""

    load_balance: float
    communication: float
    begin: int
    end: int

    @property
    def parallel(self) -> float:
        """The product of the two others."""
        return self.load_balance * self.communication

    @property
    def figures(self) -> dict[str, float]:
        """The figures as data, and the time to which they refer in seconds."""
        return {
            "parallel": round(self.parallel, 4),
            "load_balance": round(self.load_balance, 4),
            "communication": round(self.communication, 4),
            "seconds": round((self.end - self.begin) * 1e-9, 6),
        }


def sentence(found: Efficiency | None) -> str:
    """Return the metrics of a job as a line for people."""
    if found is None:
        return "parallel efficiency: unknown, as there is no time of which the calls of all ranks are known"
    return (
        f"parallel efficiency {found.parallel:.0%} = load balance {found.load_balance:.0%} × communication efficiency "
        f"{found.communication:.0%}, in {span(found.end - found.begin)} (POP)"
    )


def efficiency(trace: Trace) -> Efficiency | None:
    """Return the metrics of a job; None if ranks are not recorded, or if there is no time of which all records are
    known, or no useful one."""
    calls = trace.events[first_of_call(trace.events)]
    if set(np.unique(calls["rank"]).tolist()) != set(range(trace.size)):
        return None
    _, firsts, of = np.unique(calls["rank"], return_index=True, return_inverse=True)
    calls = calls[calls["thread"] == calls["thread"][firsts][of]]  # invariant 2
    exits = np.where(calls["exit"] == OPEN, trace.now, calls["exit"])
    enters = np.unique(calls["rank"], return_index=True)[1]
    starts = np.where(calls["op"][enters] == Op.INIT, exits[enters], calls["enter"][enters])
    begin = max(int(starts.max()), *(known.first_ns for known in trace.ranks.values()))  # invariant 1
    end = int(calls["enter"][calls["op"] == Op.FINALIZE].min(initial=trace.now))
    inside = np.maximum(np.minimum(exits, end) - np.maximum(calls["enter"], begin), 0)
    useful = end - begin - np.bincount(calls["rank"], inside, minlength=trace.size)
    longest = float(useful.max())
    if end <= begin or longest <= 0:
        return None
    return Efficiency(float(useful.mean()) / longest, longest / (end - begin), begin, end)
