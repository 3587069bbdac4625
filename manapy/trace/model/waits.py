"""Wait states: which part of a call was spent waiting for another rank to make its own call, and for which rank.

The definitions are Scalasca's (Geimer et al., "The Scalasca performance toolset architecture", 2010). Each wait is
clipped to the call:

    late sender      a receive was entered before its send
    late receiver    a send that blocked was entered before its receive
    wait at NxN      a collective in which everybody needs everybody: from the own arrival to the last one
    late root        of a broadcast or scatter: from the own arrival to the root's. Of a reduce or gather: the same, for
                     ranks that were still in the call when the root came
    early root       of a reduce or gather: the root's, from its arrival to the last one

The call of a nonblocking operation is the one that completes it. The rest of a call, after the last arrival, is
transfer.

Invariants
 1. A wait is claimed only if all arrivals that it depends on are known: all members of a collective, a `sure` pair.
 2. A wait that is not longer than the uncertainty of the two clocks does not count as a wait; it counts in
    `uncertain`. Ranks of one host share a clock.
 3. A call that a checkpoint interrupted (STOPPED), or that failed, is not used.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from .events import OPEN, Flag, Op, Trace
from .match import IS_COLLECTIVE, IS_RECEIVE, IS_SEND, Matching, first_of_call


class Wait(enum.IntEnum):
    """The kind of a wait."""

    NONE = 0
    LATE_SENDER = 1
    LATE_RECEIVER = 2
    WAIT_AT_NXN = 3
    LATE_ROOT = 4
    EARLY_ROOT = 5


@dataclass(frozen=True)
class Waits:
    """Wait states. Arrays with one entry per event:

    wait: ns, 0 for none.
    who: the rank waited for, or -1.
    kind: a Wait.
    transfer: ns after the last arrival, 0 where arrivals aren't known.

    uncertain: how many waits were left out because clocks are too uncertain.
    """

    wait: np.ndarray
    who: np.ndarray
    kind: np.ndarray
    transfer: np.ndarray
    uncertain: int


@dataclass(frozen=True)
class Row:
    """Sums over the calls of one kind of one rank; times in ns. waits: time by kind of wait state. culprit: the rank
    waited for longest, or -1."""

    rank: int
    op: Op
    calls: int
    time: int
    wait: int
    transfer: int
    waits: dict[Wait, int]
    culprit: int


_TO_ROOT = (Op.REDUCE, Op.GATHER)
_FROM_ROOT = (Op.BCAST, Op.SCATTER)
_PARTIAL = (Op.SCAN, Op.EXSCAN, Op.NEIGHBOR, Op.COMM_CREATE)  # needs fewer than all ranks, or the ranks are unknown


def classify(trace: Trace, matching: Matching) -> Waits:
    """Return the wait states of all calls that have returned."""
    events = trace.events
    count = len(events)
    wait, transfer = np.zeros(count, np.int64), np.zeros(count, np.int64)
    who, kind = np.full(count, -1, np.int32), np.zeros(count, np.uint8)
    usable = (events["exit"] != OPEN) & (events["flags"] & (Flag.STOPPED | Flag.FAILED) == 0)
    uncertain = 0

    for calls, arrival, of in (_receives(events, matching), _sends(events, matching), *_collectives(events, matching)):
        call, other = calls
        ok = usable[call]
        call, other, arrival = call[ok], other[ok], arrival[ok]
        enter, end = events["enter"][call], events["exit"][call]
        waited = np.clip(arrival - enter, 0, end - enter)
        doubt = (waited > 0) & (waited <= _uncertainty(trace, events["rank"][call], events["rank"][other]))
        uncertain += int(doubt.sum())
        waited[doubt] = 0
        longest = waited >= wait[call]  # a Waitall has one record for each request; a call waits once
        call, other, waited, end, enter = call[longest], other[longest], waited[longest], end[longest], enter[longest]
        wait[call] = waited
        transfer[call] = end - enter - waited
        waits = waited > 0
        who[call[waits]] = events["rank"][other[waits]]
        kind[call[waits]] = of
    return Waits(wait, who, kind, transfer, uncertain)


def _receives(events: np.ndarray, matching: Matching) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray, Wait]:
    posts = np.flatnonzero(IS_RECEIVE[matching.op] & (matching.partner >= 0) & matching.sure & (matching.done >= 0))
    sends = matching.partner[posts]
    return (matching.done[posts], sends), events["enter"][sends], Wait.LATE_SENDER


def _sends(events: np.ndarray, matching: Matching) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray, Wait]:
    """Return only sends that still blocked when the receive was posted. The others had already delivered their
    message."""
    posts = np.flatnonzero(IS_SEND[matching.op] & (matching.partner >= 0) & matching.sure & (matching.done >= 0))
    receives = matching.partner[posts]
    blocked = events["exit"][matching.done[posts]] >= events["enter"][receives]
    posts, receives = posts[blocked], receives[blocked]
    return (matching.done[posts], receives), events["enter"][receives], Wait.LATE_RECEIVER


def _collectives(
    events: np.ndarray, matching: Matching
) -> list[tuple[tuple[np.ndarray, np.ndarray], np.ndarray, Wait]]:
    groups = matching.collectives
    # a call that makes a persistent collective need not wait for anybody
    mine = np.flatnonzero((groups.of >= 0) & (matching.done >= 0) & (events["flags"] & Flag.PERSISTENT == 0))
    if not len(mine):
        return []
    of = groups.of[mine]
    complete = groups.missing[of] == 0  # invariant 1
    mine, of = mine[complete], of[complete]
    op, root = matching.op[mine], matching.peer[mine]
    is_root = events["rank"][mine] == root
    to_root, from_root, partial = np.isin(op, _TO_ROOT), np.isin(op, _FROM_ROOT), np.isin(op, _PARTIAL)
    last = groups.last[of]
    found = []
    for which, kind in (
        (~to_root & ~from_root & ~partial & IS_COLLECTIVE[op], Wait.WAIT_AT_NXN),
        (to_root & is_root, Wait.EARLY_ROOT),
    ):
        found.append(((matching.done[mine[which]], last[which]), events["enter"][last[which]], kind))
    roots = np.full(len(groups.first), -1)
    roots[of[is_root]] = mine[is_root]
    late = from_root & ~is_root & (roots[of] >= 0)
    at = roots[of[late]]
    found.append(((matching.done[mine[late]], at), events["enter"][at], Wait.LATE_ROOT))
    behind = (
        to_root & ~is_root & (roots[of] >= 0)
    )  # Sending to the root may have to wait for the root. Only ranks that were still in the call when it came waited.
    behind[behind] = events["exit"][matching.done[mine[behind]]] >= events["enter"][roots[of[behind]]]
    at = roots[of[behind]]
    found.append(((matching.done[mine[behind]], at), events["enter"][at], Wait.LATE_ROOT))
    return found


def _uncertainty(trace: Trace, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the uncertainty of the difference of two ranks' clocks, ns."""
    size = max(trace.size, 1 + max((int(ranks.max(initial=0)) for ranks in (one, other)), default=0))
    own, host = np.zeros(size, np.int64), np.arange(size)
    hosts: dict[str, int] = {}
    for rank, known in trace.ranks.items():
        own[rank] = min(known.uncertainty_ns, 1 << 61)
        if known.host:
            host[rank] = size + hosts.setdefault(known.host, len(hosts))
    return np.where(host[one] == host[other], 0, own[one] + own[other])


