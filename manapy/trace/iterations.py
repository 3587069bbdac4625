"""From labelled calls to what the parts of each iteration took: a Timing (graph.py) for each iteration that all ranks have ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .events import OPEN
from .graph import Timing, graph_of
from .stages import RECV, REDUCING, SEND, TP, Item, Labels, Sequence_


@dataclass(frozen=True)
class Iteration:
    """number: as counted in the labels. begin, end: ns on the job's clock: the end is that of the last rank, the begin the end of the iteration before.
    first: there is none before it."""

    number: int
    timing: Timing
    begin: int
    end: int
    first: bool

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end - self.begin) * 1e-9


@dataclass(frozen=True)
class _Columns:
    """Where in a rank's calls an iteration is: [first, last), and what its calls are."""

    first: int
    last: int
    item: np.ndarray


def iterations(labels: Labels) -> Iterator[Iteration]:
    """In order; those that some rank has not ended, or of which calls are lost, are left out."""
    ranges = {id(s): _ranges(s, labels, stage_of) for stage_of, s in _stages(labels)}
    counts = labels.starts[1:] - labels.starts[:-1]
    numbers = set.intersection(*(set(ranges[id(s)]) if s is not None else set() for s in labels.sequences))
    end: int | None = None
    for number in sorted(numbers):
        if any(ranges[id(s)][number].last > count for s, count in zip(labels.sequences, counts.tolist(), strict=True)):
            break  # a rank has only begun it
        previous = end if number - 1 in numbers else None
        found = _measure(labels, {key: of[number] for key, of in ranges.items() if number in of}, previous, number)
        if found is None:
            break
        end = found.end
        yield found


def _stages(labels: Labels) -> list[tuple[int, Sequence_]]:
    """Each sequence once, with its stage."""
    places = labels.schedule.places[:, 0]
    return list({id(s): (int(places[rank]), s) for rank, s in enumerate(labels.sequences) if s is not None}.values())


def _ranges(sequence: Sequence_, labels: Labels, stage: int) -> dict[int, _Columns]:
    """The whole iterations of a sequence."""
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
        found[int(of[a])] = _Columns(int(labelled[a]), int(labelled[b - 1]) + 1, sequence.item[labelled[a] : labelled[b - 1] + 1])
    return found


