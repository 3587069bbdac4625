"""Labels each call of a training job with its iteration, micro-batch, phase and pipeline stage, using the schedule.
Infers the schedule from the calls if it is not given.

A rank's calls are compared with the calls that its stage must make in an iteration. For each block these are a Recv,
the collectives of its TP group, and a Send (where the block has them). Collectives of larger groups end the iteration.
Only one rank of a stage is compared call by call. The other ranks are compared with this rank, and call by call only
where they differ.

Invariants
 1. Calls outside the pattern (set-up, logging, an occasional barrier) have no label. A Recv that was left out does not
    shift later labels.
 2. A rank whose first calls are lost gets labels from its first gradient reduction on; the communicator's SEQ counts
    its iterations. Calls before the last pause of its recording count as lost.

Stages may differ in their TP collectives. Their numbers are computed from the calls between messages, by stage, chunk
and direction. Collectives that a last stage's forward and backward pass share are halved, so a few calls of a loss
may be attributed to the other pass. The time between the last block and the first reduction is work. The exception: all
replicas of a stage leave the reduction only after the last of them has come. Then they may have waited there, in a call
that is not recorded.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .events import OPEN, Flag, Op, Trace
from .schedule import Schedule, ScheduleError
from .verdict import Phase

OTHER, RECV, TP, SEND, REDUCE = range(5)  # classes of calls
NONE, REDUCING = -1, -2  # items outside the stage's pattern
LAST = -1  # index of a block's last piece of work: the one after its last collective
PHASES = (Phase.UNKNOWN, Phase.FORWARD, Phase.BACKWARD, Phase.TRANSFER, Phase.REDUCE, Phase.OPTIMIZER)
STRAY = 0.05  # share of calls that may have no place in the pattern

_DATA = [
    Op.BARRIER,
    Op.BCAST,
    Op.REDUCE,
    Op.ALLREDUCE,
    Op.GATHER,
    Op.SCATTER,
    Op.ALLGATHER,
    Op.ALLTOALL,
    Op.REDUCE_SCATTER,
]
_CLASS = np.zeros(256, np.uint8)
_CLASS[[Op.SEND, Op.BSEND, Op.SSEND, Op.RSEND]] = SEND
_CLASS[[Op.RECV, Op.MRECV]] = RECV
_CLASS[_DATA] = REDUCE


@dataclass(frozen=True)
class Position:
    """Where a rank is in the schedule now."""

    phase: Phase = Phase.UNKNOWN
    stage: int | None = None
    iteration: int | None = None
    micro: int | None = None


@dataclass(frozen=True)
class Item:
    """A call of a stage at one place of its pattern. layer: the index of the collective in its block. For a Send: the
    index of the piece of work before it (LAST)."""

    kind: int
    place: int
    layer: int = 0


@dataclass(frozen=True)
class CallSequence:
    """The calls that some ranks of a stage have in common.

    kinds: the class of each call.
    iteration, item: the label of each call, or NONE.
    strays: how many calls have no place in the pattern.
    first_stray: the index of the first of them, or -1.
    """

    kinds: np.ndarray
    iteration: np.ndarray
    item: np.ndarray
    strays: int
    first_stray: int


@dataclass
class Labels:
    """The labels of all calls of a trace.

    layers: the largest number of TP collectives in one block.
    items: for each stage, its pattern of calls in an iteration.
    starts: the first event of each rank; the number of events comes last.
    sequences: the call sequence of each rank.
    iteration, item: aligned with the trace's events. An item is an index into `items[stage]`, or NONE, or REDUCING.
    """

    trace: Trace
    schedule: Schedule
    layers: int
    items: list[tuple[Item, ...]]
    starts: np.ndarray
    sequences: list[CallSequence | None]
    iteration: np.ndarray = field(repr=False)
    item: np.ndarray = field(repr=False)

    @functools.cached_property
    def stage(self) -> np.ndarray:
        """Pipeline stage of each event's rank."""
        return self.schedule.places[:, 0][self.trace.events["rank"]]

    @functools.cached_property
    def micro(self) -> np.ndarray:
        """Micro-batch of each event; -1: it has none."""
        return self._looked_up(lambda stage, item: self.schedule.blocks_of(stage)[item.place].micro, NONE, NONE)

    @functools.cached_property
    def phase(self) -> np.ndarray:
        """Phase of each event, as an index into PHASES."""
        return self._looked_up(
            lambda stage, item: PHASES.index(self._phase(stage, item)), PHASES.index(Phase.REDUCE), 0
        )

    def now(self, rank: int) -> Position:
        """Return where a rank is: in its open call, or on the way to its next call. After an iteration's last call, a
        stage that receives nothing first is taken to be in its first forward pass. The optimizer and the data loader
        make no calls that would show the difference."""
        stage = int(self.schedule.places[rank, 0])
        sequence = self.sequences[rank]
        if sequence is None or not len(labelled := np.flatnonzero(sequence.item != NONE)):
            return Position(stage=stage)
        items = self.items[stage]
        at = int(labelled[-1])
        count = self.starts[rank + 1] - self.starts[rank]
        at = int(labelled[labelled < count][-1]) if at >= count and (labelled < count).any() else at
        item, iteration = int(sequence.item[at]), int(sequence.iteration[at])
        is_open = self.trace.events["exit"][self.starts[rank] + at] == OPEN
        if item == REDUCING:
            if is_open:
                return Position(Phase.REDUCE, stage, iteration)
            if not items:  # the stage makes only reductions
                return Position(Phase.UNKNOWN, stage, iteration + 1)
            if items[0].kind == RECV or self._reductions(sequence, iteration, at) < self._reductions(
                sequence, iteration - 1, at
            ):
                return Position(Phase.OPTIMIZER, stage, iteration)
            return Position(Phase.FORWARD, stage, iteration + 1, self.schedule.blocks_of(stage)[items[0].place].micro)
        if not is_open:
            item += 1
            if item == len(items):
                return Position(Phase.REDUCE, stage, iteration)
        block = self.schedule.blocks_of(stage)[items[item].place]
        return Position(self._phase(stage, items[item], is_open), stage, iteration, block.micro)

    @staticmethod
    def _reductions(sequence: CallSequence, iteration: int, until: int) -> int:
        """Count the calls that end an iteration (REDUCING), up to and including the call `until`."""
        return int(((sequence.item[: until + 1] == REDUCING) & (sequence.iteration[: until + 1] == iteration)).sum())

    def _phase(self, stage: int, item: Item, inside: bool = True) -> Phase:
        """Return the phase of a call (inside), or of the time before it. Without TP collectives, the time before a Send
        is the block's work."""
        if item.kind == TP or item.kind == SEND and not inside and not self.layers:
            return Phase.BACKWARD if self.schedule.blocks_of(stage)[item.place].backward else Phase.FORWARD
        return Phase.TRANSFER

    def _looked_up(self, value, reducing: int, none: int) -> np.ndarray:
        tables = np.full((self.schedule.pp, max(len(items) for items in self.items) + 2), none, np.int32)
        for stage, items in enumerate(self.items):
            for i, item in enumerate(items):
                tables[stage, i] = value(stage, item)
        tables[:, REDUCING] = reducing
        return tables[self.stage, self.item]


