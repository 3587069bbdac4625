"""Simulates a training job: the calls that its ranks would have recorded, with the requested faults, and the truth
about them.

For each micro-batch a stage makes a Recv, forward or backward work divided by Allreduces of the TP group, and a Send.
An iteration ends with an Allreduce of the DP group and one of all ranks (the norm of the gradients), and then the
optimizer. The events are those that a recording would have, including open calls if the job hangs. All ranks of one
level of the schedule's graph (trace/model/graph.py) advance in one step of numpy. A time of infinity means never.

A Send returns when its message is on its way. If the message can never arrive, the Send stays open, as that of a large
message does. With synchronous messages it is an Issend instead, with a Wait for it before the next message that goes
the same way, or at the iteration's end. osu_bench/trace/pipeline.py sends like that.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from ...trace.host import activity
from ...trace.model.events import EVENT, NO_PEER, OPEN, Communicator, Flag, Op, Rank, Trace
from ...trace.model.graph import Graph, Timing, graph_of
from ...trace.model.schedule import Schedule
from ...trace.model.verdict import Cause, Phase

WORLD = 0  # index of MPI_COMM_WORLD in Trace.comms
POLL = 1e-6  # seconds in a call that waits for nothing
SETTLED = 5.0  # seconds from the last event of a job that hangs to the moment of its trace


class Kind(enum.Enum):
    """The kind of a fault."""

    SKIP_RECV = "skipped Recv"
    SPIN = "spin"  # for ever
    SLEEP = "sleep"  # for ever
    STOP = "SIGSTOP"
    DEAD = "killed"
    DROP = "dropped link"  # a transfer that never ends
    COMPUTE = "extra compute"  # `seconds` more
    NODE = "throttled node"  # all work on the rank's host takes `factor` times as long
    RANK = "throttled rank"
    LINK = "throttled link"  # all transfers to and from the rank take `factor` times as long

    @property
    def hangs(self) -> bool:
        """Return whether nothing goes on after this fault."""
        return self in (Kind.SKIP_RECV, Kind.SPIN, Kind.SLEEP, Kind.STOP, Kind.DEAD, Kind.DROP)


@dataclass(frozen=True)
class Fault:
    """A fault, and its place.

    phase: TRANSFER: the fault is in a message; `backward` says in which.
    segment: the piece of the block's work, which is before its segment-th collective.
    seconds: of additional work.
    factor: of kinds that change durations by a factor. They last from `iteration` until before `until`; None: to the
        end.
    """

    kind: Kind
    rank: int
    iteration: int = 0
    micro: int = 0
    phase: Phase = Phase.FORWARD
    backward: bool = False
    chunk: int = 0
    segment: int = 0
    seconds: float = 0.0
    factor: float = 1.0
    until: int | None = None

    @property
    def cause(self) -> Cause:
        """The cause that an analysis should find."""
        return {
            Kind.SKIP_RECV: Cause.MISSING, Kind.STOP: Cause.STOPPED, Kind.DEAD: Cause.DEAD, Kind.DROP: Cause.NETWORK,
            Kind.LINK: Cause.NETWORK,
        }.get(self.kind, Cause.COMPUTE)  # fmt: skip


@dataclass(frozen=True)
class Model:
    """A job; times in seconds, sizes in bytes. The default work is that of the MegaTrace paper's section V-A (a forward
    pass of 40 ms).

    layers: TP collectives of a block.
    forward, backward: work of one block.
    noise: relative deviation of each piece of work and each transfer.
    chips: relative permanent deviation between ranks.
    hosts: number of ranks on each host.
    synchronous: messages are synchronous, not eager.

    These make stages differ, as in Megatron-LM:

    data: number of Broadcasts in the TP group before a forward pass of the first stage, and of the last.
    embedding: number of additional collectives in the first chunk's forward pass.
    loss: number of additional collectives in the last chunk's forward and backward pass.
    sequences: deviation (of the logarithm) of the work of a micro-batch of a replica; it is the same on all stages.
    balance: relative work of each stage.
    """

    schedule: Schedule
    iterations: int = 6
    layers: int = 4
    forward: float = 0.040
    backward: float = 0.080
    optimizer: float = 0.010
    closing: float = 0.002
    noise: float = 0.02
    chips: float = 0.002
    latency: float = 10e-6
    bandwidth: float = 40e9
    activation: int = 32 << 20
    partial: int = 8 << 20
    gradient: int = 512 << 20
    hosts: int = 8
    uncertainty: float = 0.0
    synchronous: bool = False
    data: int = 0
    embedding: int = 0
    loss: tuple[int, int] = (0, 0)
    sequences: float = 0.0
    balance: tuple[float, ...] = ()

    @property
    def layers_of(self) -> np.ndarray:
        """TP collectives of each vertex of the schedule's graph."""
        last, final = self.schedule.pp - 1, self.schedule.chunks - 1
        more = {(0, 0, False): self.data + self.embedding}
        more[last, final, False] = more.get((last, final, False), 0) + self.data * bool(last) + self.loss[0]
        more[last, final, True] = self.loss[1]
        blocks = [
            (stage, block.chunk, block.backward)
            for stage in range(last + 1)
            for block in self.schedule.blocks_of(stage)
        ]
        return np.array([self.layers + more.get(block, 0) if self.schedule.tp > 1 else 0 for block in blocks])

    @property
    def host_of(self) -> np.ndarray:
        """Index of the host of each rank."""
        return np.arange(self.schedule.size) // self.hosts


