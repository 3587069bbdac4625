"""What each rank is doing now, and what it did since an earlier look: the rows of `manapy trace top`.

Invariants
 1. Nothing here says that a rank is at fault. So pairs of messages that are only aligned by time (not `sure`,
    match.py) count like others. A wait that is found by them is never longer than its call.
 2. Shares and rates refer to the time for which the rank's records are complete.
 3. A call that completes several requests has one wait: the longest.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..hang import waitfor
from ..hang.waitfor import Graph, Open
from ..host import process_state
from ..model import calls, match, waits
from ..model.events import OPEN, PROC_NULL, Flag, Rank, Trace
from ..model.match import IS_COLLECTIVE, IS_SEND, Matching, first_of_call
from ..model.stages import Labels

SECOND = 1e9


class State(enum.Enum):
    """A rank's present activity, the most conspicuous first."""

    DEAD = "dead"  # without having finalized
    STOPPED = "stopped"
    AWAITED = "awaited"  # outside MPI, and others wait for it
    UNRECORDED = "no trace"
    PAUSED = "paused"  # its recording is paused (MPI_Pcontrol), so its activity is unknown
    TRANSFER = "transfer"  # in a call that has all it needs, or whose needs are not recorded
    WAITING = "waiting"  # in a call, for other ranks
    COMPUTING = "computing"  # outside MPI
    FINISHED = "finished"


_ORDER = {state: place for place, state in enumerate(State)}


@dataclass(frozen=True)
class Rdma:
    """The activity of a rank's queue pairs.

    pairs: number of queue pairs.
    in_flight: work requests that were posted and have not completed.
    posted_s: bytes of work requests posted per second.
    """

    pairs: int
    in_flight: int
    posted_s: float


@dataclass(frozen=True)
class Row:
    """One rank.

    since_ns: for how long it has been in this state at least, ns; None: not known.
    call: the open call, or the last one.
    waits_for: ranks; empty: none, or any of several.
    awaited_by: number of ranks that wait for it.
    iteration: None if no schedule is known.
    calls_s, sent_s: calls and bytes per second; None: nothing is known of that time.
    waited: share of the time that was spent waiting for others in MPI, 0 to 1; None: nothing is known of that time.
    rdma: None if no queue pairs are recorded.
    observed_s: the time to which rates and shares refer, in seconds; 0: nothing is known of it.
    mostly_for: the rank for which it waited longest in that time; None: it did not wait, or not for one rank.
    caused_s: how long other ranks have waited for this one since the earlier look, in seconds, added up.
    """

    rank: int
    host: str
    state: State
    since_ns: int | None = None
    call: str = ""
    waits_for: tuple[int, ...] = ()
    awaited_by: int = 0
    iteration: int | None = None
    calls_s: float | None = None
    waited: float | None = None
    sent_s: float | None = None
    rdma: Rdma | None = None
    observed_s: float = 0.0
    mostly_for: int | None = None
    caused_s: float = 0.0

    @property
    def conspicuous(self) -> tuple[object, ...]:
        """Sort key: the most conspicuous come first."""
        return _ORDER[self.state], -self.awaited_by, -(self.since_ns or 0), self.rank


@dataclass(frozen=True)
class Host:
    """The ranks of one host. states: number of ranks in each; waited: mean share; sent_s: sum, bytes per second."""

    host: str
    ranks: int
    states: dict[State, int]
    waited: float | None
    sent_s: float

    @property
    def conspicuous(self) -> tuple[int, int]:
        """Sort key: the most conspicuous come first."""
        worst = next(iter(self.states))
        return _ORDER[worst], -self.states[worst]


SORTS = {
    "rank": lambda row: row.rank,
    "wait": lambda row: (-(row.waited or 0.0), row.rank),
    "state": lambda row: row.conspicuous,
}


def rows(before: Trace | None, now: Trace, labels: Labels | None = None) -> list[Row]:
    """Return the rows of all ranks, in order. before: an earlier look at the same job; None: the time since the first
    record counts. labels: of `now`."""
    matching = match.match(now)
    halted = frozenset(rank for rank, known in now.ranks.items() if _halted(known))
    graph = waitfor.build(now, matching, halted)
    awaited = _awaited(graph, now.size, halted)
    begins = _begins(before, now)
    rdma = _rdma(before, now, begins)
    made, sent = _calls(before, now, begins), _sent(now, matching, begins)
    waited, mostly_for, caused = _waited(now, matching, graph, begins)
    found = []
    for rank in range(now.size):
        known = now.ranks.get(rank)
        if known is None:
            row = Row(rank, "", State.UNRECORDED, awaited_by=int(awaited[rank]), caused_s=float(caused[rank]) / SECOND)
            found.append(row)
            continue
        seconds = (now.now - int(begins[rank])) / SECOND
        rates: tuple[float | None, float | None, float | None] = (
            (float(made[rank]), min(float(waited[rank]) / SECOND / seconds, 1.0), float(sent[rank]) / seconds)
            if seconds > 0
            else (None, None, None)
        )
        iteration = labels.now(rank).iteration if labels is not None else None
        found.append(
            Row(
                rank,
                known.host,
                *_doing(now, matching, graph, known, int(awaited[rank])),
                int(awaited[rank]),
                iteration,
                *rates,
                rdma.get(rank),
                max(seconds, 0.0),
                int(mostly_for[rank]) if mostly_for[rank] >= 0 else None,
                float(caused[rank]) / SECOND,
            )
        )
    return found


