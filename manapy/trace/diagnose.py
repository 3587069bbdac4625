"""All that `manapy why` says of a trace: what /proc shows of the processes, labels by the schedule, hangs, else slowdowns, and stacks of the suspects.

The one place where the pure analyses (hang.py, slow.py) meet the machine they run on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from enum import Enum
from typing import Any, Protocol

from . import hang, match, proc, slow, stacks, stages
from .events import Rank, Trace
from .network import Probe
from .runqueue import Delays, Sampler
from .schedule import Schedule, ScheduleError
from .verdict import State, Verdict

STACKS = 4  # suspects


class Judge(Protocol):
    """What is said of slow iterations: slow.verdicts, or of a job that is watched, alarms.verdicts."""

    def __call__(self, trace: Trace, schedule: Schedule | None, *, delays: Delays | None, labels: stages.Labels | None) -> list[Verdict]: ...


def diagnose(
    trace: Trace,
    schedule: Schedule | None = None,
    *,
    live: bool = False,
    died: int | None = None,
    parked: frozenset[int] = frozenset(),
    stack: Callable[[Rank], list[str]] | None = None,
    sampler: Sampler | None = None,
    judge: Judge = slow.verdicts,
    probe: Probe | None = None,
) -> list[Verdict]:
    """Verdicts, the gravest first. live: the trace is of now, so that processes of this host are looked at, which takes proc.INTERVAL seconds. died: the rank that was the
    first to die, of a job that is over. stack: asks other hosts where a rank is. sampler: of a job that is looked at again and again, what it has seen of its processes so far.
    judge: what is said of slow iterations. probe: of the network between hosts of a job that is live. A schedule that doesn't fit is said so in the evidence, and not used."""
    if live:
        sampler = sampler or Sampler()
        sampler.watch(trace)
        sampler.sample()
        trace = proc.examine(trace)
        sampler.sample()
    delays = sampler.delays(trace) if sampler is not None else None
    if died is not None and died in trace.ranks and all(known.process == proc.DEAD for known in trace.ranks.values()):
        trace = replace(trace, ranks={rank: replace(known, process=proc.DEAD if rank == died else "") for rank, known in trace.ranks.items()})
    matching = match.match(trace)
    labels, misfit = labels_of(trace, schedule)
    found = hang.verdicts(trace, matching, labels=labels, parked=parked, delays=delays, probe=probe if live else None)
    if state(found) is State.HEALTHY and not parked:
        return _slow(found, judge(trace, None if misfit else schedule, delays=delays, labels=labels), misfit)
    if live:
        found = [_with_stack(verdict, trace, stack) if i < STACKS and verdict.state is State.HUNG else verdict for i, verdict in enumerate(found)]
    return [replace(found[0], evidence=(*found[0].evidence, misfit)), *found[1:]] if misfit else found


def labels_of(trace: Trace, schedule: Schedule | None) -> tuple[stages.Labels | None, str]:
    """Labels of the calls, by the schedule that was given or, if calls show one with pipeline stages, by that; and what is wrong with the given one."""
    try:
        if schedule is None:
            labels = stages.inferred(trace)
            return (labels if labels.schedule.pp > 1 else None), ""
        if schedule.flat:
            stages.check_size(trace, schedule)
            return None, ""
        return stages.label(trace, schedule), ""
    except ScheduleError as error:
        return None, str(error) if schedule is not None else ""


def _slow(healthy: list[Verdict], found: list[Verdict], misfit: str) -> list[Verdict]:
    """Of a job that isn't stuck. That nothing can be said of its speed is no reason not to call it healthy."""
    if state(found) is State.UNKNOWN:
        found = [replace(healthy[0], evidence=(*healthy[0].evidence, *(verdict.sentence for verdict in found)))]
    return [replace(found[0], evidence=(*found[0].evidence, misfit)), *found[1:]] if misfit else found


def state(verdicts: list[Verdict]) -> State:
    """Of the job: the gravest."""
    for grave in (State.HUNG, State.SLOW, State.UNKNOWN):
        if any(verdict.state is grave for verdict in verdicts):
            return grave
    return State.HEALTHY


def _with_stack(verdict: Verdict, trace: Trace, elsewhere: Callable[[Rank], list[str]] | None) -> Verdict:
    known = trace.ranks.get(verdict.rank) if verdict.rank is not None else None
    if known is None:
        return verdict
    if known.rank in proc.here(trace):
        found = stacks.of(known.pid, known.pid_start)
    else:
        found = elsewhere(known) if elsewhere is not None else []
    return replace(verdict, evidence=(*verdict.evidence, *found))



def as_json(verdict: Verdict) -> dict[str, Any]:
    """A verdict as data: enumerations by their values."""
    return {name: value.value if isinstance(value, Enum) else list(value) if isinstance(value, tuple) else value for name, value in asdict(verdict).items()}
