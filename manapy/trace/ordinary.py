"""Stragglers of programs without a known schedule: who keeps others waiting in collectives, by own work before them.

In a collective in which everybody needs everybody, all wait for the last to come. What the last one's own work before it (the time since its last call) was longer than that of
the others (their median), and by which it came later than the last but one, is held against it. Coming late because of waiting elsewhere is not.
"""

from __future__ import annotations

import numpy as np

from .calls import span
from .events import OPEN, Op, Trace
from .runqueue import EXPLAINS, Delays
from .verdict import Cause, State, Verdict

NXN = (Op.BARRIER, Op.ALLREDUCE, Op.ALLGATHER, Op.ALLTOALL, Op.REDUCE_SCATTER)
FEWEST = 8  # collectives from which something can be said
SHARE = 0.1  # of the time, that a straggler costs at least
OFTEN = 3.0  # times what it costs to wait for others


def verdicts(trace: Trace, why: str = "", delays: Delays | None = None) -> list[Verdict]:
    """One SLOW for each straggler, the worst first; or one HEALTHY or UNKNOWN. why: what kept a schedule from being found, for the evidence.
    delays: what is known of ranks' waits for a processor."""
    starts = max((known.first_ns for known in trace.ranks.values()), default=0)
    uncertainty = max((r.uncertainty_ns for r in trace.ranks.values()), default=0) if len({r.host for r in trace.ranks.values()}) > 1 else 0
    events = trace.events
    lost = [rank for rank in range(trace.size) if rank not in trace.ranks]
    order = np.flatnonzero(np.isin(events["op"], NXN) & (events["comm"] >= 0) & (events["enter"] >= starts) & (events["exit"] != OPEN))
    evidence = (why,) if why else ()
    late, last, window, count = _late(trace, order, 2 * uncertainty)
    if count < FEWEST:
        text = f"{count} collectives in which all wait for each other are recorded: too few to tell a straggler"
        return [Verdict(State.UNKNOWN, text, confidence=0.0, evidence=evidence, action="give a schedule, or look again when more are recorded")]
    found = []
    for rank in np.argsort(-late, kind="stable").tolist():
        if late[rank] < SHARE * window or late[rank] < OFTEN * float(np.median(np.delete(late, rank))):
            break
        host = trace.ranks[rank].host if rank in trace.ranks else ""
        starved = delays is not None and delays.share(rank) * window >= EXPLAINS * late[rank]
        because = "it had to wait for a processor" if starved else "its own work before them took longer"
        found.append(
            Verdict(
                State.SLOW,
                f"rank {rank}{f' ({host})' if host else ''} keeps the others waiting: it was the last in {last[rank]} of {count} collectives, because {because};"
                f" together {span(int(late[rank]))} of {span(window)}",
                Cause.STARVED if starved else Cause.COMPUTE,
                rank,
                cost_ns=int(late[rank]),
                confidence=0.8,
                evidence=(*evidence, *((f"no trace of {len(lost)} ranks",) if lost else ())),
                action="compare its share of the work, its host's clock rate and processors with the others'",
            )
        )
    return found or [Verdict(State.HEALTHY, f"healthy: no straggler in {count} collectives over {span(window)}", evidence=evidence)]


def _late(trace: Trace, order: np.ndarray, least: int) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Nanoseconds for which each rank made others wait, in how many collectives it was the last, the time looked at, and the number of collectives."""
    events = trace.events
    late, last = np.zeros(trace.size), np.zeros(trace.size, int)
    if not len(order):
        return late, last, 0, 0
    before = np.maximum(order - 1, 0)
    same = (events["rank"][before] == events["rank"][order]) & (events["thread"][before] == events["thread"][order]) & (order > 0)
    own = np.where(same, np.maximum(events["enter"][order] - events["exit"][before], 0), 0)
    key = np.lexsort((events["context"][order], events["comm"][order]))
    comm, seq, enter, rank, own = events["comm"][order][key], events["context"][order][key], events["enter"][order][key], events["rank"][order][key], own[key]
    firsts = np.flatnonzero(np.r_[True, (comm[1:] != comm[:-1]) | (seq[1:] != seq[:-1])])
    sizes = np.diff(np.r_[firsts, len(comm)])
    members = np.array([len(known.members) for known in trace.comms])
    whole = (sizes == members[comm[firsts]]) & (sizes > 1)
    for size in np.unique(sizes[whole]).tolist():
        at = firsts[whole & (sizes == size)][:, None] + np.arange(size)
        came = np.sort(enter[at], axis=1)
        slowest = enter[at].argmax(axis=1)
        rows = np.arange(len(at))
        others = own[at].astype(float)
        others[rows, slowest] = np.nan
        excess = own[at][rows, slowest] - np.nanmedian(others, axis=1)
        gap = np.minimum(came[:, -1] - came[:, -2], excess)
        held = gap > least
        np.add.at(late, rank[at][rows, slowest][held], gap[held])
        np.add.at(last, rank[at][rows, slowest][held], 1)
    return late, last, int(enter.max() - enter.min()), int(whole.sum())
