"""Finds stragglers of programs without a known schedule: ranks that keep others waiting in collectives because of their
own work before them.

In a collective in which all ranks need all others, all wait for the last rank. That rank is blamed for its excess: the
time by which its own work before the collective (the time since its last call) was longer than the median of the
others'. It is blamed at most for the time by which it came later than the last but one. A rank that is late because it
waited elsewhere is not blamed.

If the others have already waited for a rank in messages, all come at once. So there is a second sum, which counts if it
is larger. It compares each rank's own work since the collective before, between all calls. The rank with the most work
is blamed for the time by which its work exceeded that of every other rank, less the time that it spent in calls
meanwhile, because it may have waited there. Time before calls that only test (Test, Iprobe) does not count as work.

If fewer than FEWEST collectives caused most of the cost, they are reported as single events; otherwise the cost is
reported as a habit of the rank. A rank is starved only if its waits for a processor are known in most of its cost, and
exceed those of its peers. Then it is the host's fault; otherwise the rank may have more work than its peers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core.units import span
from ..host.runqueue import EXPLAINS, UNSAMPLED, Delays
from ..model.calls import name
from ..model.events import OPEN, Op, Trace
from ..model.verdict import Cause, State, Verdict

NXN = (Op.BARRIER, Op.ALLREDUCE, Op.ALLGATHER, Op.ALLTOALL, Op.REDUCE_SCATTER)
LOOKS = (Op.TEST, Op.PROBE, Op.MPROBE)
FEWEST = 8  # number of collectives that are needed for a verdict
SHARE = 0.1  # a straggler costs at least this share of the time
OFTEN = 3.0  # a straggler costs at least so many times the median of the other ranks
MOST = 0.9  # share of a rank's cost: if fewer than FEWEST collectives caused it, they are single events
WORTH = 10_000_000  # ns; a straggler costs at least this
NEWEST = 30_000_000_000  # ns, in which a straggler that lasts costs its share
DEAREST = 256  # number of most expensive collectives that are compared with waits for a processor


@dataclass(frozen=True)
class _Waits:
    """Collectives in which others waited for one rank, as arrays.

    rank: the rank.
    cost: how long the others waited, ns.
    call: the rank's call, as an index of an event.
    since, until: from when to when the rank was on its way to the call, ns.
    """

    rank: np.ndarray
    cost: np.ndarray
    call: np.ndarray
    since: np.ndarray
    until: np.ndarray


def verdicts(trace: Trace, why: str = "", delays: Delays | None = None) -> list[Verdict]:
    """Return one SLOW verdict for each straggler, the worst first; or one HEALTHY or UNKNOWN. why: the reason why no
    schedule was found, for the evidence. delays: the known waits of ranks for a processor."""
    starts = max((known.first_ns for known in trace.ranks.values()), default=0)
    uncertainty = (
        max((r.uncertainty_ns for r in trace.ranks.values()), default=0)
        if len({r.host for r in trace.ranks.values()}) > 1
        else 0
    )
    events = trace.events
    lost = [rank for rank in range(trace.size) if rank not in trace.ranks]
    order = np.flatnonzero(
        np.isin(events["op"], NXN) & (events["comm"] >= 0) & (events["enter"] >= starts) & (events["exit"] != OPEN)
    )
    evidence = (why,) if why else ()
    waits, window, count, uneven = _late(trace, order, 2 * uncertainty)
    newest = min(window, NEWEST)
    recent = waits.until > int(events["enter"][order].max(initial=0)) - newest
    late = np.bincount(waits.rank, waits.cost, trace.size)
    if count < FEWEST:
        text = f"{count} collectives in which all wait for each other are recorded: too few to tell a straggler"
        return [
            Verdict(
                State.UNKNOWN,
                text,
                confidence=0.0,
                evidence=evidence,
                action="look again when more are recorded; for a training job with pipeline stages, use --schedule",
            )
        ]
    found = []
    for rank in np.argsort(-late, kind="stable").tolist():
        if late[rank] < max(SHARE * window, WORTH) or late[rank] < OFTEN * float(np.median(np.delete(late, rank))):
            break
        mine = np.flatnonzero(waits.rank == rank)
        mine = mine[np.argsort(-waits.cost[mine], kind="stable")]
        few = int(np.searchsorted(np.cumsum(waits.cost[mine]), MOST * late[rank])) + 1
        host = trace.ranks[rank].host if rank in trace.ranks else ""
        starved, sampled = _starved(waits, mine[:DEAREST], rank, delays or Delays())
        because = (
            "it had to wait for a processor"
            if starved
            else f"it spent more time outside MPI before {'it' if few == 1 else 'them'}"
        )
        cost, share = int(late[rank]), None
        if few < min(FEWEST, len(mine)):
            cost, dearest = int(waits.cost[mine[:few]].sum()), events[waits.call[mine[0]]]
            which = f"{name(int(dearest['op']))} (its call {dearest['seq']})"
            often = f"for once, {span(cost)} of {span(window)}: in or before {which}"
            if few > 1:
                longest = span(int(waits.cost[mine[0]]))
                often = f"in or before {few} of {count} collectives, {span(cost)} of {span(window)}: at most {longest},"
                often += f" at {which}"
            text = f"kept the others waiting {often}, because {because}"
        else:
            share = float(waits.cost[(waits.rank == rank) & recent].sum() / newest)
            text = (
                f"keeps the others waiting: they waited for it in or before {len(mine)} of {count} collectives, because"
                f" {because}; together {span(cost)} of {span(window)}"
            )
        found.append(
            Verdict(
                State.SLOW,
                f"rank {rank}{f' ({host})' if host else ''} {text}",
                Cause.STARVED if starved else Cause.COMPUTE,
                rank,
                cost_ns=cost,
                share=share,
                confidence=0.95 if starved else 0.8,
                evidence=(*evidence, *((f"no trace of {len(lost)} ranks",) if lost else ())),
                alternatives=() if sampled else (UNSAMPLED,),
                action="see what it does there: work, files, sleep, or was it stopped? Compare its share of the work, "
                "its host's clock rate and processors with the others'",
            )
        )
    if uneven >= SHARE * window > 0 and not found:
        evidence = (
            *evidence,
            f"the last rank to reach a collective keeps changing: {uneven / window:.0%} of the time is lost to unequal"
            " work, or to what disturbs it",
        )
    return found or [
        Verdict(State.HEALTHY, f"healthy: no straggler in {count} collectives over {span(window)}", evidence=evidence)
    ]


def _starved(waits: _Waits, dearest: np.ndarray, rank: int, delays: Delays) -> tuple[bool, bool]:
    """Return two answers. First: whether a rank's waits for a processor explain its cost, in the collectives for which
    such waits are known. Second: whether they are known for most of the cost. The rank must have waited for a larger
    share of the time than its peers, also over the whole time, because samples can be further apart than collectives.
    """
    known = explained = 0.0
    begin, end = np.iinfo(np.int64).max, 0
    for cost, since, until in zip(
        waits.cost[dearest].tolist(), waits.since[dearest].tolist(), waits.until[dearest].tolist(), strict=True
    ):
        own = delays.waited(rank, since, until)
        if own is None:
            continue
        known, begin, end = known + cost, min(begin, since), max(end, until)
        explained += min(_more_than_others(delays, rank, own, since, until), cost)
    total = float(waits.cost[dearest].sum())
    sampled = known >= EXPLAINS * total
    if not sampled or explained < EXPLAINS * known:
        return False, sampled
    own = delays.evenly(rank, begin, end) or 0
    return _more_than_others(delays, rank, own, begin, end) >= EXPLAINS * known, sampled


def _more_than_others(delays: Delays, rank: int, own: int, since: int, until: int) -> float:
    """Return how much sooner a rank that has waited `own` ns for a processor would have been there, ns, if it had
    waited as its peers (the median), relative to the time that it ran."""
    found = [wait for peer in delays.ranks if peer != rank and (wait := delays.evenly(peer, since, until)) is not None]
    whole = until - since
    waited = float(np.median(found)) if found else 0.0
    ran = max(whole - own, 0)
    return max(own - ran * waited / max(whole - waited, 1.0), 0.0)


def _late(trace: Trace, order: np.ndarray, least: int) -> tuple[_Waits, int, int, float]:
    """Return the ranks for which others waited; the length of the time looked at, ns; the number of collectives; and
    the time that was lost to unequal work before them, ns. The lost time of a collective is by how much its longest
    work exceeds the mean, weighted by its share of all ranks."""
    events = trace.events
    found, uneven = [np.zeros((5, 0), np.int64)], 0.0
    if not len(order):
        return _Waits(*found[0]), 0, 0, 0.0
    own, work, calls = _work(events, order)
    key = np.lexsort((events["context"][order], events["comm"][order]))
    comm, seq, enter, rank = (events[name][order][key] for name in ("comm", "context", "enter", "rank"))
    own, work, calls, order = own[key], work[key], calls[key], order[key]
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
        until = enter[at][rows, blamed]
        since = until - np.where(more > gap, (work[at] + calls[at])[rows, blamed], own[at][rows, blamed])
        found.append(
            np.stack([rank[at][rows, blamed], cost.astype(np.int64), order[at][rows, blamed], since, until])[
                :, cost > least
            ].astype(np.int64)
        )
        uneven += float((own[at].max(axis=1) - own[at].mean(axis=1)).sum()) * size / trace.size
    return _Waits(*np.concatenate(found, axis=1)), int(enter.max() - enter.min()), int(whole.sum()), uneven


def _work(events: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return three times for each collective in `order`, ns. First: the time between the call before and this one (0:
    not known). Second: the time between all calls since the rank's collective before, if that was the previous one in
    the same communicator (-1: it wasn't, or records are missing). Third: the time in calls meanwhile."""
    follows = (events["rank"][1:] == events["rank"][:-1]) & (events["thread"][1:] == events["thread"][:-1])
    follows &= events["seq"][:-1] + 1 == events["seq"][1:]  # else records between them are missing
    gaps = np.maximum(events["enter"][1:] - events["exit"][:-1], 0)
    between = np.r_[0, np.where(follows & (events["exit"][:-1] != OPEN), gaps, 0)]
    own = between[order]
    between[np.isin(events["op"], LOOKS)] = 0
    total, breaks = np.cumsum(between), np.cumsum(np.r_[True, ~follows])
    before = order[:-1]
    known = breaks[before] == breaks[order[1:]]
    known &= (events["comm"][before] == events["comm"][order[1:]]) & (
        events["context"][before] + 1 == events["context"][order[1:]]
    )
    work = np.r_[-1, np.where(known, total[order[1:]] - total[before], -1)]
    calls = np.r_[0, events["enter"][order[1:]] - events["exit"][before]] - work
    return own, work, calls
