"""Finds out whether the job is stuck, which rank is to blame, and why: Algorithm 1 of the MegaTrace paper, without
needing a schedule.

The graph of waits is always built. Its ends are then checked in the order of Cause: a process that is dead or stopped
(halted.py); calls that do not match (mismatch.py); a knot of calls that wait for each other (deadlock.py); a rank
outside MPI, or one that has ended, whose call others wait for (outside.py); and, if all have arrived, the transfer
(stalled.py). The suspect is always a rank that waits for no other rank (the least advanced rank has no open wait on a
peer). So its victims are never reported.

Late is not hung. A rank outside MPI that computes, reads or writes is LATE, however long it takes. So is a rank whose
activity is unknown. A rank is HUNG if its process does nothing by any measure (activity.py), or cannot go on whatever
it does: dead, stopped, in a knot, finalized. A transfer is HUNG only if there is proof other than the time
(stalled.py).

Invariants
 1. No rank is reported for a missing call that its trace could not show (invariant 1 of waitfor.py). Then the verdict
    is UNKNOWN, unless another rank is proven guilty.
 2. A rank outside MPI, or a transfer, is suspected only after the time of timeouts.py plus the uncertainty of its
    clock. Time in which a rank was ready to run and had no processor does not count.
 3. A snapshot of running rings is not taken at one moment. So a knot counts only if all its calls are older than FLOOR.
 4. Ranks that are parked for a checkpoint are healthy, and so are ranks that wait for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.units import and_more, span
from ..host.runqueue import Delays
from ..model import calls
from ..model.events import Trace
from ..model.match import Matching, match
from ..model.verdict import PARKED, WAITING, Cause, State, Verdict
from . import deadlock, halted, mismatch, outside, stalled
from .network import Probe
from .suspects import Suspects
from .timeouts import Memory

if TYPE_CHECKING:
    from ..model.stages import Labels


def verdicts(
    trace: Trace,
    matching: Matching | None = None,
    *,
    labels: Labels | None = None,
    parked: frozenset[int] = frozenset(),
    delays: Delays | None = None,
    probe: Probe | None = None,
    memory: Memory | None = None,
    died: int | None = None,
) -> list[Verdict]:
    """Return one verdict per fault, the surest first; or one that says HEALTHY, or UNKNOWN with the reason.

    labels: of a schedule, if one is known (stages.py).
    parked: ranks that a checkpoint holds.
    delays: the known waits of ranks for a processor.
    probe: a probe of the network between hosts.
    memory: what earlier looks at this job have learned; it is updated.
    died: for a job that is over, the rank whose death was seen first. It is reported if its records prove nothing else,
        because a stuck job is killed in the end.
    """
    if not len(trace.events) and not any(known.refused for known in trace.ranks.values()):
        return [_no_calls(trace)]
    search = Suspects(
        trace, matching if matching is not None else match(trace), labels, delays or Delays(), memory, died
    )
    if parked:
        text = f"{PARKED}: {len(parked)} of {trace.size} ranks are parked for it"
        return [Verdict(State.HEALTHY, text, detail=PARKED)]
    halted.wait_for_halted(search)
    if (refusal := halted.refusal(search)) is not None:
        return [refusal]
    if not len(trace.events):
        return [_refused_only(search)]
    failed = halted.failed(search) if search.over else None
    if failed is not None and search.died in (None, failed.rank):
        return [failed]
    halted.find(search)
    mismatched = mismatch.find(search)
    deadlock.find(search)
    outside.find(search)
    stalled.find(search, mismatched, probe)
    if not search.found and search.died is not None:
        search.found.append(halted.first(search, search.died, failed))
    order = list(Cause)
    if search.found:
        return sorted(
            search.found, key=lambda v: (v.state is State.LATE, order.index(v.cause), -v.confidence, v.since_ns or 0)
        )
    return search.undecided or [_unproven(search.unproven) if search.unproven else _healthy(search)]


def _no_calls(trace: Trace) -> Verdict:
    """Return the verdict on a job without recorded calls. Its ranks are recorded, but none has called MPI."""
    if len(trace.ranks) < trace.size:
        sentence = "nothing was recorded"
        action = "is the job running under manapy-launch, without --no-trace?"
    else:
        restarted = any(known.generation for known in trace.ranks.values())
        sentence = f"no rank has called MPI{' since the restart' if restarted else ''}, so nothing was recorded"
        action = "look again later; `manapy status` shows which programs run: do they use MPI?"
    return Verdict(State.UNKNOWN, sentence, confidence=0.0, action=action)


def _unproven(waits: list[str]) -> Verdict:
    return Verdict(
        State.UNKNOWN,
        waits[0] + and_more(waits, " like this"),
        confidence=0.0,
        evidence=tuple(waits[1:5]),
        action="look again; more records: a larger ring, or `manapy trace record` from the start",
    )


def _refused_only(search: Suspects) -> Verdict:
    """For a live job whose ranks have recorded nothing but calls that were refused."""
    refused = ((rank, halted.refused(search, rank)) for rank in sorted(search.trace.ranks))
    failed = [f"{search.name(rank)}: its {text}" for rank, text in refused if text is not None]
    return Verdict(
        State.UNKNOWN,
        f"{failed[0]}; the job has not ended yet",
        confidence=0.0,
        evidence=tuple(failed[1:]),
        action="look again; see MPI's message on that call in the job's output",
    )


def _healthy(search: Suspects) -> Verdict:
    events, trace = search.trace.events, search.trace
    newest = int(max(events["enter"].max(), events["exit"].max()))
    waiting = len({call.rank for call in search.graph.calls if any(True for _ in call.awaited())})
    size = f"{len(trace.ranks)} rank{'s' if len(trace.ranks) != 1 else ''}"
    text = f"healthy: {size}, the last call {span(max(trace.now - newest, 0))} ago"
    if trace.ranks and all(r.ended for r in trace.ranks.values()):
        finalized = f"all {size} have finalized MPI" if len(trace.ranks) > 1 else "its rank has finalized MPI"
        return Verdict(State.HEALTHY, f"healthy: {finalized}")
    if search.over:
        return Verdict(
            State.UNKNOWN,
            "the job's processes are gone, and their records prove no fault",
            confidence=0.0,
            evidence=(*search.ended(), *search.at_the_end()),
            action="see the job's output",
        )
    paused, everywhere = search.paused()
    if everywhere:
        return Verdict(State.UNKNOWN, paused[0], confidence=0.0, action="look again when recording goes on")
    lost = sum(r.lost for r in trace.ranks.values())
    evidence = [*paused, *[f"{calls.count(waiting, 'rank')} for others, not for too long"] * bool(waiting)]
    return Verdict(
        State.HEALTHY,
        text,
        detail=WAITING if waiting else "",
        evidence=(*evidence, *((f"{lost} older records are overwritten",) if lost else ())),
    )
