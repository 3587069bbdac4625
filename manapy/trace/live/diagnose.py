"""All steps of `manapy why` on a trace: the processes by /proc, labels by the schedule, hangs, else slowdowns, and
stacks of the suspects.

Only this module connects the pure analyses (hang.py, slow.py) with the machine on which they run.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Protocol

import numpy as np

from ..hang import hang
from ..hang.network import Probe
from ..hang.timeouts import Memory
from ..host import process_state
from ..host.activity import Activity, Suspect
from ..host.runqueue import Delays, Sampler
from ..model import match, stages
from ..model.events import OPEN, Op, Trace
from ..model.schedule import Schedule, ScheduleError
from ..model.verdict import SPEED, WAITING, State, Verdict
from ..slow import slow
from .stack_memory import RemoteProcesses, SuspectStacks

# An inferred schedule counts only from this iteration on, because a few messages fit many schedules.
TRAINS = 2


class Judge(Protocol):
    """Judges slow iterations: slow.verdicts or, for a job that is watched, alarms.verdicts."""

    def __call__(
        self, trace: Trace, schedule: Schedule | None, *, delays: Delays | None, labels: stages.Labels | None
    ) -> list[Verdict]: ...


@dataclass
class DiagnosisState:
    """Data that one look at a job keeps for the next one: the activity of its processes, and how long ranks were late
    that went on in the end."""

    activity: Activity = field(default_factory=Activity)
    memory: Memory = field(default_factory=Memory)


def diagnose(
    trace: Trace,
    schedule: Schedule | None = None,
    *,
    live: bool = False,
    died: int | None = None,
    parked: frozenset[int] = frozenset(),
    others: RemoteProcesses | None = None,
    sampler: Sampler | None = None,
    judge: Judge = slow.verdicts,
    probe: Probe | None = None,
    looked: DiagnosisState | None = None,
    take_stacks: bool = True,
) -> list[Verdict]:
    """Return verdicts, the gravest first.

    If a schedule doesn't fit, it is not used, and the evidence says so.

    live: the trace is current, so processes of this host are inspected, which takes process_state.INTERVAL seconds.
    died: for a job that is over, the rank that died first.
    parked: ranks that a checkpoint holds.
    others: the job's other hosts.
    sampler: for a job that is looked at repeatedly, its samples of the processes so far.
    judge: judges slow iterations.
    probe: a probe of the network between hosts of a live job.
    looked: data of earlier looks; it is updated.
    take_stacks: add the stacks of suspects to the verdicts on a live job. A watch does this itself (stack_memory.py).
    """
    if live:
        sampler = sampler or Sampler()
        sampler.watch(trace)
        sampler.sample()
        trace = process_state.examine(trace)
        sampler.sample()
    delays = sampler.delays(trace) if sampler is not None else None
    matching = match.match(trace)
    labels, misfit = labels_of(trace, schedule)
    looked = looked or DiagnosisState()

    def judged(trace: Trace) -> list[Verdict]:
        return hang.verdicts(
            trace,
            matching,
            labels=labels,
            parked=parked,
            delays=delays,
            probe=probe if live else None,
            memory=looked.memory,
            died=died,
        )

    found = judged(trace)
    accused = [verdict.rank for verdict in found if verdict.state is State.LATE]
    doubted = [verdict.peer for verdict in found if verdict.state is State.UNKNOWN]
    if live and (late := {rank for rank in (*accused, *doubted) if rank is not None}):
        trace = _with_activity(trace, late, looked.activity, others)
        found = judged(trace)
    if state(found) is State.HEALTHY and not parked:
        ended = all(known.ended for known in trace.ranks.values())
        slowness = judge if trace.timed else _untimed
        return _slow(found, slowness(trace, None if misfit else schedule, delays=delays, labels=labels), misfit, ended)
    if live and take_stacks:
        found = SuspectStacks().added(found, (), trace, others)
    return [replace(found[0], evidence=(*found[0].evidence, misfit)), *found[1:]] if misfit else found


def _untimed(
    trace: Trace, schedule: Schedule | None, *, delays: Delays | None, labels: stages.Labels | None
) -> list[Verdict]:
    """Judge the speed of a recording without durations."""
    text = "the recording doesn't say how long calls took"
    return [Verdict(State.UNKNOWN, text, confidence=0.0, action="import a profiler's trace of the same job")]


def labels_of(trace: Trace, schedule: Schedule | None) -> tuple[stages.Labels | None, str]:
    """Return labels of the calls, and the reason why the given schedule doesn't fit. Without a given schedule, the
    labels are those of the schedule that the calls show, if it has several pipeline stages."""
    try:
        if schedule is None:
            labels = stages.inferred(trace)
            return (labels if labels.schedule.pp > 1 and labels.iteration.max(initial=-1) >= TRAINS else None), ""
        if schedule.flat:
            stages.check_size(trace, schedule)
            return None, ""
        return stages.label(trace, schedule), ""
    except ScheduleError as error:
        return None, str(error) if schedule is not None else ""


def _slow(healthy: list[Verdict], found: list[Verdict], misfit: str, ended: bool) -> list[Verdict]:
    """Return the verdicts on a job that isn't stuck. If its speed can't be judged, it isn't known to be healthy, unless
    it has ended well. A slow job without a known reason is reported as slow."""
    if state(found) is State.UNKNOWN and not any(verdict.confidence for verdict in found):
        why = tuple(verdict.sentence for verdict in found)
        if ended:
            found = [replace(healthy[0], evidence=(*healthy[0].evidence, *why))]
        else:
            nobody = "nobody is stuck so far" if healthy[0].detail == WAITING else "nobody is stuck"
            text = f"{nobody}; it is unknown whether anything is slow: {why[0]}"
            found = [
                replace(
                    found[0],
                    sentence=text,
                    detail=SPEED,
                    evidence=(*healthy[0].evidence, *found[0].evidence, healthy[0].sentence),
                ),
                *found[1:],
            ]
    return [replace(found[0], evidence=(*found[0].evidence, misfit)), *found[1:]] if misfit else found


def state(verdicts: list[Verdict]) -> State:
    """Return the gravest state of the verdicts."""
    for grave in (State.HUNG, State.LATE, State.SLOW, State.UNKNOWN):
        if any(verdict.state is grave for verdict in verdicts):
            return grave
    return State.HEALTHY


def _with_activity(trace: Trace, ranks: set[int], look: Activity, others: RemoteProcesses | None) -> Trace:
    """Inspect the processes of these ranks, all at the same time on this host, and on others."""
    inside = (trace.events["exit"] == OPEN) & (trace.events["op"] != Op.FILE)  # a file call reads and writes
    suspects = {}
    for rank in ranks:
        known = trace.ranks[rank]
        mine = inside & (trace.events["rank"] == rank)
        calling = np.unique(trace.events["thread"][mine]).tolist()
        suspects[rank] = Suspect(
            known.pid,
            known.pid_start,
            frozenset(known.threads[thread] for thread in calling if thread in known.threads),
        )
    here = set(process_state.here(trace))
    found = look.look({rank: suspect for rank, suspect in suspects.items() if rank in here})
    if others is not None and (elsewhere := {rank: suspect for rank, suspect in suspects.items() if rank not in here}):
        found |= others.activity(elsewhere)
    seen = {rank: replace(trace.ranks[rank], doing=doing.what, still_s=doing.still) for rank, doing in found.items()}
    return replace(trace, ranks=trace.ranks | seen)


def as_json(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as data. Enumerations are given by their values."""
    return {
        name: value.value if isinstance(value, Enum) else list(value) if isinstance(value, tuple) else value
        for name, value in asdict(verdict).items()
    }
