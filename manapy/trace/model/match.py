"""Matches records: the calls of one collective, a send and its receive, the post of a nonblocking operation and its
completion.

  - Collectives are matched by (communicator, SEQ of its collective clock).
  - Starts of persistent collectives are matched by (communicator, SEQ of the call that made the request, number of the
    start). The record of a start contains all of these. So the record of the call that made the request is not needed.
  - Messages are matched by (communicator, source, destination, tag), in the order of the posts (MPI 4.1, section 3.5:
    messages don't overtake each other).
  - Nonblocking posts and persistent starts are matched with their completions by the serial of the request.

Invariants
 1. Generations of a job are continuous: calls that a restart has undone are not in a Trace (rings.py), so SEQ and the
    order of messages continue across it.
 2. If records of a sender or a receiver were lost, counting from the first message would pair the wrong messages. Then
    pairs are aligned so that no message is received before it was sent, as late as possible, and are not `sure`.
 3. Everything is vectorised. Only channels of invariant 2 are handled one by one. 10^6 events take about a second.
 4. MPI_Cancel has no effect on a send, nor on a receive whose message was matched before. It isn't recorded whether a
    receive was cancelled. A cancelled receive is taken to have no message, and no pair of a channel from which it may
    have taken one is `sure`. The same holds for a wildcard whose message isn't known because the completion of some
    requests was not recorded (Flag.CUT).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from .events import ANY, OPEN, PROC_NULL, STARTS, Flag, Op, Trace

SENDS = (Op.SEND, Op.BSEND, Op.SSEND, Op.RSEND)
RECEIVES = (Op.RECV, Op.MRECV)
COMPLETIONS = (Op.WAIT, Op.WAITALL, Op.WAITANY, Op.TEST)
# Shifts in the key of a request. Its serial is (ring << 48) + the seq of the record that made the request.
_RANK_SHIFT, _RING_SHIFT = 44, 38


def _table(ops: Iterable[int]) -> np.ndarray:
    """Return a table bool[op] that is true for these ops."""
    table = np.zeros(128, bool)
    table[[int(op) for op in ops]] = True
    return table


IS_SEND, IS_RECEIVE, IS_COMPLETION = _table(SENDS), _table(RECEIVES), _table(COMPLETIONS)
IS_COLLECTIVE = _table((*range(Op.BARRIER, Op.INIT), Op.WIN_FENCE))


@dataclass(frozen=True)
class Collectives:
    """The instances of collectives, by (communicator, SEQ, turn).

    Arrays with one entry per instance:

    comm, seq, turn: as in Matching.
    first, end: its calls are order[first:end], by time of entry.
    last: index of the event that entered last.
    missing: number of members without a record of it; -1: the members are not known.

    Arrays over events:

    order: the events of all instances, instance by instance.
    of: the instance of each event of the trace, or -1.
    """

    comm: np.ndarray
    seq: np.ndarray
    turn: np.ndarray
    first: np.ndarray
    end: np.ndarray
    last: np.ndarray
    missing: np.ndarray
    order: np.ndarray
    of: np.ndarray

    def calls(self, instance: int) -> np.ndarray:
        """Return the indices of the events of an instance, by time of entry."""
        return self.order[self.first[instance] : self.end[instance]]


@dataclass(frozen=True)
class Matching:
    """How the events of a trace belong together. Arrays with one entry per event; values are indices of events, -1
    means none.

    post: for a completion, the operation that it completes or waits for.
    done: for an operation, the call that completed it. A blocking call completes itself.
    partner: the send of a receive, and the receive of a send.
    sure: the partner was found by counting from the first message of the channel.
    op, comm, peer, tag: the effective values. A persistent start has those of its request. A wildcard has those of the
        message that came, or still ANY.
    seq: SEQ of a collective; for a persistent start, that of the call that made its request. 0: none, or not known.
    turn: the number of this start of its request, from 1; 0: the event is no start of a collective.
    starts: the first event of each rank; the number of events comes last.
    """

    collectives: Collectives
    post: np.ndarray
    done: np.ndarray
    partner: np.ndarray
    sure: np.ndarray
    op: np.ndarray
    comm: np.ndarray
    peer: np.ndarray
    tag: np.ndarray
    seq: np.ndarray
    turn: np.ndarray
    starts: np.ndarray

    def of_rank(self, rank: int) -> tuple[int, int]:
        """Return the index of the first event of a rank, and the index after its last event."""
        return int(self.starts[rank]), int(self.starts[rank + 1])


def match(trace: Trace) -> Matching:
    """Match all events of a trace."""
    events = trace.events
    op, comm, peer, tag = (events[name].astype(np.int64) for name in ("op", "comm", "peer", "tag"))
    seq, turn = np.where(IS_COLLECTIVE[op], events["context"], 0).astype(np.int64), np.zeros(len(events), np.int64)
    _starts(events, op, tag, seq, turn)
    post, done, cancelled = _requests(trace, op, peer, tag)
    partner, sure = _messages(trace, op, comm, peer, tag, done, cancelled)
    return Matching(
        _collectives(trace, op, comm, seq, turn),
        post,
        done,
        partner,
        sure,
        op,
        comm,
        peer,
        tag,
        seq,
        turn,
        np.searchsorted(events["rank"], np.arange(trace.size + 1)),
    )


def first_of_call(events: np.ndarray) -> np.ndarray:
    """Return which records are the first of their call (Waitall and Sendrecv have several): bool[events]."""
    first = np.ones(len(events), bool)
    if len(events) > 1:
        same = (events["rank"][1:] == events["rank"][:-1]) & (events["thread"][1:] == events["thread"][:-1])
        first[1:] = ~(same & (events["flags"][:-1] & Flag.MORE != 0))
    return first


def _by_time(events: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Order by a key. Equal keys are in the order of a rank's calls."""
    if len(events) and events["thread"].max() > 0:
        return np.lexsort((events["enter"], key))
    return np.argsort(key, kind="stable")  # the events of a rank are in order


