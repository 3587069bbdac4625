"""From labelled calls to the times of the parts of each iteration: a Timing (graph.py) for each iteration that all
ranks have ended.

A caller that looks at one job repeatedly passes the Measured of the previous look. Then only new iterations are
measured.

Invariants
 1. An iteration counts as measured if all measured properties of its calls are the same. Only times may differ, by at
    most SAME, because each look knows the rate of the clocks a little better.
 2. Only iterations that the newest look has seen are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .events import OPEN, Flag
from .graph import Graph, Sizes, Timing, graph_of, latest
from .match import IS_COMPLETION
from .stages import LAST, NONE, RECV, REDUCING, SEND, TP, Item, Labels, CallSequence

SAME = 1_000  # ns: half of the error that a sample of the clocks may have (clocks.SAMPLE_ERROR)


@dataclass(frozen=True)
class Iteration:
    """One measured iteration.

    number: as counted in the labels.
    begin, end: ns on the job's clock. The end is that of the last rank. The begin is the end of the iteration before.
    first: there is no iteration before it.
    """

    number: int
    timing: Timing
    begin: int
    end: int
    first: bool

    @property
    def seconds(self) -> float:
        """Its length, in seconds."""
        return (self.end - self.begin) * 1e-9


@dataclass(frozen=True)
class _Columns:
    """Where an iteration is in a rank's calls, [first, last), and the item of each of these calls."""

    first: int
    last: int
    item: np.ndarray


class Measured:
    """The iterations that the newest look has measured, by number. Each is kept with the times of its calls, counted
    from its begin, and with a hash of the other measured properties of its calls."""

    def __init__(self) -> None:
        self._by: tuple[object, ...] = ()  # the schedule and sequences that they were measured with
        self._before: dict[int, tuple[np.ndarray, int, Iteration]] = {}
        self._now: dict[int, tuple[np.ndarray, int, Iteration]] = {}

    def __len__(self) -> int:
        return len(self._now)

    def look(self, labels: Labels) -> None:
        """Begin another look."""
        likes: dict[int, int] = {}
        by = (
            labels.schedule,
            labels.layers,
            tuple(likes.setdefault(id(s), rank) for rank, s in enumerate(labels.sequences)),
        )
        self._before, self._now, self._by = self._now if by == self._by else {}, {}, by
        events = labels.trace.events
        self._times = np.stack((events["enter"], events["exit"]))
        what = events["op"].astype(np.int64) << 16 | events["flags"]
        request, size = (events[name].astype(np.int64) for name in ("request", "bytes"))
        self._calls = np.stack((what, request, size, labels.item), axis=1)

    def measure(
        self, labels: Labels, columns: dict[int, _Columns], previous: int | None, number: int
    ) -> Iteration | None:
        """Return the iteration as _measure does, from the previous look if it is the same."""
        if previous is None:
            return _measure(labels, columns, previous, number)
        parts = []
        for start, sequence in zip(labels.starts.tolist(), labels.sequences, strict=False):
            where = columns[id(sequence)]
            parts.append(slice(start + max(where.first - 1, 0), start + where.last))
        times = np.concatenate([self._times[:, part] for part in parts], axis=1) - previous
        calls = hash(tuple(self._calls[part].tobytes() for part in parts))
        known = self._before.get(number)
        if (
            known is not None
            and known[1] == calls
            and known[0].shape == times.shape
            and np.abs(known[0] - times).max() <= SAME
        ):
            times, _, same = known
            last = max(int(self._times[1, part.stop - 1]) for part in parts)
            found = replace(same, begin=previous, end=last)
        elif (measured := _measure(labels, columns, previous, number)) is not None:
            found = measured
        else:
            return None
        self._now[number] = times, calls, found
        return found