def check_size(trace: Trace, schedule: Schedule) -> None:
    """Raise ScheduleError if the schedule is for more or fewer ranks than the trace."""
    if schedule.size != trace.size:
        raise ScheduleError(f"the schedule {schedule} is for {schedule.size} ranks, but the trace has {trace.size}")


def label(trace: Trace, schedule: Schedule) -> Labels:
    """Return the labels of all calls. Raises ScheduleError if the schedule cannot be that of this trace."""
    check_size(trace, schedule)
    events = trace.events
    starts = np.searchsorted(events["rank"], np.arange(trace.size + 1))
    kinds = _kinds(trace, schedule)
    layers = _layers(schedule, kinds, starts)
    items = [_items(schedule, stage, layers[stage]) for stage in range(schedule.pp)]
    iteration, item = np.full(len(events), NONE, np.int32), np.full(len(events), NONE, np.int32)
    sequences: list[CallSequence | None] = [None] * trace.size
    for stage in range(schedule.pp):
        known: list[CallSequence] = []
        ranks = schedule.ranks[stage].ravel()
        lengths = starts[ranks + 1] - starts[ranks]
        contiguous = len(ranks) == ranks[-1] - ranks[0] + 1 and (lengths == lengths[0]).all()
        if contiguous and lengths[0] and all(known_.whole for known_ in _known(trace, ranks)):
            lo, hi = starts[ranks[0]], starts[ranks[-1] + 1]
            table = kinds[lo:hi].reshape(len(ranks), -1)
            if (table == table[0]).all():
                sequence = _walk(table[0], items[stage])
                for rank in ranks.tolist():
                    sequences[rank] = sequence
                for target, values in ((iteration, sequence.iteration), (item, sequence.item)):
                    target[lo:hi].reshape(table.shape)[:] = values
                continue
        for rank in sorted(ranks.tolist(), key=lambda rank: starts[rank] - starts[rank + 1]):
            own = slice(starts[rank], starts[rank + 1])
            lost = rank in trace.ranks and not trace.ranks[rank].whole
            count = own.stop - own.start
            like = None if lost else next((s for s in known if np.array_equal(s.kinds[:count], kinds[own])), None)
            if like is None:
                like = _walk(kinds[own], items[stage], synced=not lost)
                if not lost:
                    known.append(like)
                elif len(reductions := np.flatnonzero(like.item == REDUCING)):
                    like = _counted(trace, like, own.start, int(reductions[0]))
            sequences[rank] = like
            iteration[own], item[own] = like.iteration[:count], like.item[:count]
    labels = Labels(
        trace, schedule, max(max(*of[:-1], of[-2] + of[-1]) for of in layers), items, starts, sequences, iteration, item
    )
    _check(labels, kinds)
    return labels