def one_per_call(trace: Trace, waits: Waits) -> np.ndarray:
    """Return one record for each call (Waitall and Sendrecv have several): the one with the call's longest wait,
    because a call waits once. Indices, ascending."""
    return first_largest(waits.wait, np.flatnonzero(first_of_call(trace.events)))


def first_largest(values: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """Return the index of the first largest value in each run of values. begins: where the runs begin."""
    if not len(begins):
        return begins
    lengths = np.diff(np.r_[begins, len(values)])
    found = np.flatnonzero(values == np.repeat(np.maximum.reduceat(values, begins), lengths))
    run = np.searchsorted(begins, found, side="right")
    return found[np.r_[True, run[1:] != run[:-1]]]


def table(trace: Trace, waits: Waits) -> list[Row]:
    """Return sums per rank and kind of call, sorted by rank, then the longest wait first."""
    events = trace.events
    calls = one_per_call(trace, waits)
    closed = calls[(events["exit"][calls] != OPEN) & (events["op"][calls] < Op.MARK)]
    key = events["rank"][closed].astype(np.int64) * 128 + events["op"][closed]
    keys, of = np.unique(key, return_inverse=True)
    of = of.reshape(-1)

    def sums(values: np.ndarray) -> np.ndarray:
        return np.bincount(of, values.astype(np.float64), minlength=len(keys)).astype(np.int64)

    calls = np.bincount(of, minlength=len(keys))
    time, wait, transfer = (
        sums(events["exit"][closed] - events["enter"][closed]),
        sums(waits.wait[closed]),
        sums(waits.transfer[closed]),
    )
    kinds = {kind: sums(waits.wait[closed] * (waits.kind[closed] == kind)) for kind in Wait if kind}
    mostly = culprits(of, waits.who[closed], waits.wait[closed], len(keys))
    rows = [
        Row(
            int(k) // 128,
            Op(int(k) % 128),
            int(calls[i]),
            int(time[i]),
            int(wait[i]),
            int(transfer[i]),
            {w: int(s[i]) for w, s in kinds.items() if s[i]},
            int(mostly[i]),
        )
        for i, k in enumerate(keys)
        if int(k) % 128 in Op.__members__.values()
    ]
    return sorted(rows, key=lambda row: (row.rank, -row.wait, row.op))


def culprits(of: np.ndarray, who: np.ndarray, wait: np.ndarray, count: int) -> np.ndarray:
    """Return for each group of calls the rank that it waited for longest."""
    found = np.full(count, -1)
    waited = who >= 0
    if waited.any():
        width = int(who.max()) + 1
        pairs, at = np.unique(of[waited] * width + who[waited], return_inverse=True)
        sums = np.bincount(at.reshape(-1), wait[waited].astype(np.float64))
        by = np.argsort(sums, kind="stable")
        found[pairs[by] // width] = pairs[by] % width  # the longest comes last and overwrites the others
    return found


def blame(trace: Trace, waits: Waits) -> np.ndarray:
    """Return how long each rank (row) has waited for each other rank (column): int64[size, size], ns. Not meant for
    thousands of ranks."""
    calls = one_per_call(trace, waits)
    waited = calls[waits.who[calls] >= 0]
    found = np.zeros((trace.size, trace.size), np.int64)
    np.add.at(found, (trace.events["rank"][waited], waits.who[waited]), waits.wait[waited])
    return found
