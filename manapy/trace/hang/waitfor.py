"""The graph of waits, from the open calls: an AND/OR graph, its knots (deadlocks), and the ranks that could go on but
do not.

A collective, a Waitall and a blocking call wait for ALL of what they need. A Waitany and a receive from any source wait
for ANY of it. A collective that needs only SOME of the others counts as one that any of them could end, because a
deadlock must be certain. But each of these ranks that does not come is late. A rank that is not in a call, or whose
call has all it needs, waits for no rank: it is free. A rank that free ranks can satisfy is not deadlocked. Of the other
ranks, the strongly connected sets without a way out are the knots (Holt 1972, Misra and Chandy 1982); the rest waits
for a knot.

Invariants
 1. A rank is waited for only if the trace proves that its call is missing. If its records of that time are lost, or its
    recording was paused, it is `unproven` instead.
 2. One thread represents a rank: the one for which others have waited longest, because it made such calls before (the
    same communicator; for a message the same peer, and the same tag if there was such a call). The rank's other threads
    do not matter then. If no rank waits for it, or the thread of the call is unknown, the rank needs any of the calls
    of its threads, and nothing if one thread is outside MPI.
 3. Nodes 0 to size - 1 are the ranks. A want for many ranks that many calls share has its own node, to keep the number
    of edges small.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from ..model import windows
from ..model.calls import describe, name, window
from ..model.events import ANY, OPEN, PROC_NULL, Flag, Op, Rank, Trace
from ..model.match import IS_COLLECTIVE, IS_COMPLETION, IS_RECEIVE, IS_SEND, Matching
from . import knots

# Collectives in which a rank may need only some of the members; and those in which only the root needs all.
_SOME = (Op.BCAST, Op.SCATTER, Op.SCAN, Op.EXSCAN, Op.NEIGHBOR)
_TO_ROOT = (Op.REDUCE, Op.GATHER)

POLLED_RECENTLY = 1_000_000_000  # ns; a rank whose last test is no older than this still polls


@dataclass(frozen=True)
class WaitCondition:
    """One thing that an open call needs.

    event: index of the event that is waited for: the call itself, or the post that it completes.
    ranks: the ranks whose call is missing. Empty: none is missing; only the transfer has not ended.
    any: one of these ranks suffices.
    some: at least one of these ranks is needed, perhaps all. It isn't known which ones.
    unproven: ranks that may have made the call without a record of it.
    known: it is known what the call needs.
    call: the name of the missing call, if it isn't the other side of the event.
    """

    event: int
    ranks: tuple[int, ...] = ()
    any: bool = False
    some: bool = False
    unproven: tuple[int, ...] = ()
    known: bool = True
    call: str = ""


@dataclass(frozen=True)
class Open:
    """An open call of a rank, or its polling.

    call: index of its (last) record.
    since: when it was entered, ns.
    any: one of the wants suffices.
    free: another thread of the rank is outside MPI, and may make the call that others wait for.
    """

    rank: int
    call: int
    since: int
    wants: tuple[WaitCondition, ...]
    any: bool = False
    polling: bool = False
    free: bool = False

    def awaited(self) -> Iterable[tuple[int, WaitCondition]]:
        """Yield the ranks for which it waits, and the wants."""
        for want in self.wants:
            for rank in want.ranks:
                yield rank, want


def described(trace: Trace, matching: Matching, call: Open, event: int) -> str:
    """Describe the operation of a rank in a sentence: the call of this event; or, for a rank that polls, the
    polling."""
    if not call.polling:
        return describe(trace, matching, event)
    post = next((want.event for want in call.wants if want.known), None)
    if post is not None:
        return f"MPI_Test for its {describe(trace, matching, post)}, again and again"
    return f"MPI_Test or MPI_Iprobe, again and again since its {describe(trace, matching, call.call)} has returned"


def inside(trace: Trace, matching: Matching, call: Open, event: int) -> str:
    """Describe the call in which a rank waits: `in MPI_Recv from rank 1, tag 7`, or `for its MPI_Irecv from rank 1, tag
    7` if it was posted before."""
    posted = event != call.call and trace.events["flags"][event] & Flag.NONBLOCKING
    return f"{'for its' if posted and not call.polling else 'in'} {described(trace, matching, call, event)}"


@dataclass
class Graph:
    """The graph of waits.

    opened: for each rank in a call, the call of the thread that represents it.
    calls: the open calls of all threads.
    last: index of the newest record of each rank's representing thread.
    threads: the representing thread of each rank that has several.
    free: ranks that wait for no rank.
    knots: the ranks of each knot.
    deadlocked: ranks in a knot, and ranks that wait for one.
    """

    opened: dict[int, Open]
    last: dict[int, int]
    calls: list[Open] = field(default_factory=list)
    threads: dict[int, int] = field(default_factory=dict)
    free: set[int] = field(default_factory=set)
    knots: list[tuple[int, ...]] = field(default_factory=list)
    deadlocked: set[int] = field(default_factory=set)


def build(trace: Trace, matching: Matching, halted: frozenset[int] = frozenset()) -> Graph:
    """Build the graph. halted: ranks whose process is known to be dead or stopped. They wait for no rank, whatever call
    they are in."""
    graph = Graph({}, _last(trace, matching))
    ends = {rank: _ends(trace, matching, rank) for rank in range(trace.size)}
    inside = {rank for rank, newest in ends.items() if any(trace.events["exit"][end] == OPEN for end in newest)}
    absent = _Absent(trace, matching, graph.last, inside)
    calls = {
        rank: [call for end in ends[rank] if (call := _called(trace, matching, rank, end, absent)) is not None]
        for rank in range(trace.size)
    }
    for rank, newest in ends.items():
        if len(newest) > 1 and (answering := _answering(trace, matching, rank, calls)) is not None:
            graph.threads[rank] = answering
            graph.last[rank] = next(end for end in newest if trace.events["thread"][end] == answering)
        found = _representing(trace, matching, rank, calls[rank], graph, absent)
        if found is not None:
            graph.opened[rank] = found
        graph.calls += [*calls[rank], *([found] if found is not None and found.polling else [])]
    _resolve(graph, trace.size, halted)
    return graph


def _answering(trace: Trace, matching: Matching, rank: int, calls: dict[int, list[Open]]) -> int | None:
    """Return the thread of a rank that would make the call for which another rank has waited longest. It is the thread
    that made the newest such call. If none has, it is the thread outside MPI that was in MPI last. If a thread is in
    MPI_Finalize, it is that thread, because no other may make another call. None: no rank waits for it, or all its
    threads are in calls."""
    events = trace.events
    if (last := next((end for end in _ends(trace, matching, rank) if _finalizes(events, end)), None)) is not None:
        return int(events["thread"][last])
    wanted = sorted(
        (
            (call.since, want)
            for other, opens in calls.items()
            if other != rank
            for call in opens
            for want in call.wants
            if rank in want.ranks
        ),
        key=lambda one: one[0],
    )
    lo, hi = matching.of_rank(rank)
    for _, want in wanted:
        post = int(matching.post[want.event]) if matching.post[want.event] >= 0 else want.event
        alike = matching.comm[lo:hi] == matching.comm[post]
        if IS_COLLECTIVE[matching.op[post]]:
            alike &= IS_COLLECTIVE[matching.op[lo:hi]]
        elif IS_SEND[matching.op[post]] or IS_RECEIVE[matching.op[post]]:
            other_side = IS_RECEIVE if IS_SEND[matching.op[post]] else IS_SEND
            alike &= other_side[matching.op[lo:hi]] & (matching.peer[lo:hi] == events["rank"][post])
        if (same_tag := alike & (matching.tag[lo:hi] == matching.tag[post])).any():
            alike = same_tag  # threads often share the work by tags
        if len(found := lo + np.flatnonzero(alike)):
            return int(events["thread"][found[np.argmax(events["enter"][found])]])
    known = trace.ranks.get(rank)
    outside = [
        end
        for end in _ends(trace, matching, rank)
        if events["exit"][end] != OPEN and known is not None and int(events["thread"][end]) in known.threads
    ]
    newest = _newest(events, outside)
    return int(events["thread"][newest]) if wanted and newest is not None else None


def _newest(events: np.ndarray, ends: list[int]) -> int | None:
    """Of these calls, the one that has ended last."""
    if not ends:
        return None
    exits = events["exit"][ends].tolist()
    return ends[exits.index(max(exits))]


def _finalizes(events: np.ndarray, end: int) -> bool:
    """Return whether this record is an open MPI_Finalize."""
    return bool(events["op"][end] == Op.FINALIZE and events["exit"][end] == OPEN)


def _representing(
    trace: Trace, matching: Matching, rank: int, calls: list[Open], graph: Graph, absent: _Absent
) -> Open | None:
    """Return the open call of a rank, or its polling (invariant 2)."""
    events, known = trace.events, trace.ranks.get(rank)
    if rank in graph.threads:
        mine = [call for call in calls if events["thread"][call.call] == graph.threads[rank]]
        return (
            mine[0]
            if mine
            else _polling(trace, matching, rank, known, absent, graph.last[rank])
            if known is not None
            else None
        )
    if not calls:
        return _polling(trace, matching, rank, known, absent) if known is not None else None
    idle = known is not None and bool(set(known.threads) - {int(events["thread"][call.call]) for call in calls})
    if len(calls) == 1:
        return replace(calls[0], free=idle)
    newest = max(calls, key=lambda one: one.since)
    return Open(
        rank, newest.call, newest.since, tuple(want for call in calls for want in call.wants), any=True, free=idle
    )


def _last(trace: Trace, matching: Matching) -> dict[int, int]:
    """Return each rank's newest record by time."""
    events = trace.events
    found: dict[int, int] = {}
    for rank in range(trace.size):
        lo, hi = matching.of_rank(rank)
        if hi > lo:
            one_thread = events["thread"][lo] == events["thread"][hi - 1]
            found[rank] = hi - 1 if one_thread else lo + int(np.argmax(events["enter"][lo:hi]))
    return found


