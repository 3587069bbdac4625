"""The result of an analysis: one verdict for each fault, or one verdict that says healthy, or one that says why nothing
is known.

A verdict reports of a rank only what the trace proves. If records were lost or clocks are too uncertain, it abstains
and says so.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class State(enum.Enum):
    """What a verdict says of the job. Exit codes of `manapy why`: HEALTHY 0, UNKNOWN 1, LATE and SLOW 3, HUNG 4."""

    HEALTHY = "healthy"
    # Others wait for it longer than ever before. It computes, reads or writes, or cannot be seen. It may go on.
    LATE = "late"
    SLOW = "slow"
    HUNG = "hung"  # it can't go on, or it does nothing by any measure
    UNKNOWN = "unknown"


class Cause(enum.Enum):
    """The cause of a fault. The order is that in which proofs are searched for."""

    NONE = "none"
    DEAD = "dead process"
    STOPPED = "stopped process"  # SIGSTOP, a debugger, a frozen cgroup
    DEADLOCK = "deadlock"  # a cycle of calls that wait for each other; no single rank is at fault
    # different collectives, roots or sizes at the same place in the order of a communicator
    MISMATCH = "mismatched calls"
    MISSING = "missing call"  # it never made the call that others wait for: it went on, or is outside MPI for good
    COMPUTE = "compute"  # it is in user code: busy (spinning, slow) or asleep; `detail` says which
    STARVED = "starved processor"  # it is ready to run, but other processes run on its processors
    UNEQUAL = "unequal work"  # no rank is slow; stages, or micro-batches, have more work than others
    NETWORK = "network"  # all ranks have entered the call, and the transfer doesn't end, or takes longer than before


PARKED = "a checkpoint is being taken"  # `detail` of a verdict on a job that waits for its checkpoint
SPEED = "only its speed is unknown"  # `detail` of UNKNOWN for a job in which nobody is stuck
WAITING = "ranks wait for others"  # `detail` of a verdict on a job that is healthy as far as can be told so soon


class Phase(enum.Enum):
    """The phase of a training iteration, if a schedule is known."""

    UNKNOWN = ""
    FORWARD = "forward"
    BACKWARD = "backward"
    TRANSFER = "transfer"  # between pipeline stages, or the collective itself
    REDUCE = "gradient reduction"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True)
class Verdict:
    """One verdict.

    sentence: a complete sentence, for people.
    rank, peer: world ranks or None. An UNKNOWN verdict names no rank; its peer is a rank whose process may show more.
    iteration, micro: counted from 0.
    since_ns: when the fault began, on the job's clock.
    cost_ns: for SLOW, the time by which the iteration would be shorter without the fault (counterfactual). Without a
        schedule, the time that all collectives together had to wait.
    share: for SLOW, the share of the newest time that the fault costs; None if it is not a lasting one.
    confidence: 0 to 1.
    """

    state: State
    sentence: str
    cause: Cause = Cause.NONE
    rank: int | None = None
    peer: int | None = None
    phase: Phase = Phase.UNKNOWN
    stage: int | None = None  # pipeline stage
    iteration: int | None = None
    micro: int | None = None
    call: str = ""  # the MPI call in question: "MPI_Recv from rank 13, tag 7"
    detail: str = ""
    since_ns: int | None = None
    cost_ns: int | None = None
    share: float | None = None
    confidence: float = 1.0
    evidence: tuple[str, ...] = field(default=())
    alternatives: tuple[str, ...] = field(default=())
    action: str = ""


def lines(verdict: Verdict) -> list[str]:
    """Return a verdict as lines for people: the sentence, then the details, indented."""
    found = [verdict.sentence]
    found += [f"  {text}" for text in verdict.evidence]
    if verdict.state not in (State.HEALTHY, State.UNKNOWN) or verdict.cause is not Cause.NONE:
        found.append(f"  cause: {verdict.cause.value}; confidence {verdict.confidence:.0%}")
    found += [f"  or: {text}" for text in verdict.alternatives]
    return [*found, f"  next: {verdict.action}"] if verdict.action else found