@dataclass
class Run:
    """What a model did.

    timings: the exact timing of each iteration that ended.
    begins: when each iteration began, seconds; the end of the last iteration comes last.
    trace: None if only timings were asked for.
    """

    model: Model
    faults: tuple[Fault, ...]
    timings: list[Timing] = field(default_factory=list)
    begins: list[float] = field(default_factory=list)
    trace: Trace | None = None

    @property
    def lengths(self) -> np.ndarray:
        """Lengths of the iterations, seconds."""
        return np.diff(self.begins)


@dataclass
class _Calls:
    """Enter and exit times of one iteration's calls, seconds from `origin` on.

    recv, wait, send: [B, D, T]; wait: the Wait before a Send.
    tp: [B, L, D, T], collectives of the TP groups.
    final: for each stage, [D, T] arrays; the Waits for its last messages last from one of these times to the next.
    reduce, norm: [S, D, T].
    """

    origin: float
    recv: tuple[np.ndarray, np.ndarray]
    tp: tuple[np.ndarray, np.ndarray]
    wait: tuple[np.ndarray, np.ndarray]
    send: tuple[np.ndarray, np.ndarray]
    final: list[list[np.ndarray]]
    reduce: tuple[np.ndarray, np.ndarray]
    norm: tuple[np.ndarray, np.ndarray]


def positions(schedule: Schedule, phase: Phase, backward: bool) -> list[tuple[int, int, int]]:
    """Return (stage, chunk, micro) of all blocks that can have a fault of that phase: blocks with work, or, for
    TRANSFER, blocks with a message to send."""
    found = []
    for stage in range(schedule.pp):
        for block in schedule.blocks_of(stage):
            if block.backward == backward and (phase != Phase.TRANSFER or schedule.target(stage, block) is not None):
                found.append((stage, block.chunk, block.micro))
    return found


def simulate(model: Model, faults: Sequence[Fault] = (), seed: int = 0, events: bool = True) -> Run:
    """Simulate all iterations, or those up to the one in which the job hangs. The same seed makes the same noise, with
    faults and without."""
    run = Run(model, tuple(faults))
    schedule, graph = model.schedule, graph_of(model.schedule)
    shape = (schedule.pp, schedule.dp, schedule.tp)
    chips = 1 + model.chips * np.random.default_rng((seed, 1 << 40)).standard_normal(shape)
    ready = np.zeros(shape)
    begin = 0.0
    columns: list[_Calls] = []
    run.begins.append(0.0)
    for iteration in range(model.iterations):
        timing = _draw(model, graph, chips, np.random.default_rng((seed, iteration)), ready - begin)
        _apply(model, graph, timing, [fault for fault in faults if _acts(fault, iteration)])
        calls = _calls(graph, timing, begin)
        columns.append(calls)
        left = calls.norm[1] + begin
        if not np.isfinite(left).all():
            break
        run.timings.append(timing)
        begin = float(left.max())
        run.begins.append(begin)
        ready = left + model.optimizer * chips
    if events:
        run.trace = _trace(model, graph, columns, run.faults)
    return run


