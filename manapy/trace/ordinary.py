"""Stragglers of programs without a known schedule: who keeps others waiting in collectives, by own work before them.

In a collective in which everybody needs everybody, all wait for the last to come. What the last one's own work before it (the time since its last call) was longer than that of
the others (their median), and by which it came later than the last but one, is held against it. Coming late because of waiting elsewhere is not.

Where the others have waited for it in messages, all come at once. So there is a second sum, if it is more: by how much one's own work since the collective before, between all calls, was
longer than that of every other, less the time that it was in calls meanwhile, for it may have waited there. Time between calls that only look (Test, Iprobe) is nobody's work.
"""

from __future__ import annotations

import numpy as np

from .calls import span
from .events import OPEN, Op, Trace
from .runqueue import EXPLAINS, Delays
from .verdict import Cause, State, Verdict

NXN = (Op.BARRIER, Op.ALLREDUCE, Op.ALLGATHER, Op.ALLTOALL, Op.REDUCE_SCATTER)
LOOKS = (Op.TEST, Op.PROBE, Op.MPROBE)
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
                f"rank {rank}{f' ({host})' if host else ''} keeps the others waiting: they waited for it in or before {last[rank]} of {count} collectives, because {because};"
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
    """Nanoseconds for which each rank made others wait, for how many collectives that was so, the time looked at, and the number of collectives."""
    events = trace.events
    late, last = np.zeros(trace.size), np.zeros(trace.size, int)
    if not len(order):
        return late, last, 0, 0
    own, work, calls = _work(events, order)
    key = np.lexsort((events["context"][order], events["comm"][order]))
    comm, seq, enter, rank = (events[name][order][key] for name in ("comm", "context", "enter", "rank"))
    own, work, calls = own[key], work[key], calls[key]
    firsts = np.flatnonzero(np.r_[True, (comm[1:] != comm[:-1]) | (seq[1:] != seq[:-1])])
    sizes = np.diff(np.r_[firsts, len(comm)])
    members = np.array([len(known.members) for known in trace.comms])
    whole = (sizes == members[comm[firsts]]) & (sizes > 1)
    for size in np.unique(sizes[whole]).tolist():
        at = firsts[whole & (sizes == size)][:, None] + np.arange(size)
        rows = np.arange(len(at))
        came = np.sort(enter[at], axis=1)
        slowest = enter[at].argmax(axis=1)
        others = own[at].astype(float)
        others[rows, slowest] = np.nan
        excess = own[at][rows, slowest] - np.nanmedian(others, axis=1)
        gap = np.minimum(came[:, -1] - came[:, -2], excess)
        busiest, works = work[at].argmax(axis=1), np.sort(work[at], axis=1)
        more = np.where((work[at] >= 0).all(axis=1), works[:, -1] - works[:, -2] - calls[at][rows, busiest], 0)
        blamed, cost = np.where(more > gap, busiest, slowest), np.maximum(more, gap)
        held = cost > least
        np.add.at(late, rank[at][rows, blamed][held], cost[held])
        np.add.at(last, rank[at][rows, blamed][held], 1)
    return late, last, int(enter.max() - enter.min()), int(whole.sum())


def _work(events: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each collective in `order`, nanoseconds: between it and the call before (0: not known); between all calls since the rank's collective before, if that was the one before in
    the same communicator (-1: it wasn't, or records are missing), and in calls meanwhile."""
    follows = (events["rank"][1:] == events["rank"][:-1]) & (events["thread"][1:] == events["thread"][:-1])
    follows &= events["seq"][:-1] + 1 == events["seq"][1:]  # else there is more between them than own work
    between = np.r_[0, np.where(follows & (events["exit"][:-1] != OPEN), np.maximum(events["enter"][1:] - events["exit"][:-1], 0), 0)]
    own = between[order]
    between[np.isin(events["op"], LOOKS)] = 0
    total, breaks = np.cumsum(between), np.cumsum(np.r_[True, ~follows])
    before = order[:-1]
    known = breaks[before] == breaks[order[1:]]
    known &= (events["comm"][before] == events["comm"][order[1:]]) & (events["context"][before] + 1 == events["context"][order[1:]])
    work = np.r_[-1, np.where(known, total[order[1:]] - total[before], -1)]
    calls = np.r_[0, events["enter"][order[1:]] - events["exit"][before]] - work
    return own, work, calls
