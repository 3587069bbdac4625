"""Finds calls that a rank has left out, and makes the verdict on them."""

from __future__ import annotations

import numpy as np

from ..model import calls
from ..model.events import PROC_NULL
from ..model.match import IS_COLLECTIVE, IS_RECEIVE, IS_SEND
from ..model.verdict import Cause, State
from . import schedule_position, skipped_calls
from .suspects import Suspects
from .waitfor import WaitCondition


def left_out(search: Suspects, rank: int, instance: int) -> int | None:
    """Return an event that is like the call of this communicator that a rank has skipped, judging by its habits. None:
    it has skipped none."""
    comm = int(search.matching.collectives.comm[instance])
    for skip in skipped_calls.skipped(search.trace, search.matching, rank):
        if int(search.matching.comm[skip.like]) == comm and IS_COLLECTIVE[search.matching.op[skip.like]]:
            return skip.like
    return None


def skip_awaited(search: Suspects, rank: int) -> WaitCondition | None:
    """Return the call of `rank` for which others wait, if the schedule or its habits show that the rank has left out
    this call; else None."""
    m = search.matching
    skips = None
    for call, want in search.waiting.on(rank)[:16]:
        if not want.known:
            continue
        if search.labels is not None and schedule_position.passed(search.labels, search.posted_by(want.event), rank):
            return want
        if skips is None:
            skips = skipped_calls.skipped(search.trace, m, rank)
        post = search.posted_by(want.event)
        for skip in skips:
            if m.comm[skip.like] != m.comm[post]:
                continue
            if IS_COLLECTIVE[m.op[post]]:
                fits = m.op[skip.like] == m.op[post]
            else:
                fits = (
                    _other_side(m.op[post])[m.op[skip.like]]
                    and m.peer[skip.like] == call.rank
                    and (m.tag[skip.like] == m.tag[post] or m.tag[post] < 0)
                )
            if fits:
                return want
    return None


def _other_side(op: int) -> np.ndarray:
    """Return which operations answer this one: IS_RECEIVE for a send, else IS_SEND."""
    return IS_RECEIVE if IS_SEND[op] else IS_SEND


def to_nobody(search: Suspects, rank: int, want: WaitCondition) -> int | None:
    """Return the newest call of `rank` that is the one that is awaited, but names MPI_PROC_NULL as the other rank, or
    None. A rank that has also named the waiting one, with this tag and communicator, has none."""
    m, events = search.matching, search.trace.events
    post = search.posted_by(want.event)
    if want.call or not want.known or not (IS_SEND[m.op[post]] or IS_RECEIVE[m.op[post]]):
        return None
    alike = (events["rank"] == rank) & _other_side(m.op[post])[m.op] & (m.comm == m.comm[post]) & (m.tag == m.tag[post])
    if (alike & (m.peer == events["rank"][post])).any():
        return None
    found = np.flatnonzero(alike & (m.peer == PROC_NULL))
    return int(found[-1]) if len(found) else None


def report(
    search: Suspects, rank: int, want: WaitCondition, went_on: str, confidence: float, late: bool = False
) -> None:
    """Add the verdict that a rank never made a call. went_on: text on what it did instead."""
    call = search.needed(want, rank)
    said, detail = search.process(rank) if rank not in search.graph.opened else ("", "")
    waiter = int(search.trace.events["rank"][want.event])
    misled = to_nobody(search, rank, want)
    instead = "" if misled is None else f": it made {calls.describe(search.trace, search.matching, misled)}"
    search.add(
        rank,
        Cause.MISSING if misled is None else Cause.MISMATCH,
        f"{search.stuck(rank, search.posted_by(want.event), 'late' if late else 'stuck')}:"
        f" it never called {call}{instead}{went_on}" + (f"; {said}" if said else ""),
        at=search.posted_by(want.event),
        state=State.LATE if late else State.HUNG,
        peer=waiter,
        call=call if want.known else "",
        detail=detail,
        since_ns=int(search.trace.events["enter"][want.event]),
        evidence=tuple(search.facts(rank) + search.victims(rank)),
        confidence=confidence,
        action=f"look at what the program of rank {rank} does around {call}"
        if want.known
        else f"look at what the program of rank {waiter} polls for",
    )