# ---- open calls and what they need ----


def _ends(trace: Trace, matching: Matching, rank: int) -> list[int]:
    """Return the newest record of each thread of a rank."""
    events = trace.events
    lo, hi = matching.of_rank(rank)
    if lo == hi:
        return []
    if events["thread"][lo] == events["thread"][hi - 1]:
        return [hi - 1]
    thread = events["thread"][lo:hi]
    return [*(lo + np.flatnonzero(thread[1:] != thread[:-1])).tolist(), hi - 1]


def _called(trace: Trace, matching: Matching, rank: int, end: int, absent: _Absent) -> Open | None:
    """Return the open call of a thread. end: its newest record."""
    events = trace.events
    at, records = end, []
    while events["exit"][at] == OPEN and events["op"][at] < Op.MARK:
        records.append(at)
        if (
            at == 0
            or not events["flags"][at - 1] & Flag.MORE
            or events["rank"][at - 1] != rank
            or events["thread"][at - 1] != events["thread"][at]
        ):
            break
        at -= 1
    if not records:
        return None
    wants = tuple(_want(trace, matching, event, absent) for event in records if not _satisfied(matching, events, event))
    if events["op"][end] == Op.WAITANY and events["flags"][end] & Flag.CUT:
        wants += (WaitCondition(end, known=False),)  # one of the requests that were not recorded may end it
    return Open(rank, end, int(events["enter"][end]), wants, bool(events["op"][end] == Op.WAITANY))