def iterations(labels: Labels, measured: Measured | None = None) -> Iterator[Iteration]:
    """Yield the iterations, in order. Iterations that some rank has not ended, or of which calls are lost, are left
    out. measured: the results of the previous look; it is updated."""
    if measured is not None:
        measured.look(labels)
    measure = _measure if measured is None else measured.measure
    ranges = {id(s): _ranges(s, labels, stage_of) for stage_of, s in _stages(labels)}
    counts = labels.starts[1:] - labels.starts[:-1]
    numbers = set.intersection(*(set(ranges[id(s)]) if s is not None else set() for s in labels.sequences))
    end: int | None = None
    for number in sorted(numbers):
        if any(ranges[id(s)][number].last > count for s, count in zip(labels.sequences, counts.tolist(), strict=True)):
            break  # a rank has not ended this iteration
        previous = end if number - 1 in numbers else None
        found = measure(labels, {key: of[number] for key, of in ranges.items() if number in of}, previous, number)
        if found is None:
            break
        end = found.end
        yield found


def _stages(labels: Labels) -> list[tuple[int, CallSequence]]:
    """Return each sequence once, with its stage."""
    places = labels.schedule.places[:, 0]
    return list({id(s): (int(places[rank]), s) for rank, s in enumerate(labels.sequences) if s is not None}.values())


def _ranges(sequence: CallSequence, labels: Labels, stage: int) -> dict[int, _Columns]:
    """Return the complete iterations of a sequence."""
    labelled = np.flatnonzero(sequence.iteration >= 0)
    if not len(labelled):
        return {}
    of = sequence.iteration[labelled]
    firsts = np.flatnonzero(np.r_[True, of[1:] != of[:-1]])
    lasts = np.r_[firsts[1:], len(of)]
    size = len(labels.items[stage])
    found = {}
    for a, b in zip(firsts.tolist(), lasts.tolist(), strict=True):
        items = sequence.item[labelled[a:b]]
        if int((items >= 0).sum()) != size:
            continue
        found[int(of[a])] = _Columns(
            int(labelled[a]), int(labelled[b - 1]) + 1, sequence.item[labelled[a] : labelled[b - 1] + 1]
        )
    return found


def _measure(labels: Labels, columns: dict[int, _Columns], previous: int | None, number: int) -> Iteration | None:
    """Measure one iteration. columns: by id of a sequence. previous: the end of the iteration before, ns, or None.
    Returns None if one of the iteration's calls is open."""
    schedule = labels.schedule
    origin = previous
    if origin is None:
        origin = int(
            min(
                labels.trace.events["enter"][labels.starts[rank] + columns[id(s)].first]
                for rank, s in enumerate(labels.sequences)
                if s is not None
            )
        )
    draft = _Draft(labels, origin, previous is None)
    for stage in range(schedule.pp):
        ranks = schedule.ranks[stage].ravel()
        for sequence in {id(labels.sequences[rank]): labels.sequences[rank] for rank in ranks.tolist()}.values():
            assert sequence is not None
            chosen = [i for i, rank in enumerate(ranks.tolist()) if labels.sequences[rank] is sequence]
            if not draft.add(stage, ranks, chosen, columns[id(sequence)]):
                return None
    timing, end = draft.timing()
    return Iteration(number, timing, origin, origin + int(round(end * 1e9)), previous is None)