def _known(trace: Trace, ranks: np.ndarray) -> list:
    return [trace.ranks[rank] for rank in ranks.tolist() if rank in trace.ranks]


def _kinds(trace: Trace, schedule: Schedule) -> np.ndarray:
    """Return the class of each call."""
    events = trace.events
    kinds = _CLASS[events["op"]]
    is_tp = np.zeros(len(trace.comms) + 1, bool)
    if schedule.tp > 1:
        groups = {group.tobytes() for group in np.sort(schedule.ranks.reshape(-1, schedule.tp), axis=1)}
        for i, comm in enumerate(trace.comms):
            if len(comm.members) == schedule.tp:
                is_tp[i] = np.sort(comm.members.astype(np.int32)).tobytes() in groups
    kinds[is_tp[events["comm"]] & (kinds == REDUCE)] = TP
    started = np.flatnonzero((events["flags"] & Flag.NONBLOCKING).astype(bool) & (kinds == RECV))
    if len(started):  # a nonblocking receive has its message when its request is completed
        kinds[started] = OTHER
        completed = np.flatnonzero(np.isin(events["op"], (Op.WAIT, Op.WAITALL, Op.WAITANY, Op.TEST)))
        posts = _keys(events, started)
        kinds[completed[np.isin(_keys(events, completed), posts)]] = RECV
    for rank, known in trace.ranks.items():
        if known.pauses:
            kinds[(events["rank"] == rank) & (events["enter"] < known.first_ns)] = OTHER
    return kinds


def _keys(events: np.ndarray, which: np.ndarray) -> np.ndarray:
    return events["rank"][which].astype(np.uint64) << np.uint64(44) | events["request"][which]


def _layers(schedule: Schedule, kinds: np.ndarray, starts: np.ndarray) -> tuple[tuple[int, ...], ...]:
    """Return the number of TP collectives of each block, [stage][place]. The last entry of a stage is their number
    after its last block. A stage in which no rank has completed a block gets the numbers of another stage."""
    if schedule.tp == 1:
        return ((0,) * (schedule.blocks + 1),) * schedule.pp
    found = [_layers_of(schedule, stage, kinds, starts) for stage in range(schedule.pp)]
    usual = min((layers for layers in found if layers is not None), key=sum, default=None)
    if usual is None and not (kinds == TP).any():
        raise ScheduleError(
            f"the schedule {schedule} doesn't fit: no collective is called on a communicator of ranks "
            f"{schedule.ranks[0, 0].tolist()}, which should be a TP group"
        )
    if usual is None:
        raise ScheduleError(f"the schedule {schedule} can't be checked: no rank has got through a block")
    return tuple(usual if layers is None else layers for layers in found)


