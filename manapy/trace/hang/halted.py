"""Finds processes that are dead or stopped, and the call whose error ended a job."""

from __future__ import annotations

from ..model import calls, mpi_errors
from ..model.events import OPEN, Flag, Op
from ..model.verdict import Cause, State, Verdict
from .suspects import Suspects
from .timeouts import FLOOR
from .waitfor import described


def wait_for_halted(search: Suspects) -> None:
    """Make ranks that wait for a transfer with a dead or stopped process wait for this process.

    The same is done for a transfer with a process that has posted its part but is outside MPI.
    """
    for call in search.graph.calls:
        for want in call.wants:
            if want.ranks or want.unproven or not want.known:
                continue
            for rank in search.partners(want.event):
                if rank != call.rank and (
                    rank in search.dead
                    or rank in search.stopped
                    or rank not in search.graph.opened
                    and _unfinished(search, want.event, rank)
                ):
                    search.waiting.add(rank, call, want)


def _unfinished(search: Suspects, event: int, rank: int) -> bool:
    """Return whether `rank` has posted its part of this without completing it."""
    return not search.hidden(event, rank) and bool((search.matching.done[search.parts(event, rank)] < 0).any())


def find(search: Suspects) -> None:
    """Accuse ranks whose processes are dead or stopped."""
    for rank in sorted(search.dead):
        behind = search.waiting.behind(rank)
        text = f"{search.name(rank)}: its process {search.trace.ranks[rank].pid} is dead, and had not finalized MPI"
        if (how := refused(search, rank)) is not None:
            text += f"; its {how}"
        elif (at := search.graph.last.get(rank)) is not None and search.trace.events["flags"][at] & Flag.FAILED:
            text += f"; its last call, {calls.describe(search.trace, search.matching, at)}, failed"
        elif rank in search.graph.opened and not search.graph.opened[rank].polling:
            opened = search.graph.opened[rank]
            text += f"; it was in {described(search.trace, search.matching, opened, opened.call)}"
        search.add(
            rank,
            Cause.DEAD,
            text + (f"; {calls.count(len(behind), 'rank')} for it" if behind else ""),
            since_ns=search.last_active(rank),
            evidence=tuple(search.facts(rank) + search.victims(rank)),
            action="see the job's output (last lines); continue from the last checkpoint with `manapy restart`",
        )
    for rank in sorted(search.stopped):
        if search.idle(rank) < FLOOR:
            continue
        pid, behind = search.trace.ranks[rank].pid, search.waiting.behind(rank)
        search.add(
            rank,
            Cause.STOPPED,
            f"{search.stuck(rank)}: its process {pid} is stopped (SIGSTOP, or a debugger)"
            + (f"; {calls.count(len(behind), 'rank')} for it" if behind else ""),
            since_ns=search.last_active(rank),
            evidence=tuple(search.facts(rank) + search.victims(rank)),
            action=f"kill -CONT {pid} on {search.trace.ranks[rank].host or 'its host'},"
            " or end the debugger that holds it",
        )


def first(search: Suspects, rank: int, failed: Verdict | None) -> Verdict:
    """Return the verdict on a job that is over: it names the rank that was seen to die first.

    It is not proven to be the cause, because ending a job kills all of its ranks. If it waited for a rank that may have
    left, the cause is unknown. failed: the verdict on another rank, whose call has failed.
    """
    text = f"{search.name(rank)} was the first that was seen to die"
    facts, action = (*search.facts(rank), *search.victims(rank)), "see the last lines of the job's output"
    if failed is None and (left := search.ended(victim=rank)):
        return Verdict(
            State.UNKNOWN,
            f"it is unknown which rank ended the job: {text}, and it waited for a rank that may have left",
            confidence=0.0,
            evidence=(*left, *facts),
            action=action,
        )
    behind = search.waiting.behind(rank)
    return Verdict(
        State.HUNG,
        f"{text}: its process {search.trace.ranks[rank].pid} had not finalized MPI"
        + (f"; {calls.count(len(behind), 'rank')} for it" if behind else ""),
        Cause.DEAD,
        rank,
        since_ns=search.last_active(rank),
        evidence=facts,
        alternatives=(
            *((failed.sentence,) if failed is not None else ()),
            "the whole job was ended: Ctrl-C, a time limit, MPI_Abort of another rank",
        ),
        confidence=0.5 if failed is not None else 0.7,
        action=f"{action}; continue from the last checkpoint with `manapy restart`",
    )


def refused(search: Suspects, rank: int) -> str | None:
    """Return the text `MPI_Send to rank 1, tag 7 failed with MPI_ERR_COUNT`, if that has ended the job; else None. The
    call may have been refused before it was recorded."""
    known = search.trace.ranks[rank]
    if (refusal := known.refused) is None:
        return None
    if not refusal.error:
        return f"{refusal.call} came {'after MPI_Finalize' if known.ended else 'before MPI_Init'}"
    what = refusal.call
    at, events = search.graph.last.get(rank), search.trace.events
    if at is not None and events["flags"][at] & Flag.FAILED:
        op, nonblocking = int(events["op"][at]), bool(events["flags"][at] & Flag.NONBLOCKING)
        if calls.name(op, nonblocking) == refusal.call.removesuffix("_c"):
            what = calls.describe(search.trace, search.matching, at)
    return f"{what} failed with {mpi_errors.name(refusal.error)}"


def refusal(search: Suspects) -> Verdict | None:
    """For a job that is over, return the verdict on the rank whose failing call was the first to end it, or None."""
    found = {rank: known.refused.at for rank, known in search.trace.ranks.items() if known.refused is not None}
    if not found or not search.over:
        return None
    rank, *others = sorted(found, key=lambda one: found[one])
    call = search.trace.ranks[rank].refused.call  # type: ignore[union-attr]
    return Verdict(
        State.HUNG,
        f"{search.name(rank)} has ended the job: its {refused(search, rank)}",
        Cause.DEAD,
        rank,
        call=call,
        since_ns=found[rank],
        evidence=(*(f"{search.name(one)}: its {refused(search, one)}, too" for one in others), *search.victims(rank)),
        action="see MPI's message on that call in the job's output",
    )


def failed(search: Suspects) -> Verdict | None:
    """For a job that is over, return the verdict on a rank whose last call has returned an error, or None. By default
    an error ends the job. MPI_Abort may be recorded as a Finalize that doesn't return."""
    events = search.trace.events
    last = dict(search.graph.last)
    for rank, at in search.graph.last.items():
        if events["op"][at] == Op.FINALIZE and events["exit"][at] == OPEN and at > search.matching.of_rank(rank)[0]:
            last[rank] = at - 1
    last = {
        rank: at
        for rank, at in last.items()
        if not search.trace.ranks[rank].ended and events["flags"][at] & Flag.FAILED
    }
    if not last:
        return None
    exits = events["exit"]
    rank, at = min(last.items(), key=lambda one: exits[one[1]])
    what = calls.describe(search.trace, search.matching, at)
    return Verdict(
        State.HUNG,
        f"{search.name(rank)} has ended the job: its {what} failed, and it made no other call",
        Cause.DEAD,
        rank,
        call=what,
        since_ns=int(events["exit"][at]),
        evidence=tuple(search.victims(rank)),
        confidence=0.9,
        action="see MPI's message on that call in the job's output",
    )
