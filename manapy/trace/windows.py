"""What calls that synchronise passively on a window wait for: a lock's holders (MPI 4.1, section 12.5.3).

Fences are collectives on the window's group, and are matched as such (match.py).

Invariants
 1. A rank holds a lock from the return of MPI_Win_lock until MPI_Win_unlock of the same target returns. Whether it is shared isn't recorded: who waits
    for a shared one waits for an exclusive holder, or behind somebody who waits for the shared ones.
 2. A lock that was taken in records that are lost is not seen: whom its waiters wait for isn't known then.
 3. A target need not call anything for a lock, an unlock or a flush; but MPI libraries make progress inside of calls only. One that is outside MPI is waited for.
"""

from __future__ import annotations

import numpy as np

from .events import NO_PEER, OPEN, Flag, Op, Trace
from .match import Matching

PASSIVE = (Op.WIN_LOCK, Op.WIN_UNLOCK, Op.WIN_FLUSH)


def holders(trace: Trace, matching: Matching, event: int) -> list[int]:
    """The ranks that hold the lock which an open MPI_Win_lock asks for."""
    events = trace.events
    comm, target = int(matching.comm[event]), int(matching.peer[event])
    mine = (matching.comm == comm) & np.isin(events["op"], (Op.WIN_LOCK, Op.WIN_UNLOCK)) & (events["exit"] != OPEN) & (events["flags"] & Flag.FAILED == 0)
    if target >= 0:  # without a peer: all targets
        mine &= (matching.peer == target) | (matching.peer == NO_PEER)
    newest: dict[tuple[int, int], int] = {}
    for i in np.flatnonzero(mine).tolist():
        key = int(events["rank"][i]), int(matching.peer[i])
        if key not in newest or events["exit"][i] >= events["exit"][newest[key]]:
            newest[key] = i
    return sorted({rank for (rank, _), i in newest.items() if events["op"][i] == Op.WIN_LOCK})