def _layers_of(schedule: Schedule, stage: int, kinds: np.ndarray, starts: np.ndarray) -> tuple[int, ...] | None:
    """Return the same for the blocks of one stage, or None if no rank has completed a block.

    Forward and backward passes, and chunks, need not make the same number of TP collectives (embedding, loss,
    recomputation). But all blocks of one kind make the same number. These numbers solve a system of equations, with one
    equation for each pair of neighbouring messages. If an equation gives only the sum for several kinds, as on the last
    stage, they share it equally. Additional collectives before an iteration's first message belong to its first block.
    """
    blocks, items = schedule.blocks_of(stage), _items(schedule, stage, (0,) * (schedule.blocks + 1))
    of = {kind: i for i, kind in enumerate(dict.fromkeys((block.chunk, block.backward) for block in blocks))}
    places = [of[block.chunk, block.backward] for block in blocks]
    holds, gap = np.zeros((len(items) + 1, len(of)), int), 0  # blocks between two messages, by kind
    for place, block in enumerate(blocks):
        gap += schedule.source(stage, block) is not None
        holds[gap, places[place]] += 1
        gap += schedule.target(stage, block) is not None
    for rank in schedule.ranks[stage].ravel()[:4].tolist():
        counts = _between(kinds[starts[rank] : starts[rank + 1]], items)
        seen = counts >= 0
        if not (counts > 0).any():
            continue
        inner = seen & holds.any(axis=1)
        inner[[0, -1]] &= np.linalg.matrix_rank(holds[1:-1][seen[1:-1]]) < np.linalg.matrix_rank(holds[seen])
        each = np.floor(np.linalg.lstsq(holds[inner], counts[inner], rcond=None)[0] + 1e-6).astype(int)
        for gap in np.flatnonzero(inner).tolist():  # what cannot be shared equally is the last kind's
            last = np.flatnonzero(holds[gap])[-1]
            each[last] += (counts[gap] - holds[gap] @ each) // holds[gap, last]
        more = np.where(seen, counts - holds @ each, 0)
        if (each < 0).any() or not each.any() or more[1:-1].any() or (more < 0).any() or len(items) == 0 and more.any():
            gap = int(np.flatnonzero(inner)[0])
            raise ScheduleError(
                f"the schedule {schedule} doesn't fit: rank {rank} (stage {stage}) makes {counts[gap]} calls on its TP"
                " group between two others, and should make the same number each time in each of"
                f" {holds[gap].sum()} blocks"
            )
        found = np.append(each[places], more[-1])
        found[0] += more[0]
        return tuple(found.tolist())
    return None


def _between(kinds: np.ndarray, items: Sequence[Item]) -> np.ndarray:
    """Return how many TP calls there are before each message of an iteration and after its last message. The iteration
    with the fewest counts; -1: none was recorded there. Calls before the first iteration are not used."""
    sequence = _walk(np.where(kinds == TP, OTHER, kinds), items)
    at = np.flatnonzero(sequence.item != NONE)
    made = np.diff(np.cumsum(kinds == TP)[at])
    item = np.where(sequence.item[at] == REDUCING, len(items), sequence.item[at])
    before = np.where(item[:-1] == len(items), -1, item[:-1])
    # without messages there are only reductions, and the calls between them separate the iterations
    follows = item[1:] == before + 1 if items else made > 0
    found = np.full(len(items) + 1, np.iinfo(np.int64).max)
    np.minimum.at(found, item[1:][follows], made[follows])
    return np.where(found == np.iinfo(np.int64).max, -1, found)


@functools.lru_cache(maxsize=256)
def _items(schedule: Schedule, stage: int, layers: tuple[int, ...]) -> tuple[Item, ...]:
    found = []
    for place, block in enumerate(schedule.blocks_of(stage)):
        if schedule.source(stage, block) is not None:
            found.append(Item(RECV, place))
        found += [Item(TP, place, layer) for layer in range(layers[place])]
        if schedule.target(stage, block) is not None:
            found.append(Item(SEND, place, LAST))
    found += [Item(TP, schedule.blocks - 1, layers[-2] + more) for more in range(layers[-1])]
    return tuple(found)


def _walk(kinds: np.ndarray, items: Sequence[Item], synced: bool = True) -> CallSequence:
    """Compare calls with a stage's pattern. synced: the first call is at the begin of an iteration. Otherwise the walk
    starts at the first reduction."""
    pattern = [item.kind for item in items]
    size = len(pattern)
    iterations, found = np.full(len(kinds), NONE, np.int32), np.full(len(kinds), NONE, np.int32)
    place, iteration, reducing, strays, first_stray = 0, 0, False, 0, -1
    for i, kind in enumerate(kinds.tolist()):
        if kind == OTHER or not synced and kind != REDUCE:
            continue
        if kind == REDUCE:
            if not synced:
                synced, place = True, size
            if not size and reducing:
                iteration += 1
            if place + 2 >= size and place or not size:
                reducing = True
                iterations[i], found[i] = iteration, REDUCING
            continue
        if reducing or place == size:
            place, iteration, reducing = 0, iteration + 1, False
        if place < size and pattern[place] == kind:
            pass
        elif place + 1 < size and pattern[place] == RECV and pattern[place + 1] == kind:
            place += 1  # a Recv was left out
        else:
            strays += 1
            first_stray = i if first_stray < 0 else first_stray
            continue
        iterations[i], found[i] = iteration, place
        place += 1
    return CallSequence(kinds, iterations, found, strays, first_stray)