def hosts(of: Sequence[Row]) -> list[Host]:
    """Return sums for each host, in the order of their first ranks."""
    groups: dict[str, list[Row]] = {}
    for row in of:
        groups.setdefault(row.host, []).append(row)
    return [summary(name, group) for name, group in groups.items()]


def summary(name: str, group: Sequence[Row]) -> Host:
    """Return sums over some ranks."""
    states = Counter(row.state for row in group)
    shares = [row.waited for row in group if row.waited is not None]
    ordered = {state: states[state] for state in State if states[state]}
    return Host(
        name,
        len(group),
        ordered,
        sum(shares) / len(shares) if shares else None,
        sum(row.sent_s or 0.0 for row in group),
    )


def over(trace: Trace) -> bool:
    """Return whether all ranks that can be seen from here have ended."""
    return all(known.ended or known.process == process_state.DEAD for known in trace.ranks.values())


# ---- what a rank is doing ----


def _halted(known: Rank) -> bool:
    return not known.ended and known.process in (process_state.DEAD, *process_state.STOPPED, process_state.ZOMBIE)


def _doing(
    trace: Trace, matching: Matching, graph: Graph, known: Rank, awaited: int
) -> tuple[State, int | None, str, tuple[int, ...]]:
    """Return state, for how long, call, and the ranks that it waits for."""
    at, opened = graph.last.get(known.rank), graph.opened.get(known.rank)
    since = (
        int(trace.events["enter"][at] if trace.events["exit"][at] == OPEN else trace.events["exit"][at])
        if at is not None
        else None
    )
    call = calls.describe(trace, matching, at) if at is not None else ""
    waits_for: tuple[int, ...] = ()
    if known.ended:
        state = State.FINISHED
    elif _halted(known):
        state = State.STOPPED if known.process in process_state.STOPPED else State.DEAD
    elif opened is None and known.paused:
        state, since = State.PAUSED, known.pauses[-1][0]
    elif opened is None:
        state = State.AWAITED if awaited else State.COMPUTING
        since = max(since or 0, known.pauses[-1][1]) if known.pauses else since
    else:
        since, call = opened.since, waitfor.described(trace, matching, opened, opened.call)
        if any(want.ranks or want.unproven for want in opened.wants):
            state = State.WAITING
            waits_for = tuple(
                sorted({rank for want in opened.wants if not want.any for rank in (*want.ranks, *want.unproven)})
            )
        else:
            state = State.TRANSFER
    return state, max(trace.now - since, 0) if since is not None else None, call, waits_for


def _awaited(graph: Graph, size: int, halted: frozenset[int]) -> np.ndarray:
    """Return the number of ranks that wait for each rank. Calls for which any of several ranks would suffice are not
    counted."""
    found = np.zeros(size, np.int64)
    opened = [
        call for rank, call in graph.opened.items() if rank not in halted and (not call.any or len(call.wants) == 1)
    ]
    waiting = Counter(want.ranks for call in opened for want in call.wants if not want.any or len(want.ranks) == 1)
    for ranks, count in waiting.items():
        found[list(ranks)] += count
    return found


# ---- what it did since the earlier look ----


def _begins(before: Trace | None, now: Trace) -> np.ndarray:
    """Return from when on the records of each rank are complete, ns, but not before the earlier look."""
    start = before.now if before is not None else int(now.events["enter"].min(initial=now.now))
    found = np.full(now.size, start, np.int64)
    for rank, known in now.ranks.items():
        found[rank] = max(start, known.first_ns)
    return found


def _newest(trace: Trace) -> dict[tuple[int, int], int]:
    """Return the seq of the newest record of each thread."""
    events = trace.events
    last = np.flatnonzero(
        np.r_[(events["rank"][1:] != events["rank"][:-1]) | (events["thread"][1:] != events["thread"][:-1]), True][
            : len(events)
        ]
    )
    return {(int(e["rank"]), int(e["thread"])): int(e["seq"]) for e in events[last]}