def _satisfied(matching: Matching, events: np.ndarray, event: int) -> bool:
    """Return whether another call has already completed the request of this record of an open Waitall."""
    post = int(matching.post[event])
    return post >= 0 and int(matching.done[post]) >= 0


def _polling(
    trace: Trace, matching: Matching, rank: int, known: Rank, absent: _Absent, newest: int | None = None
) -> Open | None:
    """Return the polling of a rank that isn't in a call but calls Test or Iprobe repeatedly, or None. newest: the last
    call of the thread in question."""
    events = trace.events
    if newest is None:
        newest = _newest(events, _ends(trace, matching, rank))
    if newest is None or known.paused or not _polls(trace, known, newest):
        return None
    since = int(events["exit"][newest])
    lo, hi = matching.of_rank(rank)
    posts = (
        lo + np.flatnonzero((events["request"][lo:hi] == known.polled_request) & (matching.post[lo:hi] < 0))
        if known.polled_request
        else np.zeros(0, int)
    )
    if not len(posts) or matching.done[posts[-1]] >= 0:
        everybody, unproven = absent.split((r for r in range(trace.size) if r != rank), known.polled_ns)
        return Open(
            rank,
            newest,
            since,
            (WaitCondition(newest, () if unproven else everybody, any=True, unproven=unproven, known=False),),
            polling=True,
        )
    return Open(rank, newest, since, (_want(trace, matching, int(posts[-1]), absent),), polling=True)