class _Draft:
    """The times of one iteration, in seconds from its origin: ranks that make the same calls are added together, stage
    by stage. is_first: nothing is known of the iteration before."""

    def __init__(self, labels: Labels, origin: int, is_first: bool) -> None:
        schedule, layers = labels.schedule, labels.layers
        self._labels, self._origin, self._is_first = labels, origin, is_first
        self._graph = graph_of(schedule)
        count, shape = self._graph.count, (schedule.dp, schedule.tp)
        self._shape = shape
        self._compute = np.zeros((count, layers + 1, *shape))
        self._tp_enter, self._tp_exit = np.zeros((2, count, layers, *shape))
        self._recv_enter, self._recv_exit, self._send_enter, self._send_exit = np.zeros((4, count, *shape))
        # the sender's wait for the message that a block waits for
        self._wait_enter, self._wait_exit = np.full((2, count, *shape), -np.inf)
        self._ready, self._closing, self._come, self._left, self._end = np.zeros((5, schedule.pp, *shape))
        self._tp_bytes, self._send_bytes = np.zeros((count, layers, *shape)), np.zeros((count, *shape))
        # the communicator of the first reduction, and its bytes
        self._group, self._reduced = np.full((schedule.pp, *shape), -1), np.zeros((schedule.pp, *shape))

    def add(self, stage: int, ranks: np.ndarray, chosen: list[int], where: _Columns) -> bool:
        """Add the ranks of a stage that make the same calls. ranks: all of the stage; chosen: which of them. Returns
        False if one of their calls is open."""
        labels = self._labels
        enter, exit_, before = _times(labels, ranks[chosen], where, self._origin)
        if exit_ is None:
            return False
        comms, sizes = (_fields(labels, name, ranks[chosen], where) for name in ("comm", "bytes"))
        everybody = len(chosen) == len(ranks)
        at = (slice(None), slice(None)) if everybody else tuple(np.divmod(np.array(chosen), labels.schedule.tp))
        size = self._shape if everybody else (len(chosen),)
        enter, exit_, before, comms, sizes = (of.reshape(len(of), *size) for of in (enter, exit_, before, comms, sizes))
        items = labels.items[stage]
        slots = _slots(items, where.item, labels.layers)
        gaps = np.maximum(enter - np.concatenate([before, exit_[:-1]]), 0)
        if self._is_first:
            gaps[0] = 0
        waits_first = bool(items) and items[0].kind == RECV
        self._ready[stage][at] = enter[0] if waits_first or self._is_first else np.maximum(before[0], 0)
        for message, column in _waits(labels, self._graph, stage, ranks[chosen[0]], where):
            self._wait_enter[message][at], self._wait_exit[message][at] = enter[column], exit_[column]
        self._add_blocks(stage, at, everybody, slots, (enter, exit_, sizes))
        own = slice(stage * self._graph.blocks, (stage + 1) * self._graph.blocks)
        whole = self._compute[own]
        for (place, segment), (a, b) in slots.work.items():
            whole[place, segment][at] = gaps[a] if b == a + 1 else gaps[a:b].sum(axis=0)
        before_reduction = gaps[slice(*slots.closing)].sum(axis=0)
        # no call separates the last block from the work after it
        if items and items[-1].kind == RECV:
            whole[-1, -1][at] = before_reduction
        else:
            self._closing[stage][at] = before_reduction
        reduce_first, reduce_last = slots.reduce
        if reduce_last > reduce_first:
            self._come[stage][at], self._left[stage][at] = enter[reduce_first], exit_[reduce_first]
            self._group[stage][at], self._reduced[stage][at] = comms[reduce_first], sizes[reduce_first]
        else:
            done = exit_[np.flatnonzero(where.item >= 0)[-1:]]
            self._come[stage][at] = self._left[stage][at] = done[0]
        self._end[stage][at] = exit_[-1]
        return True

    def _add_blocks(
        self, stage: int, at: tuple[Any, ...], everybody: bool, slots: _Slots, found: tuple[np.ndarray, ...]
    ) -> None:
        """Add the calls of the blocks. at: which ranks. found: enter, exit and bytes of all calls."""
        own = slice(stage * self._graph.blocks, (stage + 1) * self._graph.blocks)
        filled = (
            ((self._tp_enter, self._tp_exit, self._tp_bytes), slots.tp),
            ((self._recv_enter, self._recv_exit), slots.recv),
            ((self._send_enter, self._send_exit, self._send_bytes), slots.send),
        )
        for targets, (places, cols) in filled:
            place = (places, *at) if everybody else (places[:, None], *at)
            for target, values in zip(targets, found, strict=False):
                target[own].reshape(-1, *self._shape)[place] = values[cols]

    def timing(self) -> tuple[Timing, float]:
        """The iteration's times, and its end."""
        schedule, graph, layers = self._labels.schedule, self._graph, self._labels.layers
        count, shape = graph.count, self._shape
        release = None
        if np.isfinite(self._wait_exit).any():
            since = np.maximum(self._wait_enter, self._recv_exit)
            release = np.where(self._wait_exit >= self._recv_enter, self._wait_exit - since, -np.inf)
        transfer, landing = np.zeros((2, count, *shape))
        for way in graph.ways:
            waits = release is not None and (release[way] > -np.inf).any(axis=0)
            transfer[way], landing[way] = _transfers(
                self._send_enter[graph.source[way]], self._recv_enter[way], self._recv_exit[way], waits
            )
        collective = (
            np.maximum(latest(self._tp_exit) - latest(self._tp_enter), 0)
            if layers
            else np.zeros((count, 0, schedule.dp))
        )
        send = self._send_exit - self._send_enter
        left = self._come if schedule.dp == 1 else self._left
        reduce = np.maximum(left - _arrivals(self._come, self._group), 0).max(axis=1)
        closing = _closing(self._come, self._closing)
        end = float(self._end.max())
        norm = float(max(end - left.max(), 0))
        moved = np.where((graph.source >= 0)[:, None, None], self._send_bytes[graph.source], 0)
        volume = Sizes(moved, latest(self._tp_bytes) if layers else collective, self._reduced.max(axis=1))
        timing = Timing(
            self._compute, collective, transfer, landing, send, self._ready, closing, reduce, norm, release, volume
        )
        return timing, end