def _calls(before: Trace | None, now: Trace, begins: np.ndarray) -> np.ndarray:
    """Return the calls per second of each rank. Since an earlier look, records are counted by their seqs, so that
    overwritten records count, too."""
    if before is None:
        ranks = now.events["rank"]
        recent = ranks[now.events["enter"] >= begins[ranks]]
        return np.bincount(recent, minlength=now.size) * SECOND / np.maximum(now.now - begins, 1)
    found, known = np.zeros(now.size), _newest(before)
    for (rank, thread), seq in _newest(now).items():
        found[rank] += max(seq - known.get((rank, thread), 0), 0)
    return found * SECOND / max(now.now - before.now, 1)


def _waited(
    trace: Trace, matching: Matching, graph: Graph, begins: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return how long each rank has waited for others since `begins`, ns, in calls that have returned and in the open
    call; the rank for which it waited longest, or -1; and how long others have waited for it. The wait in an open call
    has a culprit only if it is for one rank."""
    events = trace.events
    every = waits.classify(trace, replace(matching, sure=np.ones(len(events), bool)))  # invariant 1
    begin = begins[events["rank"]]
    waited = np.maximum(np.minimum(events["enter"] + every.wait, trace.now) - np.maximum(events["enter"], begin), 0)
    calls = waits.first_largest(waited, np.flatnonzero(first_of_call(events)))  # invariant 3
    waiting = [call for call in graph.opened.values() if any(want.ranks or want.unproven for want in call.wants)]
    since = [max(trace.now - max(call.since, int(begins[call.rank])), 0) for call in waiting]
    rank = np.r_[events["rank"][calls], np.array([call.rank for call in waiting], np.int64)]
    who = np.r_[every.who[calls], np.array([_culprit(call) for call in waiting], np.int64)]
    length = np.r_[waited[calls], np.array(since, np.int64)]
    blamed = who >= 0
    return (
        np.bincount(rank, length, minlength=trace.size),
        waits.culprits(rank, np.where(length > 0, who, -1), length, trace.size),
        np.bincount(who[blamed], length[blamed], minlength=trace.size),
    )


def _culprit(call: Open) -> int:
    """Return the only rank that an open call waits for, or -1."""
    wants = [want for want in call.wants if want.ranks or want.unproven]
    if any(len(want.ranks) + len(want.unproven) > 1 for want in wants):
        return -1
    ranks = {rank for want in wants for rank in (*want.ranks, *want.unproven)}
    return ranks.pop() if len(ranks) == 1 else -1


def _sent(trace: Trace, matching: Matching, begins: np.ndarray) -> np.ndarray:
    """Return how many bytes each rank has given to sends and collectives since `begins`."""
    events = trace.events
    gives = (
        (IS_SEND[matching.op] | IS_COLLECTIVE[matching.op])
        & (events["flags"] & (Flag.PERSISTENT | Flag.FAILED) == 0)
        & (matching.peer != PROC_NULL)
    )
    gives &= events["enter"] >= begins[events["rank"]]
    return np.bincount(events["rank"][gives], events["bytes"][gives].astype(float), minlength=trace.size)


def _rdma(before: Trace | None, now: Trace, begins: np.ndarray) -> dict[int, Rdma]:
    """Return the activity of ranks with queue pairs. A queue pair that the earlier look did not see counts from its
    first record."""
    events = now.rdma[now.rdma["rank"] < now.size]
    first = {(int(e["rank"]), int(e["comm"])): int(e["bytes"]) for e in events[_ends(events)[0]]}
    if before is not None:
        first |= {(int(e["rank"]), int(e["comm"])): int(e["bytes"]) for e in before.rdma[_ends(before.rdma)[1]]}
    found: dict[int, Rdma] = {}
    for event in events[_ends(events)[1]]:
        rank = int(event["rank"])
        so_far = found.get(rank, Rdma(0, 0, 0.0))
        in_flight = max(int(event["request"]) - int(event["context"]), 0)
        posted, seconds = (
            max(int(event["bytes"]) - first[rank, int(event["comm"])], 0),
            (now.now - int(begins[rank])) / SECOND,
        )
        found[rank] = Rdma(
            so_far.pairs + 1, so_far.in_flight + in_flight, so_far.posted_s + (posted / seconds if seconds > 0 else 0.0)
        )
    return found


def _ends(events: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the oldest and of the newest record of each queue pair."""
    order = np.lexsort((events["enter"], events["comm"], events["rank"]))
    if not len(order):
        return order, order
    rank, pair = events["rank"][order], events["comm"][order]
    changes = (rank[1:] != rank[:-1]) | (pair[1:] != pair[:-1])
    return order[np.r_[True, changes]], order[np.r_[changes, True]]