def _counted(trace: Trace, sequence: CallSequence, start: int, reduction: int) -> CallSequence:
    """Return the sequence of a rank with lost calls, with its iterations numbered by the SEQ of its first reduction. An
    iteration has as many calls on that communicator as there are until the rank's next call of another kind."""
    run = reduction
    while run < len(sequence.item) and sequence.item[run] == REDUCING:
        run += 1
    first = trace.events[start + reduction]
    comm, seq = first["comm"], int(first["context"])
    per_iteration = max(int((trace.events["comm"][start + reduction : start + run] == comm).sum()), 1)
    before = (seq - 1) // per_iteration
    iteration = np.where(sequence.iteration == NONE, NONE, sequence.iteration + before)
    return CallSequence(sequence.kinds, iteration, sequence.item, sequence.strays, sequence.first_stray)


def _check(labels: Labels, kinds: np.ndarray) -> None:
    """Raise ScheduleError if the schedule does not fit, that is, if more than a few calls have no place in it."""
    seen = set()
    for rank, sequence in enumerate(labels.sequences):
        if sequence is None or id(sequence) in seen:
            continue
        seen.add(id(sequence))
        calls = int(((sequence.kinds != OTHER) & (sequence.kinds != REDUCE)).sum())
        if sequence.strays > STRAY * max(calls, 1) and sequence.strays > 2:
            stage = int(labels.schedule.places[rank, 0])
            event = labels.trace.events[labels.starts[rank] + sequence.first_stray]
            before = np.flatnonzero(sequence.item[: sequence.first_stray] >= 0)
            at = int(sequence.item[before[-1]]) + 1 if len(before) else 0
            items = labels.items[stage]
            wanted = (
                {RECV: "a Recv", SEND: "a Send", TP: "a collective of its TP group"}[items[at % len(items)].kind]
                if items
                else "only collectives of larger groups"
            )
            raise ScheduleError(
                f"the schedule {labels.schedule} doesn't fit: rank {rank} (stage {stage}) calls {_name(event)} as its "
                f"call {sequence.first_stray}, where {wanted} should be"
                f" ({sequence.strays} of {calls} calls fit nowhere)"
            )


def _name(event: np.void) -> str:
    name = Op(int(event["op"])).name.capitalize()
    return f"MPI_{name}" + (f" with rank {event['peer']}" if event["peer"] >= 0 else "")


def infer(trace: Trace) -> Schedule:
    """Return the schedule that fits the trace. Raises ScheduleError if none fits."""
    return inferred(trace).schedule


def inferred(trace: Trace) -> Labels:
    """Return the labels of all calls by the schedule that fits the trace. Raises ScheduleError if none fits."""
    events = trace.events
    sends = events[_CLASS[events["op"]] == SEND]
    sends = sends[sends["peer"] >= 0]
    edges = Counter(zip(sends["rank"].tolist(), sends["peer"].tolist(), strict=True))
    chains = _components(trace.size, list(edges))
    pp = Counter(len(chain) for chain in chains).most_common(1)[0][0]
    if any(len(chain) != pp for chain in chains):
        raise ScheduleError(
            f"no schedule can be seen: groups of ranks that send to each other have {min(map(len, chains))} to "
            f"{max(map(len, chains))} members"
        )
    for tp in _tp_sizes(trace, pp):
        dp, rest = divmod(trace.size, tp * pp)
        if rest:
            continue
        for candidate in _candidates(trace, tp, pp, dp, chains, edges):
            if edges.keys() != _edges(candidate):
                continue
            try:
                labels = label(trace, candidate)
            except ScheduleError:
                continue
            if sum(s.strays for s in {id(s): s for s in labels.sequences if s is not None}.values()) == 0:
                return labels
    raise ScheduleError(
        "no schedule can be seen in the communication of these ranks (give one with --schedule, or analyse without)"
    )