def _starts(events: np.ndarray, op: np.ndarray, tag: np.ndarray, seq: np.ndarray, turn: np.ndarray) -> None:
    """Fill in what the starts of persistent requests record about their operation."""
    mine = np.flatnonzero(
        (op == Op.START) & (events["flags"] >> STARTS > 0) & (events["flags"] >> STARTS < len(IS_COLLECTIVE))
    )
    op[mine] = events["flags"][mine] >> STARTS
    counted = mine[IS_COLLECTIVE[op[mine]]]
    seq[counted], turn[counted], tag[counted] = events["context"][counted], tag[counted], -1


def _requests(
    trace: Trace, op: np.ndarray, peer: np.ndarray, tag: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return post, done, and which receives may have been cancelled. Fill in the peers and tags of completed
    wildcards."""
    events = trace.events
    count = len(events)
    flags = events["flags"]
    starts = events["op"] == Op.START
    posts = (flags & Flag.NONBLOCKING != 0) & (flags & Flag.PERSISTENT == 0) | starts
    # a call that makes a persistent collective is itself a collective call
    blocking = ~posts & ((flags & Flag.PERSISTENT == 0) | IS_COLLECTIVE[op]) & (events["exit"] != OPEN)
    done = np.where(blocking, np.arange(count), -1)
    post = np.full(count, -1)
    cancelled = np.zeros(count, bool)

    asks = IS_COMPLETION[op] | (op == Op.CANCEL) | (op == Op.REQUEST_FREE)
    mine = np.flatnonzero((events["request"] != 0) & (posts | asks))
    if not len(mine):
        return post, done, cancelled
    serial = events["request"][mine].astype(np.int64)
    key = (
        events["rank"][mine].astype(np.int64) << _RANK_SHIFT
        | (serial >> 48 & 63) << _RING_SHIFT
        | serial & ((1 << _RING_SHIFT) - 1)
    )
    by = _by_time(events[mine], key)
    mine, key = mine[by], key[by]
    place = np.arange(len(mine))
    group = np.concatenate(([0], np.cumsum(key[1:] != key[:-1])))
    # for each record, where the records of its request begin
    begin = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))[group]

    seen = np.maximum.accumulate(np.where(posts[mine], place, -1))
    of = np.where(seen >= begin, mine[np.maximum(seen, 0)], -1)  # for each record, the latest post of its request
    asking = asks[mine]
    post[mine[asking]] = of[asking]
    completes = (
        asking
        & (of >= 0)
        & IS_COMPLETION[op[mine]]
        & (events["exit"][mine] != OPEN)
        & (flags[mine] & (Flag.PENDING | Flag.FAILED) == 0)
    )
    done[of[completes]] = mine[completes]
    cancels = asking & (of >= 0) & (op[mine] == Op.CANCEL)
    cancelled[of[cancels]] = True
    cancelled &= op == Op.RECV  # a matched probe has its message

    wild = np.flatnonzero(posts & (done >= 0) & IS_RECEIVE[op])
    for effective, name in ((peer, "peer"), (tag, "tag")):
        came = events[name][done[wild]].astype(np.int64)
        unknown = (effective[wild] < 0) & (came >= 0)
        effective[wild[unknown]] = came[unknown]
    return post, done, cancelled


def _messages(
    trace: Trace,
    op: np.ndarray,
    comm: np.ndarray,
    peer: np.ndarray,
    tag: np.ndarray,
    done: np.ndarray,
    cancelled: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return partner and sure."""
    events = trace.events
    partner, sure = np.full(len(events), -1), np.zeros(len(events), bool)
    real = (
        (events["flags"] & (Flag.PERSISTENT | Flag.FAILED) == 0) & (peer >= 0) & (tag >= 0) & (comm >= 0) & ~cancelled
    )
    sends, receives = np.flatnonzero(real & IS_SEND[op]), np.flatnonzero(real & IS_RECEIVE[op])
    vague = np.flatnonzero((cancelled | _unknown(events, op, peer, tag, done)) & (peer != PROC_NULL) & (comm >= 0))
    _unsure(trace, events, peer, sure, sends, receives)
    if len(vague):
        for calls, source, target in (
            (sends, events["rank"][sends], peer[sends]),
            (receives, peer[receives], events["rank"][receives]),
        ):
            sure[calls] &= ~_takes(events, comm, peer, tag, vague, comm[calls], source, target, tag[calls])
    if not len(sends) or not len(receives):
        return partner, sure

    both = np.concatenate((sends, receives))
    label = np.unique(comm[both] << 32 | tag[both], return_inverse=True)[1].reshape(-1)
    source = np.concatenate((events["rank"][sends], peer[receives])).astype(np.int64)
    target = np.concatenate((peer[sends], events["rank"][receives])).astype(np.int64)
    size = max(trace.size, int(source.max()) + 1, int(target.max()) + 1)
    channel = np.unique((label * size + source) * size + target, return_inverse=True)[1].reshape(-1)
    channels = int(channel.max()) + 1

    ordered, numbers, counts = [], [], []
    for calls, of in ((sends, channel[: len(sends)]), (receives, channel[len(sends) :])):
        by = _by_time(events[calls], of)
        count = np.bincount(of, minlength=channels)
        numbers.append(np.arange(len(calls)) - (np.cumsum(count) - count)[of[by]])
        ordered.append((calls[by], of[by]))
        counts.append(count)

    (sent, sent_on), (received, received_on) = ordered
    begins = [np.cumsum(count) - count for count in counts]
    shift = np.zeros(channels, np.int64)
    for which in np.unique(received_on[~sure[received]]):
        s, r = (
            calls[begin[which] : begin[which] + count[which]]
            for calls, begin, count in ((sent, begins[0], counts[0]), (received, begins[1], counts[1]))
        )
        shift[which] = _align(events, s, r, done)
    wanted = numbers[1] + shift[received_on]
    found = (wanted >= 0) & (wanted < counts[0][received_on])
    pair = sent[(begins[0][received_on] + wanted)[found]]
    partner[received[found]] = pair
    partner[pair] = received[found]
    return partner, sure


def _unknown(events: np.ndarray, op: np.ndarray, peer: np.ndarray, tag: np.ndarray, done: np.ndarray) -> np.ndarray:
    """Return which events are nonblocking wildcards that may have been completed by a call of which not all requests
    were recorded: bool[events]."""
    cut = np.unique(events["rank"][(events["flags"] & Flag.CUT != 0) & IS_COMPLETION[op]])
    posts = (events["flags"] & (Flag.NONBLOCKING | Flag.PERSISTENT | Flag.FAILED) == Flag.NONBLOCKING) | (
        events["op"] == Op.START
    )
    return np.isin(events["rank"], cut) & IS_RECEIVE[op] & posts & (done < 0) & ((peer == ANY) | (tag < 0))


def _takes(
    events: np.ndarray,
    comm: np.ndarray,
    peer: np.ndarray,
    tag: np.ndarray,
    vague: np.ndarray,
    on: np.ndarray,
    source: np.ndarray,
    target: np.ndarray,
    tags: np.ndarray,
) -> np.ndarray:
    """Return to which messages a receive of `vague` may belong: bool. on, source, target, tags: of the messages."""
    found = np.zeros(len(on), bool)
    for any_source, any_tag in ((False, False), (False, True), (True, False), (True, True)):
        some = vague[((peer[vague] < 0) == any_source) & ((tag[vague] < 0) == any_tag)]
        if not len(some):
            continue
        key = np.zeros(len(some) + len(on), np.int64)
        for mine, theirs, leave in (
            (comm[some], on, False),
            (events["rank"][some], target, False),
            (peer[some], source, any_source),
            (tag[some], tags, any_tag),
        ):
            if not leave:
                key = np.unique(key << 32 | np.concatenate((mine, theirs)), return_inverse=True)[1].reshape(-1)
        found |= np.isin(key[len(some) :], key[: len(some)])
    return found


def _unsure(trace: Trace, events: np.ndarray, peer: np.ndarray, sure: np.ndarray, *calls: np.ndarray) -> None:
    """Set `sure` for these calls. It is false where one side has lost records (invariant 2) or is not in the trace."""
    size = max(trace.size, int(events["rank"].max(initial=0)) + 1, int(peer.max(initial=0)) + 1)
    lossy = np.ones(size, bool)
    for rank, known in trace.ranks.items():
        lossy[rank] = known.lost > 0 or known.first_ns > 0
    for some in calls:
        own = events["rank"][some]
        sure[some] = ~lossy[own] & ~lossy[peer[some]]


def _align(events: np.ndarray, sent: np.ndarray, received: np.ndarray, done: np.ndarray) -> int:
    """Return by how many places the receives of a channel are behind its sends. The number is as large as it can be
    without a message that was received before it was sent."""
    complete = np.flatnonzero(done[received] >= 0)
    if not len(complete):
        return len(sent) - len(received) if len(sent) > len(received) else 0
    exits = events["exit"][done[received[complete]]]
    latest = np.searchsorted(events["enter"][sent], exits, side="right") - 1
    return int((latest - complete).min())


def _collectives(trace: Trace, op: np.ndarray, on: np.ndarray, number: np.ndarray, turns: np.ndarray) -> Collectives:
    events = trace.events
    of = np.full(len(events), -1)
    mine = np.flatnonzero(IS_COLLECTIVE[op] & (number != 0) & (on >= 0) & (events["flags"] & Flag.FAILED == 0))
    if not len(mine):
        none = np.zeros(0, np.int64)
        return Collectives(none, none, none, none, none, none, none, none, of)
    comm, seq, turn = on[mine], number[mine], turns[mine]
    width, height = int(seq.max()) + 1, int(turn.max()) + 1
    if 0 < width < (1 << 62) // (int(comm.max()) + 1) // height and seq.min() > 0:
        key = (comm * width + seq) * height + turn
    else:  # a damaged record has huge numbers: this is slower and has the same result
        key = np.unique(np.stack((comm, seq, turn)), axis=1, return_inverse=True)[1].reshape(-1)
    by = np.lexsort((events["enter"][mine], key))
    order, key = mine[by], key[by]
    first = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
    end = np.concatenate((first[1:], [len(order)]))
    of[order] = np.repeat(np.arange(len(first)), end - first)
    known = np.array([len(c.members) for c in trace.comms] or [0])
    comm, seq, turn = (array[by][first] for array in (comm, seq, turn))
    members = known[comm]
    return Collectives(
        comm, seq, turn, first, end, order[end - 1], np.where(members > 0, members - (end - first), -1), order, of
    )