def snapshot(trace: Trace, now: int) -> Trace:
    """Return what was recorded up to a moment, ns. Calls that were entered later are left out, and calls that had not
    returned are open."""
    events = trace.events[trace.events["enter"] <= now].copy()
    events["exit"][events["exit"] > now] = OPEN
    return replace(trace, events=events, now=now)


def _acts(fault: Fault, iteration: int) -> bool:
    """Return whether a fault acts in this iteration."""
    if fault.kind in (Kind.NODE, Kind.RANK, Kind.LINK):
        return fault.iteration <= iteration and (fault.until is None or iteration < fault.until)
    return fault.iteration == iteration


def _draw(model: Model, graph: Graph, chips: np.ndarray, generator: np.random.Generator, ready: np.ndarray) -> Timing:
    """Return the timing of an iteration without faults."""
    schedule = model.schedule
    stages, replicas, shards = chips.shape
    count = model.layers_of
    layers = int(count.max())
    blocks = [block for stage in range(stages) for block in schedule.blocks_of(stage)]
    whole = np.array([model.backward if block.backward else model.forward for block in blocks]) / schedule.chunks
    if model.balance:
        whole = whole * np.repeat(model.balance, graph.blocks)

    def noisy(*size: int) -> np.ndarray:
        return 1 + np.abs(model.noise) * generator.standard_normal(size, dtype=np.float32).clip(-4, 4)

    compute = np.empty((graph.count, layers + 1, replicas, shards))
    pieces = max(layers, 1)
    compute[:, :pieces] = (
        (whole / np.maximum(count, 1))[:, None, None, None]
        * noisy(graph.count, pieces, replicas, shards)
        * np.repeat(chips, graph.blocks, axis=0)[:, None]
    )
    compute[:, pieces:] = 20e-6
    collective = (model.latency + model.partial / model.bandwidth) * noisy(graph.count, layers, replicas)
    if layers:
        absent = np.arange(layers) >= count[:, None]
        compute[:, :layers][absent], collective[absent] = 0, 0
    transfer = (model.latency + model.activation / model.bandwidth) * noisy(graph.count, replicas, shards)
    transfer[graph.source < 0] = 0
    if model.sequences:
        lengths = generator.lognormal(-(model.sequences**2) / 2, model.sequences, (schedule.micro, replicas))
        compute *= lengths[[block.micro for block in blocks]][:, None, :, None]
    send = np.where((graph.target >= 0)[:, None, None], POLL, 0.0) * np.ones((1, replicas, shards))
    closing = model.closing * noisy(stages, replicas, shards) * chips
    reduce = (
        (model.latency + model.gradient / model.bandwidth) * noisy(stages, shards)
        if replicas > 1
        else np.zeros((stages, shards))
    )
    release = np.zeros_like(transfer) if model.synchronous else None
    return Timing(
        compute, collective, transfer, np.zeros_like(transfer), send, ready, closing, reduce, 4 * model.latency, release
    )


def _apply(model: Model, graph: Graph, timing: Timing, faults: Sequence[Fault]) -> None:
    """Apply the faults to the timing."""
    schedule = model.schedule
    for fault in faults:
        stage, replica, shard = (int(i) for i in schedule.places[fault.rank])
        if fault.kind in (Kind.NODE, Kind.RANK):
            _slow(model, graph, timing, fault)
            continue
        own = slice(stage * graph.blocks, (stage + 1) * graph.blocks)
        if fault.kind is Kind.LINK:
            timing.transfer[own, replica, shard] *= fault.factor
            targets = graph.target[own][graph.target[own] >= 0]
            timing.transfer[targets, replica, shard] *= fault.factor
            continue
        vertex = _vertex(schedule, graph, stage, fault)
        if fault.kind is Kind.SKIP_RECV:
            source = int(graph.source[vertex])
            if source < 0:
                raise ValueError(f"rank {fault.rank} receives nothing for micro-batch {fault.micro}")
            timing.transfer[vertex, replica, shard] = -np.inf
            _never_taken(timing, source, vertex, replica, shard)
        elif fault.kind is Kind.DROP and fault.phase is Phase.TRANSFER:
            timing.transfer[graph.target[vertex], replica, shard] = np.inf
            _never_taken(timing, vertex, int(graph.target[vertex]), replica, shard)
        elif fault.kind is Kind.DROP:
            timing.collective[vertex, min(fault.segment, timing.collective.shape[1] - 1), replica] = np.inf
        else:
            segment = (
                timing.compute.shape[1] - 1
                if fault.phase is Phase.TRANSFER
                else min(fault.segment, max(timing.compute.shape[1] - 2, 0))
            )
            timing.compute[vertex, segment, replica, shard] += np.inf if fault.kind.hangs else fault.seconds
    if model.synchronous:
        np.maximum(timing.transfer, 0, out=timing.landing)