def _polls(trace: Trace, known: Rank, newest: int) -> bool:
    """Return whether a rank has tested something since its newest call has returned, and a short time ago."""
    return (
        known.polled_ns != OPEN
        and trace.now - known.polled_ns <= POLLED_RECENTLY
        and known.polled_ns >= trace.events["exit"][newest]
    )


def _want(trace: Trace, matching: Matching, event: int, absent: _Absent) -> WaitCondition:
    """Return the want of an open record."""
    events = trace.events
    own_op = int(events["op"][event])
    post = int(matching.post[event])
    if IS_COMPLETION[own_op]:
        return _want(trace, matching, post, absent) if post >= 0 else WaitCondition(event, known=False)
    op, peer = int(matching.op[event]), int(matching.peer[event])
    rank = int(events["rank"][event])
    if IS_COLLECTIVE[op] and matching.collectives.of[event] >= 0:
        return absent.of_collective(event)
    if op == Op.FINALIZE:
        return absent.of_finalize(event)
    if op == Op.INIT:
        return absent.of_init(event)
    if peer == PROC_NULL:
        return WaitCondition(event)
    if IS_SEND[op] or IS_RECEIVE[op] or op in (Op.PROBE, Op.MPROBE):
        if matching.partner[event] >= 0 or (not IS_SEND[op] and absent.on_its_way(event)):
            return WaitCondition(event)
        if peer == ANY:
            comm = int(matching.comm[event])
            members = trace.comms[comm].members if 0 <= comm < len(trace.comms) else np.zeros(0, np.int32)
            everybody = members.tolist() if len(members) else range(trace.size)
            others, unproven = absent.split((r for r in everybody if r != rank), int(events["enter"][event]))
            return WaitCondition(event, () if unproven else others, any=True, unproven=unproven)
        if peer < 0:
            return WaitCondition(event, known=False)
        proven = absent.proven(peer, int(events["enter"][event]))
        return WaitCondition(event, (peer,) if proven else (), unproven=() if proven else (peer,))
    if op in windows.PASSIVE:
        return absent.of_passive(event)
    if op in windows.ANSWERS and peer >= 0:
        return absent.of_epoch(event)
    return WaitCondition(event, known=False)  # the trace does not show what would end the call