def _edges(schedule: Schedule) -> set[tuple[int, int]]:
    """Return which rank sends to which rank in a schedule. This excludes a ring of messages, which many programs have:
    it is no pipeline, although each of its ranks receives, sends and reduces like a stage."""
    between = {
        (source[0], stage)
        for stage in range(schedule.pp)
        for block in schedule.blocks_of(stage)
        if (source := schedule.source(stage, block)) is not None
    }
    return {
        edge
        for a, b in between
        for edge in zip(schedule.ranks[a].ravel().tolist(), schedule.ranks[b].ravel().tolist(), strict=True)
    }


def _components(size: int, edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the groups of connected ranks, each in ascending order."""
    root = list(range(size))

    def find(rank: int) -> int:
        while root[rank] != rank:
            root[rank] = root[root[rank]]
            rank = root[rank]
        return rank

    for a, b in edges:
        root[find(a)] = find(b)
    groups: dict[int, list[int]] = {}
    for rank in range(size):
        groups.setdefault(find(rank), []).append(rank)
    return list(groups.values())


def _tp_sizes(trace: Trace, pp: int) -> list[int]:
    """Return the sizes of communicators on which collectives are called, the most frequently used first, and then 1."""
    events = trace.events
    collective = np.isin(events["op"], (Op.ALLREDUCE, Op.ALLGATHER, Op.REDUCE_SCATTER))
    calls = np.bincount(events["comm"][collective & (events["comm"] >= 0)], minlength=len(trace.comms))
    per_size: Counter[int] = Counter()
    for comm, count in zip(trace.comms, calls.tolist(), strict=True):
        if count and 1 < len(comm.members) < trace.size:
            per_size[len(comm.members)] += count
    return [*(size for size, _ in per_size.most_common()), 1]


def _candidates(
    trace: Trace, tp: int, pp: int, dp: int, chains: list[list[int]], edges: Counter[tuple[int, int]]
) -> list[Schedule]:
    """Return the schedules that could have these chains, the simplest first."""
    order = next(
        (
            o
            for o in ("tp-dp-pp", "tp-pp-dp")
            if sorted(map(tuple, Schedule(tp, pp, dp, order=o).ranks.reshape(pp, -1).T.tolist()))
            == sorted(map(tuple, chains))
        ),
        None,
    )
    if order is None:
        return []
    if pp == 1:
        return [Schedule(tp, pp, dp, order=order)]
    first = Schedule(tp, pp, dp, order=order).ranks[:, 0, 0]
    # one request and one reply are no pipeline
    micro = [count for count in _first_period(trace, int(first[0]), tp, pp) if count > 1 or tp > 1 or pp > 2]
    found = []
    if pp == 2 or not edges[int(first[0]), int(first[-1])]:
        found += [Schedule(tp, pp, dp, m, kind, order=order) for m in micro for kind in ("1f1b", "gpipe")]
    for sends in micro:
        for chunks in range(2, 9):
            m, rest = divmod(sends, 2 * chunks - 1)
            if not rest and m and m % pp == 0:
                found.append(Schedule(tp, pp, dp, m, "interleaved", chunks, order))
    return found


def _first_period(trace: Trace, rank: int, tp: int, pp: int) -> list[int]:
    """Return how many messages the first stage sends in an iteration: between reductions, or until its sends and
    receives repeat. The list is empty if this cannot be seen. Two ranks that only send to each other are no
    pipeline."""
    lo, hi = np.searchsorted(trace.events["rank"], [rank, rank + 1])
    events = trace.events[lo:hi]
    kinds = _CLASS[events["op"]].copy()
    kinds[np.isin(events["op"], (Op.WAIT, Op.WAITALL)) & (events["request"] > 0)] = RECV
    kinds[(events["flags"] & Flag.NONBLOCKING).astype(bool) & (kinds == RECV)] = OTHER
    sizes = np.array([len(comm.members) for comm in trace.comms] + [0])
    kinds[(kinds == REDUCE) & (sizes[events["comm"]] == tp)] = OTHER
    kinds = kinds[kinds != OTHER]
    reductions = np.flatnonzero(kinds == REDUCE)
    between = [int((kinds[a + 1 : b] == SEND).sum()) for a, b in zip(np.r_[-1, reductions], reductions, strict=False)]
    if between := [count for count in between if count]:
        return [Counter(between).most_common(1)[0][0]]
    if pp == 2:
        return []
    text = kinds.tobytes()
    for period in range(1, len(text) // 2 + 1):
        if text == (text[:period] * (len(text) // period + 1))[: len(text)]:
            sends = text[:period].count(SEND)  # none if it only receives
            return [sends] if sends else []
    return []