def _never_taken(timing: Timing, source: int, target: int, replica: int, shard: int) -> None:
    """Make the ranks that wait for the end of this message wait for ever."""
    if timing.release is None:
        timing.send[source, replica, shard] = np.inf
    else:
        timing.release[target, replica, shard] = np.inf


def _vertex(schedule: Schedule, graph: Graph, stage: int, fault: Fault) -> int:
    """Return the vertex of the block that a fault is in. Raises ValueError if there is none."""
    backward = fault.backward if fault.phase is Phase.TRANSFER else fault.phase is Phase.BACKWARD
    for place, block in enumerate(schedule.blocks_of(stage)):
        if (block.backward, block.chunk, block.micro) == (backward, fault.chunk, fault.micro):
            return stage * graph.blocks + place
    raise ValueError(f"no block of micro-batch {fault.micro}, chunk {fault.chunk}")


def _slow(model: Model, graph: Graph, timing: Timing, fault: Fault) -> None:
    """Slow down all ranks of the fault's host, or its rank."""
    host = model.host_of
    ranks = np.flatnonzero(host == host[fault.rank]) if fault.kind is Kind.NODE else [fault.rank]
    for stage, replica, shard in model.schedule.places[ranks]:
        timing.compute[stage * graph.blocks : (stage + 1) * graph.blocks, :, replica, shard] *= fault.factor
        timing.closing[stage, replica, shard] *= fault.factor


def _calls(graph: Graph, timing: Timing, origin: float) -> _Calls:
    """Return the times of all calls: those of the graph, and those between each block's begin and end."""
    times = graph.times(timing)
    done = times.end + timing.send
    called = np.empty_like(done)
    called[1:] = done[:-1]
    called[:: graph.blocks] = timing.ready
    tp = np.empty_like(timing.compute[:, 1:]), np.empty_like(timing.compute[:, 1:])
    at = times.begin
    for layer in range(tp[0].shape[1]):
        at = at + timing.compute[:, layer]
        tp[0][:, layer] = at
        at = np.broadcast_to((at.max(axis=-1) + timing.collective[:, layer])[..., None], at.shape)
        tp[1][:, layer] = at
    come = graph.come(timing, times.begin, times.end)
    left = np.broadcast_to((come.max(axis=1) + timing.reduce)[:, None], come.shape) if come.shape[1] > 1 else come
    return _Calls(
        origin,
        recv=(np.where(np.isneginf(timing.transfer), np.inf, called), times.begin),
        tp=tp,
        wait=(at + timing.compute[:, -1], times.end),
        send=(times.end, done),
        final=graph.sent(timing, times.begin, times.end),
        reduce=(come, left),
        norm=(left, np.full(left.shape, left.max() + timing.norm)),
    )