class _Absent:
    """Finds the ranks that have not made a call. Each collective is looked at once."""

    def __init__(self, trace: Trace, matching: Matching, last: dict[int, int], inside: set[int]) -> None:
        self._trace, self._matching, self._last, self._inside = trace, matching, last, inside
        self._wants: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        events = trace.events
        finalized = set(np.unique(events["rank"][events["op"] == Op.FINALIZE]).tolist())
        open_ended = (
            IS_SEND[matching.op] & (matching.partner < 0) & (events["flags"] & (Flag.PERSISTENT | Flag.FAILED) == 0)
        )
        self._unmatched = np.flatnonzero(open_ended)  # sends that no rank has received
        self._unfinished = [
            r for r in range(trace.size) if r not in finalized and not (r in trace.ranks and trace.ranks[r].ended)
        ]

    def proven(self, rank: int, since: int) -> bool:
        """Return whether its trace would show a call that it made after `since` (invariant 1). For a rank without a
        trace it would not."""
        known = self._trace.ranks.get(rank)
        return known is not None and known.first_ns <= since

    def split(self, ranks: Iterable[int], since: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return all of these ranks, and those whose trace would not show a call after `since`."""
        these = tuple(ranks)
        return these, tuple(rank for rank in these if rank in self._trace.ranks and not self.proven(rank, since))

    def on_its_way(self, event: int) -> bool:
        """Return whether any rank has sent a message that this receive with a wildcard, or this probe, would match."""
        m, events, sends = self._matching, self._trace.events, self._unmatched
        op, peer, tag = int(m.op[event]), int(m.peer[event]), int(m.tag[event])
        if IS_RECEIVE[op] and peer >= 0 and tag >= 0:
            return False  # such a receive is matched by its channel (match.py)
        fits = (m.peer[sends] == events["rank"][event]) & (m.comm[sends] == m.comm[event])
        if peer >= 0:
            fits &= events["rank"][sends] == peer
        if tag >= 0:
            fits &= m.tag[sends] == tag
        return bool(fits.any())

    def of_finalize(self, event: int, ready: Container[int] = ()) -> WaitCondition:
        """Return the want of an MPI_Finalize: it waits for all ranks that have not called it, but for `ready` ones."""
        rank, since = int(self._trace.events["rank"][event]), int(self._trace.events["enter"][event])
        others, unproven = self.split(
            (r for r in self._unfinished if r in self._trace.ranks and r != rank and r not in ready), since
        )
        return WaitCondition(event, tuple(r for r in others if r not in unproven), unproven=unproven)

    def of_init(self, event: int) -> WaitCondition:
        """Return the want of an MPI_Init: it waits for all ranks that have made no call yet. If there is none, what it
        waits for is not recorded."""
        want = self.of_finalize(event, ready=self._last)
        return replace(want, known=bool(want.ranks or want.unproven))

    def of_passive(self, event: int) -> WaitCondition:
        """Return the want of a lock, an unlock or a flush. A lock waits for the ranks that hold it. Every window call
        waits for a target that is outside MPI (invariant 3 of windows.py)."""
        m, events = self._matching, self._trace.events
        rank, target = int(events["rank"][event]), int(m.peer[event])
        held = windows.holders(self._trace, m, event) if m.op[event] == Op.WIN_LOCK else {}
        held = {holder: since for holder, since in held.items() if holder != rank}
        # a holder without proof may have unlocked it
        if unproven := tuple(holder for holder, since in held.items() if not self.proven(holder, since)):
            return WaitCondition(event, unproven=unproven)
        if held:
            return WaitCondition(
                event, tuple(held), call=f"MPI_Win_unlock of rank {target}" if target >= 0 else "MPI_Win_unlock"
            )
        return self._progress(event)

    def of_epoch(self, event: int) -> WaitCondition:
        """Return the want of post-start-complete-wait. A start and a complete wait for the target's post. A wait waits
        until the origin's complete has returned (invariant 4 of windows.py)."""
        m, events = self._matching, self._trace.events
        op, rank, peer, number = (
            Op(m.op[event]),
            int(events["rank"][event]),
            int(m.peer[event]),
            events["context"][event],
        )
        answer = windows.newest(self._trace, m, windows.ANSWERS[op], peer, event)
        if answer < 0 or events["context"][answer] < number:
            call = f"{name(windows.ANSWERS[op])} for rank {rank} on {window(self._trace, int(m.comm[event]))}"
            if op == Op.WIN_WAIT:
                start = windows.newest(self._trace, m, Op.WIN_START, peer, event)
                if start < 0 or events["context"][start] < number:
                    call = f"MPI_Win_start and {call}"
            proven = self.proven(peer, int(events["enter"][answer]) if answer >= 0 else 0)
            return WaitCondition(event, (peer,) if proven else (), unproven=() if proven else (peer,), call=call)
        if op == Op.WIN_WAIT and events["exit"][answer] == OPEN:
            return WaitCondition(event, (peer,), call=f"the end of its {describe(self._trace, m, answer)}")
        return self._progress(event) if op == Op.WIN_COMPLETE else WaitCondition(event, known=False)

    def _progress(self, event: int) -> WaitCondition:
        """Return the want of a call that waits for no rank's call, but whose target may have to be inside MPI."""
        m, events = self._matching, self._trace.events
        target = int(m.peer[event])
        at, known = self._last.get(target), self._trace.ranks.get(target)
        if (
            target == events["rank"][event]
            or at is None
            or known is None
            or target in self._inside
            or _polls(self._trace, known, at)
        ):
            return WaitCondition(event, known=False)
        if known.paused:
            return WaitCondition(event, unproven=(target,))
        return WaitCondition(
            event, (target,), call=f"any MPI function, in which {describe(self._trace, m, event)} could go on"
        )

    def of_collective(self, event: int) -> WaitCondition:
        """Return the want of a collective: it waits for the members that have not entered it. In a neighbourhood
        collective or a scan, or as no root of a gather, it needs only some of them."""
        instance = int(self._matching.collectives.of[event])
        if not len(self._trace.comms[int(self._matching.comm[event])].members):
            return WaitCondition(event, known=False)
        if instance not in self._wants:
            self._wants[instance] = self._look(instance)
        missing, unproven = self._wants[instance]
        op, root = int(self._matching.op[event]), int(self._matching.peer[event])
        # others may be missing as well, but only the root is needed
        if op in (Op.BCAST, Op.SCATTER) and root in missing:
            missing = (root,)
        some = op in _SOME or (op in _TO_ROOT and root != self._trace.events["rank"][event])
        some |= self._trace.comms[int(self._matching.comm[event])].remote > 0
        return WaitCondition(event, missing, some=some and len(missing) > 1, unproven=unproven)

    def _look(self, instance: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the members that have not entered a collective: those that are proven missing, and the others."""
        trace, groups = self._trace, self._matching.collectives
        comm = int(groups.comm[instance])
        calls = groups.calls(instance)
        entered = set(trace.events["rank"][calls].tolist())
        since = int(trace.events["enter"][calls].min())
        missing: list[int] = []
        unproven: list[int] = []
        for rank in trace.comms[comm].members.tolist():
            if rank in entered:
                continue
            if self._passed(rank, instance):
                continue
            (missing if self.proven(rank, since) else unproven).append(rank)
        return tuple(missing), tuple(unproven)

    def _passed(self, rank: int, instance: int) -> bool:
        """Return whether a rank has made a later call of that communicator, or a later start of that request. Then the
        record of this call is lost."""
        m, groups = self._matching, self._matching.collectives
        lo, hi = m.of_rank(rank)
        seq, turn = groups.seq[instance], groups.turn[instance]
        theirs = (m.comm[lo:hi] == groups.comm[instance]) & (groups.of[lo:hi] >= 0)
        later = (m.seq[lo:hi] == seq) & (m.turn[lo:hi] > turn) if turn else m.seq[lo:hi] > seq
        return bool((theirs & later).any())


# ---- ranks that could go on ----


def _resolve(graph: Graph, size: int, halted: frozenset[int]) -> None:
    """Fill in free, deadlocked and knots."""
    needs: dict[int, list[int]] = {}
    any_of: set[int] = set()
    shared: dict[tuple[tuple[int, ...], bool], int] = {}
    for rank, call in graph.opened.items():
        if rank in halted or not call.wants:
            continue
        nodes = []
        open_ended = False
        for want in call.wants:
            if want.ranks and not (want.some and want.unproven):
                nodes.append(_node(want, shared, needs, any_of, size))
            elif call.any or want.unproven:
                open_ended = True  # something else may end the call
        if nodes and not (open_ended and call.any) and not call.free:
            needs[rank] = nodes
            if call.any:
                any_of.add(rank)
    graph.free = {rank for rank in range(size) if rank not in needs}
    graph.deadlocked, graph.knots = knots.find(needs, any_of, graph.free, size)


def _node(
    want: WaitCondition,
    shared: dict[tuple[tuple[int, ...], bool], int],
    needs: dict[int, list[int]],
    any_of: set[int],
    size: int,
) -> int:
    """Return the node that represents a want: a rank, or a separate node for many ranks."""
    if len(want.ranks) == 1:
        return want.ranks[0]
    key = (want.ranks, want.any or want.some)
    if key not in shared:
        shared[key] = node = size + len(shared)
        needs[node] = list(want.ranks)
        if want.any or want.some:
            any_of.add(node)
    return shared[key]