def _closing(come: np.ndarray, closing: np.ndarray) -> np.ndarray:
    """Return the work before the gradient reduction. If no replica of a stage entered the reduction before the last
    replica had finished its blocks, all of them may have waited for that in a call that isn't recorded. Then only the
    time after it counts as work."""
    through = (come - closing).max(axis=1, keepdims=True)
    return np.where((come >= through).all(axis=1, keepdims=True), come - through, closing)


def _arrivals(come: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return for each rank when the last rank of its first reduction entered it: [S, D, T]. These ranks may belong to
    other stages, for example if the first and the last stage share an embedding."""
    found = np.broadcast_to(come.max(axis=1, keepdims=True), come.shape).copy()
    for comm in np.unique(group[group >= 0]).tolist():
        mine = group == comm
        found[mine] = come[mine].max()
    return found


def _transfers(
    sent: np.ndarray, called: np.ndarray, received: np.ndarray, waits: np.ndarray | bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return how long the messages of one way took, from their Send, and from their Recv.

    On each link, the messages that were sent before their Recv was called show whether messages move only when both
    sides are there (rendezvous): their average time is compared with that of the other messages. If a link has messages
    of only one of these sorts, it counts as rendezvous if senders wait for their messages. On an eager link, the
    transfer of a message that was sent before its Recv is not visible. It is taken to be the median of the others, but
    at most the time from its Send to its Recv.
    """
    took = np.maximum(received - np.maximum(sent, called), 0)
    late = called > sent
    count = late.sum(axis=0)
    among = np.where(late, took, 0).sum(axis=0)
    rendezvous = np.where(
        (count > 0) & (count < len(late)), 2 * among * (len(late) - count) >= (took.sum(axis=0) - among) * count, waits
    )
    landing = np.where(late | rendezvous, took, 0)
    early = late & ~rendezvous
    if early.any() and not late.all():
        took[early] = np.maximum(took[early], np.minimum(np.median(took[~late]), (called - sent)[early]))
    return took, landing


def _waits(labels: Labels, graph: Graph, stage: int, rank: int, where: _Columns) -> list[tuple[int, int]]:
    """Return where a rank completes the sends that it has started, as pairs: the block that receives the message, and
    the column of the completion. Only a completion before the next message on the same way counts, or, for the last
    message of a way, a completion before the iteration's end."""
    events, items = (
        labels.trace.events[labels.starts[rank] + where.first : labels.starts[rank] + where.last],
        labels.items[stage],
    )
    completions = np.flatnonzero(IS_COMPLETION[events["op"]] & (events["flags"] & Flag.PENDING == 0)).tolist()
    column_of = dict(zip(events["request"][completions].tolist(), completions, strict=True))
    # the labelled call at or after each column
    following = np.minimum.accumulate(np.where(where.item != NONE, np.arange(len(events)), len(events))[::-1])[::-1]
    found = []
    for column in np.flatnonzero((events["flags"] & Flag.NONBLOCKING != 0) & (where.item >= 0)).tolist():
        item, completion = items[where.item[column]], column_of.get(int(events["request"][column]), -1)
        if item.kind != SEND or completion < column:
            continue
        message, after = int(graph.target[stage * graph.blocks + item.place]), int(where.item[following[completion]])
        before = (
            -1
            if after == REDUCING
            else stage * graph.blocks + items[after].place
            if items[after].kind == SEND
            else None
        )
        if before == graph.holder[message]:
            found.append((message, completion))
    return found


def _times(
    labels: Labels, ranks: np.ndarray, where: _Columns, origin: int
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Return enter and exit of an iteration's calls in seconds from the origin, [calls, ranks], and the exit of the
    call before, [1, ranks]. The exits are None if a call is open."""
    events, starts = labels.trace.events, labels.starts[ranks]
    lengths = labels.starts[ranks + 1] - starts
    columns = slice(max(where.first - 1, 0), where.last)
    if len(ranks) > 1 and ranks[-1] - ranks[0] + 1 == len(ranks) and (lengths == lengths[0]).all():
        table = events[starts[0] : labels.starts[ranks[-1] + 1]].reshape(len(ranks), -1)[:, columns].T
    else:
        table = events[starts + np.arange(columns.start, columns.stop)[:, None]]
    enter, exit_ = table["enter"], table["exit"]
    if (exit_ == OPEN).any():
        return enter, None, enter
    enter, exit_ = (np.multiply(times - origin, 1e-9, order="C") for times in (enter, exit_))
    return (enter[1:], exit_[1:], exit_[:1]) if where.first else (enter, exit_, enter[:1])


def _fields(labels: Labels, name: str, ranks: np.ndarray, where: _Columns) -> np.ndarray:
    """Return one field of an iteration's calls, [calls, ranks]."""
    events, starts = labels.trace.events, labels.starts[ranks]
    return events[name][starts + np.arange(where.first, where.last)[:, None]].astype(np.int64)


@dataclass(frozen=True)
class _Slots:
    """Which columns of an iteration's calls belong to which part of its Timing.

    work: (place, segment) -> range of columns; the gaps before these columns are that work.
    tp, recv, send: places and columns. The place of a collective is place * layers + layer.
    closing: range of columns.
    reduce: range of columns, [first, last + 1).
    """

    work: dict[tuple[int, int], tuple[int, int]]
    tp: tuple[np.ndarray, np.ndarray]
    recv: tuple[np.ndarray, np.ndarray]
    send: tuple[np.ndarray, np.ndarray]
    closing: tuple[int, int]
    reduce: tuple[int, int]


def _slots(items: tuple[Item, ...], item: np.ndarray, layers: int) -> _Slots:
    work: dict[tuple[int, int], tuple[int, int]] = {}
    found: dict[int, list[tuple[int, int]]] = {TP: [], RECV: [], SEND: []}
    begin, closing, reduce = 0, (0, 0), (0, 0)
    for column, number in enumerate(item.tolist()):
        if number == REDUCING:
            if reduce == (0, 0):
                closing, reduce = (begin, column + 1), (column, column + 1)
            reduce = (reduce[0], column + 1)
        elif number >= 0:
            one = items[number]
            found[one.kind].append((one.place * layers + one.layer if one.kind == TP else one.place, column))
            if one.kind != RECV:
                work[one.place, layers if one.layer == LAST else one.layer] = (begin, column + 1)
            elif one.place:
                a, _ = work.get((one.place - 1, layers), (begin, 0))
                work[one.place - 1, layers] = (a if (one.place - 1, layers) in work else begin, column + 1)
        else:
            continue
        begin = column + 1
    arrays = {
        kind: (np.array([p for p, _ in pairs], int), np.array([c for _, c in pairs], int))
        for kind, pairs in found.items()
    }
    return _Slots(work, arrays[TP], arrays[RECV], arrays[SEND], closing, reduce)