def _trace(model: Model, graph: Graph, columns: Sequence[_Calls], faults: Sequence[Fault]) -> Trace:
    schedule = model.schedule
    comms, tp_comm, dp_comm = _communicators(schedule)
    parts = []
    for iteration, calls in enumerate(columns):
        for stage in range(schedule.pp):
            parts.append(_events(model, graph, calls, stage, iteration, tp_comm, dp_comm))
    order = [
        parts[iteration * schedule.pp + stage] for stage in range(schedule.pp) for iteration in range(len(columns))
    ]
    # Each part is [replica * shard, calls]. A stage's iterations are put side by side, then the stages one below the
    # other, then ranks in order.
    rows = [
        np.concatenate(order[stage * len(columns) : (stage + 1) * len(columns)], axis=1) for stage in range(schedule.pp)
    ]
    for row in rows:
        row["seq"] = np.arange(1, row.shape[1] + 1)
    events = np.concatenate([row.ravel() for row in rows]) if schedule.order == "tp-dp-pp" else _by_rank(rows, schedule)
    enter, exit_ = events["enter"], events["exit"]
    hangs = any(fault.kind.hangs for fault in faults)
    if hangs:
        happened = enter != OPEN
        events = events[happened]
        enter, exit_ = events["enter"], events["exit"]
        events["seq"] = _counted(events["rank"])
    now = int(max(enter.max(), exit_.max())) + (int(SETTLED * 1e9) if hangs else 1)
    ranks = {
        rank: Rank(
            rank,
            host=f"node{rank // model.hosts:02}",
            pid=1000 + rank,
            uncertainty_ns=int(model.uncertainty * 1e9),
            process="R",
            cpu_share=1.0,
            ended=False,
        )
        for rank in range(schedule.size)
    }
    for fault in faults:
        if (
            state := {Kind.SLEEP: ("S", 0.0), Kind.STOP: ("T", 0.0), Kind.DEAD: ("dead", 0.0)}.get(fault.kind)
        ) is not None:
            ranks[fault.rank].process, ranks[fault.rank].cpu_share = state
            ranks[fault.rank].doing = activity.NOTHING
    return Trace(events, comms, schedule.size, ranks, now, job="simulated")


def _by_rank(rows: Sequence[np.ndarray], schedule: Schedule) -> np.ndarray:
    ordered: list[np.ndarray] = [np.empty(0, EVENT)] * schedule.size
    for row in rows:
        for calls in row:
            ordered[int(calls["rank"][0])] = calls
    return np.concatenate(ordered)


def _counted(ranks: np.ndarray) -> np.ndarray:
    """Number the elements 1, 2, ... within each run of equal values."""
    first = np.flatnonzero(np.r_[True, ranks[1:] != ranks[:-1]])
    return np.arange(len(ranks)) - np.repeat(first, np.diff(np.r_[first, len(ranks)])) + 1


def _communicators(schedule: Schedule) -> tuple[list[Communicator], np.ndarray, np.ndarray]:
    """Return WORLD, the TP groups and the DP groups; and for each rank the index of its TP group and of its DP
    group."""
    tp_groups = schedule.ranks.reshape(-1, schedule.tp)
    dp_groups = schedule.ranks.transpose(0, 2, 1).reshape(-1, schedule.dp)
    comms = [Communicator(1, 1, np.arange(schedule.size, dtype=np.int32), "MPI_COMM_WORLD")]
    index = []
    for groups, name in ((tp_groups, "tp"), (dp_groups, "dp")):
        of = np.empty(schedule.size, np.int32)
        of[groups] = (len(comms) + np.arange(len(groups)))[:, None]
        index.append(of)
        comms += [
            Communicator(2 + len(comms) + i, 2 + len(comms) + i, group, f"{name} {i}") for i, group in enumerate(groups)
        ]
    return comms, index[0], index[1]


def _events(
    model: Model, graph: Graph, calls: _Calls, stage: int, iteration: int, tp_comm: np.ndarray, dp_comm: np.ndarray
) -> np.ndarray:
    """Return the calls of all ranks of one stage in one iteration, in order: [ranks, calls]."""
    schedule = model.schedule
    ranks = schedule.ranks[stage].ravel()
    made, tp_places = _sequence(model, graph, calls, stage, iteration)
    dp_place = made.length
    if schedule.dp > 1:
        made.put(Op.ALLREDUCE, calls.reduce, (stage,), model.gradient)
    made.put(Op.ALLREDUCE, calls.norm, (stage,), 8)
    events = np.broadcast_to(made.template[: made.length], (len(ranks), made.length)).copy()
    events["rank"] = ranks[:, None]
    events["enter"], events["exit"] = (
        _ns(np.stack(times, axis=1) + calls.origin) for times in (made.enters, made.exits)
    )
    events["comm"][:, -1] = WORLD
    events["context"][:, -1] = iteration + 1
    for column, peer in made.peers:
        events["peer"][:, column] = schedule.ranks[peer].ravel()
        events["comm"][:, column] = WORLD
    if tp_places:
        events["comm"][:, tp_places] = tp_comm[ranks][:, None]
        events["context"][:, tp_places] = iteration * len(tp_places) + np.arange(1, len(tp_places) + 1)
    if schedule.dp > 1:
        events["comm"][:, dp_place] = dp_comm[ranks]
        events["context"][:, dp_place] = iteration + 1
    return events


