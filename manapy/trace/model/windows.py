"""The waits of calls that synchronise on a window: for the holders of a lock (MPI 4.1, section 12.5.3), or for the
other side's call of post-start-complete-wait (section 12.5.2).

Fences are collectives on the window's group, and are matched as such (match.py).

Invariants
 1. A rank holds a lock from the return of MPI_Win_lock until MPI_Win_unlock of the same target returns. A rank that
    asks for a shared lock waits for exclusive holders only. It may also wait behind a rank that asks for an exclusive
    lock, which the trace does not show. With MPI_MODE_NOCHECK neither side waits. A record that does not say how the
    lock was asked for counts as exclusive.
 2. A lock that was taken in lost records is not seen. Then it is unknown for which rank its waiters wait.
 3. A target need not make a call for a lock, an unlock or a flush. But MPI libraries make progress only inside calls.
    So ranks also wait for a target that is outside MPI.
 4. Epochs of post-start-complete-wait are numbered for each pair of ranks on both sides (trace.h). So the n-th access
    belongs to the n-th exposure even if records are lost. MPI_Win_start may return before the post (section 12.5.2).
    MPI_Win_complete waits for the post then.
"""

from __future__ import annotations

import numpy as np

from .events import NO_PEER, OPEN, Flag, Op, Trace
from .match import Matching

SHARED, UNCHECKED = 2, 3  # tag of a MPI_Win_lock: mpy_trace_lock_t in trace.h
PASSIVE = (Op.WIN_LOCK, Op.WIN_UNLOCK, Op.WIN_FLUSH)
# the call that the other side of an epoch has to make
ANSWERS = {Op.WIN_START: Op.WIN_POST, Op.WIN_COMPLETE: Op.WIN_POST, Op.WIN_WAIT: Op.WIN_COMPLETE}


def holders(trace: Trace, matching: Matching, event: int) -> dict[int, int]:
    """Return the ranks that hold the lock for which an open MPI_Win_lock asks, in a way that keeps it from getting it,
    and since when each holds it, ns."""
    events = trace.events
    asked = int(events["tag"][event])
    if asked == UNCHECKED:
        return {}
    beside = (SHARED, UNCHECKED) if asked == SHARED else (UNCHECKED,)
    comm, target = int(matching.comm[event]), int(matching.peer[event])
    mine = (
        (matching.comm == comm)
        & np.isin(events["op"], (Op.WIN_LOCK, Op.WIN_UNLOCK))
        & (events["exit"] != OPEN)
        & (events["flags"] & Flag.FAILED == 0)
    )
    if target >= 0:  # a lock without a peer locks all targets
        mine &= (matching.peer == target) | (matching.peer == NO_PEER)
    newest: dict[tuple[int, int], int] = {}
    for i in np.flatnonzero(mine).tolist():
        key = int(events["rank"][i]), int(matching.peer[i])
        if key not in newest or events["exit"][i] >= events["exit"][newest[key]]:
            newest[key] = i
    return {
        rank: int(events["exit"][i])
        for (rank, _), i in sorted(newest.items())
        if events["op"][i] == Op.WIN_LOCK and int(events["tag"][i]) not in beside
    }


def newest(trace: Trace, matching: Matching, op: Op, rank: int, event: int) -> int:
    """Return the index of the last call `op` of `rank` that belongs to an event of post-start-complete-wait: on the
    same window, and with the event's rank as its peer. -1: there is none."""
    lo, hi = matching.of_rank(rank)
    events = trace.events
    mine = (
        (events["op"][lo:hi] == op)
        & (matching.comm[lo:hi] == matching.comm[event])
        & (matching.peer[lo:hi] == events["rank"][event])
    )
    found = lo + np.flatnonzero(mine & (events["flags"][lo:hi] & Flag.FAILED == 0))
    return int(found[np.argmax(events["context"][found])]) if len(found) else -1