def _measure(labels: Labels, columns: dict[int, _Columns], previous: int | None, number: int) -> Iteration | None:
    schedule, layers = labels.schedule, labels.layers
    graph = graph_of(schedule)
    count, shape = graph.count, (schedule.dp, schedule.tp)
    compute = np.zeros((count, layers + 1, *shape))
    tp_enter, tp_exit = np.zeros((2, count, layers, *shape))
    recv_enter, recv_exit, send_enter, send_exit = np.zeros((4, count, *shape))
    ready, closing, come, left, end = np.zeros((5, schedule.pp, *shape))
    origin = previous
    if origin is None:
        origin = int(min(labels.trace.events["enter"][labels.starts[rank] + columns[id(s)].first] for rank, s in enumerate(labels.sequences) if s is not None))
    for stage in range(schedule.pp):
        ranks = schedule.ranks[stage].ravel()
        own = slice(stage * graph.blocks, (stage + 1) * graph.blocks)
        for sequence in {id(labels.sequences[rank]): labels.sequences[rank] for rank in ranks.tolist()}.values():
            assert sequence is not None
            chosen = [i for i, rank in enumerate(ranks.tolist()) if labels.sequences[rank] is sequence]
            where = columns[id(sequence)]
            enter, exit_, before = _times(labels, ranks[chosen], where, origin)
            if exit_ is None:
                return None
            everybody = len(chosen) == len(ranks)
            at = (slice(None), slice(None)) if everybody else tuple(np.divmod(np.array(chosen), schedule.tp))
            size = shape if everybody else (len(chosen),)
            enter, exit_, before = (times.reshape(len(times), *size) for times in (enter, exit_, before))
            slots = _slots(labels.items[stage], where.item, layers)
            gaps = np.maximum(enter - np.concatenate([before, exit_[:-1]]), 0)
            if previous is None:
                gaps[0] = 0
            waits_first = bool(labels.items[stage]) and labels.items[stage][0].kind == RECV
            ready[stage][at] = enter[0] if waits_first or previous is None else np.maximum(before[0], 0)
            whole = compute[own]
            for (place, segment), (a, b) in slots.work.items():
                whole[place, segment][at] = gaps[a] if b == a + 1 else gaps[a:b].sum(axis=0)
            for targets, (places, cols) in (((tp_enter, tp_exit), slots.tp), ((recv_enter, recv_exit), slots.recv), ((send_enter, send_exit), slots.send)):
                for target, values in zip(targets, (enter, exit_), strict=True):
                    target[own].reshape(-1, *shape)[(places, *at) if everybody else (places[:, None], *at)] = values[cols]
            closing[stage][at] = gaps[slice(*slots.closing)].sum(axis=0)
            reduce_first, reduce_last = slots.reduce
            done = send_exit[own][-1] if labels.items[stage] and labels.items[stage][-1].kind == SEND else tp_exit[own][-1, -1] if layers else recv_exit[own][-1]
            come[stage][at] = enter[reduce_first] if reduce_last > reduce_first else done[at]
            left[stage][at] = exit_[reduce_first] if reduce_last > reduce_first else done[at]
            end[stage][at] = exit_[-1]
    transfer = np.zeros((count, *shape))
    has = np.flatnonzero(graph.source >= 0)
    transfer[has] = _transfers(send_enter[graph.source[has]], recv_enter[has], recv_exit[has])
    collective = np.maximum(_latest(tp_exit) - _latest(tp_enter), 0) if layers else np.zeros((count, 0, schedule.dp))
    send = send_exit - send_enter
    if schedule.dp == 1:
        left = come
    reduce = np.maximum(left.max(axis=1) - come.max(axis=1), 0)
    norm = float(max(end.max() - left.max(), 0))
    timing = Timing(compute, collective, transfer, send, ready, closing, reduce, norm)
    return Iteration(number, timing, origin, origin + int(round(float(end.max()) * 1e9)), previous is None)


def _transfers(sent: np.ndarray, called: np.ndarray, received: np.ndarray) -> np.ndarray:
    """How long messages took. One that was there when its Recv was called took at most the time since its Send, and as long as others where that is longer."""
    took = np.maximum(received - np.maximum(sent, called), 0)
    late = called > sent
    if late.any() and not late.all():
        took[late] = np.maximum(took[late], np.minimum(np.median(took[~late]), (called - sent)[late]))
    return took


def _latest(times: np.ndarray) -> np.ndarray:
    result = times[..., 0]
    for shard in range(1, times.shape[-1]):
        result = np.maximum(result, times[..., shard])
    return result


def _times(labels: Labels, ranks: np.ndarray, where: _Columns, origin: int) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Enter and exit of an iteration's calls in seconds from the origin, [calls, ranks] (no exits: a call is open); and the exit of the call before, [1, ranks]."""
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


@dataclass(frozen=True)
class _Slots:
    """work: (place, segment) -> range of columns whose gaps before them are that work; tp, recv, send: places (of collectives: place * layers + layer) and columns;
    closing: range of columns; reduce: first and last + 1."""

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
                work[one.place, one.layer] = (begin, column + 1)
            elif one.place:
                a, _ = work.get((one.place - 1, layers), (begin, 0))
                work[one.place - 1, layers] = (a if (one.place - 1, layers) in work else begin, column + 1)
        else:
            continue
        begin = column + 1
    arrays = {kind: (np.array([p for p, _ in pairs], int), np.array([c for _, c in pairs], int)) for kind, pairs in found.items()}
    return _Slots(work, arrays[TP], arrays[RECV], arrays[SEND], closing, reduce)