class _Sequence:
    """The calls that each rank of a stage makes, in order.

    template: their fields that are the same for all ranks. enters, exits: their times, by rank. peers: the place of
    each call that has a peer, and the peer's stage.
    """

    def __init__(self, most: int) -> None:
        self.template = np.zeros(most, EVENT)
        self.length = 0
        self.enters: list[np.ndarray] = []
        self.exits: list[np.ndarray] = []
        self.peers: list[tuple[int, int]] = []

    def put(
        self,
        op: Op,
        times: Sequence[np.ndarray],
        where: tuple[int, ...],
        size: int,
        peer: int | None = None,
        tag: int = 0,
        flags: int = 0,
        request: int = 0,
    ) -> None:
        """Append a call. where: its place in `times`, which are enter and exit of all such calls."""
        self.template[self.length] = (0, 0, op, flags, 0, -1, NO_PEER, tag, 0, size, 0, 0, request, 0)
        self.enters.append(times[0][where].ravel())
        self.exits.append(times[1][where].ravel())
        if peer is not None:
            self.peers.append((self.length, peer))
        self.length += 1


def _sequence(model: Model, graph: Graph, calls: _Calls, stage: int, iteration: int) -> tuple[_Sequence, list[int]]:
    """Return the calls of a stage up to the end of its last block, and the places of those of its TP groups."""
    schedule, count = model.schedule, model.layers_of
    data = model.data if schedule.tp > 1 else 0
    made = _Sequence(_calls_of(model, graph, stage))

    def serial(vertex: int) -> int:
        return iteration * graph.blocks + vertex % graph.blocks + 1

    def wait(times: Sequence[np.ndarray], where: tuple[int, ...], message: int) -> None:
        made.put(Op.WAIT, times, where, 0, request=serial(int(graph.source[message])))

    tp_places = []
    for number, block in enumerate(schedule.blocks_of(stage)):
        vertex = stage * graph.blocks + number
        if (source := schedule.source(stage, block)) is not None:
            made.put(Op.RECV, calls.recv, (vertex,), model.activation, source[0], tag(schedule, block, stage))
        feeds = not block.backward and (
            stage == 0 and block.chunk == 0 or stage == schedule.pp - 1 and block.chunk == schedule.chunks - 1
        )
        for layer in range(count[vertex]):
            tp_places.append(made.length)
            made.put(Op.BCAST if feeds and layer < data else Op.ALLREDUCE, calls.tp, (vertex, layer), model.partial)
        if (target := schedule.target(stage, block)) is not None:
            if model.synchronous and graph.held[vertex] >= 0:
                wait(calls.wait, (vertex,), int(graph.held[vertex]))
            how = (Op.SSEND, Flag.NONBLOCKING, serial(vertex)) if model.synchronous else (Op.SEND, 0, 0)
            made.put(
                how[0],
                calls.send,
                (vertex,),
                model.activation,
                target[0],
                tag(schedule, target[1], target[0]),
                *how[1:],
            )
    for message, times in zip(graph.final[stage], pairwise(calls.final[stage]), strict=False):
        wait(times, (), message)
    return made, tp_places


def tag(schedule: Schedule, block: object, stage: int) -> int:
    """Return the tag of the message that a block of this stage waits for. It is unique in an iteration."""
    return schedule.place_of(stage, block)  # type: ignore[arg-type]


def _calls_of(model: Model, graph: Graph, stage: int) -> int:
    """Return an upper limit of the number of calls of a stage in an iteration."""
    return graph.blocks * (int(model.layers_of.max()) + 3) + len(graph.final[stage]) + 2


def _ns(seconds: np.ndarray) -> np.ndarray:
    """Convert seconds to nanoseconds. Time 0 becomes 1 s, and never becomes OPEN."""
    finite = np.isfinite(seconds)
    return np.where(finite, np.where(finite, seconds, 0) * 1e9 + 1e9, OPEN).astype(np.int64)
