"""The blocks of one iteration as a graph: longest path, slack, critical path and counterfactuals.

A vertex is one block (schedule.py) on all ranks of one tensor-parallel group. A block waits for the block before it on
its ranks, and for the message of another stage. If a stage's sends are synchronous (MPI_Issend, large messages), then a
block also waits before it sends: the previous message from this stage to the same stage in the same direction must have
been received first. All replicas have the same graph. So a level of the graph is a few vertices, each an array over
[replica, shard], and the longest path through 4096 ranks takes some hundreds of numpy calls.

A way is the sequence of messages from one stage to another in one direction (forward or backward). A message is
identified by the vertex that waits for it.

Invariants
 1. Times are seconds from the iteration's start, float64. numpy.inf: it never happens.
 2. A block's TP collectives divide its work into segments. compute[block, k, replica, shard] is the work before its
    k-th collective; the last k is the work after the last collective. A collective begins when the last shard has
    entered it, and takes collective[block, k, replica].
 3. After its last block a rank computes for `closing`. Then it joins the gradient reduction over its replicas, and then
    the norm over all ranks. The norm ends the iteration.

Limits, because no call lies between two pieces of work; verdicts name both:
 1. The first stage's optimizer is part of its first block. A first stage that stops between the optimizer and the first
    forward pass is reported in the optimizer.
 2. Without TP, a last stage's forward and backward pass are one block. So are a first stage's backward pass and its
    next forward pass.
 3. The wait of a blocking Send for its receiver (rendezvous) is no edge.
 4. A host that has been slow since the first iteration is found only if its ranks have peers (same stage) on other
    hosts.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np

from .schedule import Schedule


@dataclass(frozen=True)
class Sizes:
    """Bytes that are transferred.

    message: [B, D, T], of the message that a block waits for.
    collective: [B, K - 1, D].
    reduce: [S, T], of the gradient reduction.
    """

    message: np.ndarray
    collective: np.ndarray
    reduce: np.ndarray

    def replicas(self, which: np.ndarray | list[int]) -> Sizes:
        """Return the sizes of these replicas only, as Timing.replicas does."""
        return Sizes(self.message[:, which], self.collective[:, :, which], self.reduce)


@dataclass(frozen=True)
class Timing:
    """The durations of the parts of one iteration, in seconds.

    B = pp * blocks vertices; vertex = stage * blocks + place in the stage's order. K: segments of a block. S: stages,
    D: replicas, T: shards.

    compute: [B, K, D, T], the work of each segment.
    collective: [B, K - 1, D], from the last arrival to the end.
    transfer: [B, D, T], of the message that a block waits for, from its Send.
    landing: [B, D, T], of the same message from its Recv, if it was sent before the Recv. 0 if the message may have
        arrived already, or if there is none. It equals the transfer if the message moves only after the Recv
        (rendezvous).
    send: [B, D, T], time in the call that passes the block's result on.
    ready: [S, D, T], when each rank was ready for its first block.
    closing: [S, D, T], work before the gradient reduction.
    reduce: [S, T], of the reduction, from the last arrival to the end.
    norm: of the calls after the reduction.
    release: [B, D, T], of the message that a block waits for: from its arrival to the end of its sender's wait for it.
        -inf: the sender doesn't wait for it. None: no sender waits for a message.
    sizes: bytes of what is transferred. None: sizes are always the same.
    """

    compute: np.ndarray
    collective: np.ndarray
    transfer: np.ndarray
    landing: np.ndarray
    send: np.ndarray
    ready: np.ndarray
    closing: np.ndarray
    reduce: np.ndarray
    norm: float = 0.0
    release: np.ndarray | None = None
    sizes: Sizes | None = None

    def replicas(self, which: np.ndarray | list[int]) -> Timing:
        """Return the timing of these replicas only, in this order. A replica may be given more than once."""
        return replace(
            self, compute=self.compute[:, :, which], collective=self.collective[:, :, which],
            transfer=self.transfer[:, which], landing=self.landing[:, which],
            send=self.send[:, which], ready=self.ready[:, which], closing=self.closing[:, which],
            release=None if self.release is None else self.release[:, which],
            sizes=None if self.sizes is None else self.sizes.replicas(which),
        )  # fmt: skip


@dataclass(frozen=True)
class Times:
    """Begin and end of the blocks of a Timing.

    begin: [B, D, T], when a block's ranks and its message are ready.
    end: [B, D, T], when its result is passed on.
    replicas: [D], the end of each replica.
    makespan: the end of the iteration.
    """

    begin: np.ndarray
    end: np.ndarray
    replicas: np.ndarray
    makespan: float


@dataclass(frozen=True)
class Step:
    """One block of the critical path, on the rank that entered the block's first collective last.

    begins, ends: whether the path goes through the block's begin, and through its end. It goes through only one of them
    where a sender waits for its previous message. There the path leaves the block that receives that message at its
    begin, and enters the block that sends the next message at its end.
    """

    vertex: int
    stage: int
    place: int
    replica: int
    shard: int
    begins: bool = True
    ends: bool = True

    @property
    def whole(self) -> bool:
        """Return whether the block's work is on the path."""
        return self.begins and self.ends


class Graph:
    """The graph of a schedule, in levels.

    source[vertex]: the vertex whose message it waits for; -1: none.
    target[vertex]: the vertex that waits for its message; -1: none.
    ways: for each way its messages in the order of sending, as an array.
    held[vertex]: the previous message on the way of this vertex's own message; -1: none.
    holder[message]: the vertex that sends the next message on the same way; -1: none.
    final[stage]: the last message of each way from this stage.
    levels: arrays of vertices, in an order in which each vertex's predecessors come first.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.blocks = schedule.blocks
        self.count = schedule.pp * self.blocks
        self.source = np.full(self.count, -1)
        for stage in range(schedule.pp):
            for place, block in enumerate(schedule.blocks_of(stage)):
                source = schedule.source(stage, block)
                if source is not None:
                    self.source[stage * self.blocks + place] = source[0] * self.blocks + schedule.place_of(*source)
        self.target = np.full(self.count, -1)
        has = self.source >= 0
        self.target[self.source[has]] = np.flatnonzero(has)
        ways: dict[tuple[int, int, bool], list[int]] = {}
        for vertex in np.flatnonzero(self.target >= 0).tolist():
            stage, place = divmod(vertex, self.blocks)
            message = int(self.target[vertex])
            ways.setdefault((stage, message // self.blocks, schedule.blocks_of(stage)[place].backward), []).append(
                message
            )
        self.ways = [np.array(way) for way in ways.values()]
        self.final = [
            [way[-1] for (sender, _, _), way in ways.items() if sender == stage] for stage in range(schedule.pp)
        ]
        self.held, self.holder = np.full((2, self.count), -1)
        for way in self.ways:
            self.held[self.source[way[1:]]] = way[:-1]
            self.holder[way[:-1]] = self.source[way[1:]]
        self.levels = self._levels()

    def _levels(self) -> list[np.ndarray]:
        """Return the levels. The predecessors of a vertex are in levels before its own. One exception: the block that
        receives the previous message of a way may be in the same level as the block that sends the next one."""
        level = np.full(self.count, -1)
        open_, current = np.arange(0, self.count, self.blocks), 0  # the next block of each stage
        levels = []
        ends = open_ + self.blocks
        while (left := open_ < ends).any():
            heads = open_[left]
            source = self.source[heads]
            now = heads[(source < 0) | (level[source] >= 0)]
            while len(now):
                held = self.held[now]
                free = (held < 0) | (level[held] >= 0) | np.isin(held, now)
                if free.all():
                    break
                now = now[free]
            if not len(now):
                raise AssertionError(f"the schedule {self.schedule} waits for itself")
            level[now] = current
            open_[now // self.blocks] += 1
            levels.append(now)
            current += 1
        return levels

    def times(self, timing: Timing) -> Times:
        """Compute the longest path to each block, in one pass over the levels."""
        begin, end = self._forward(timing)
        replicas = self._left(timing, begin, end).max(axis=(0, 2)) + timing.norm
        return Times(begin, end, replicas, float(replicas.max()))

    def replica_ends(self, timing: Timing) -> np.ndarray:
        """Return only the ends of the replicas, [D], as in `times`."""
        return self._left(timing, *self._forward(timing)).max(axis=(0, 2)) + timing.norm

    def come(self, timing: Timing, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return when each rank enters the gradient reduction: [S, D, T]."""
        return np.stack([times[-1] for times in self.sent(timing, begin, end)]) + timing.closing

    def sent(self, timing: Timing, begin: np.ndarray, end: np.ndarray) -> list[list[np.ndarray]]:
        """Return for each stage a list of arrays [D, T]: when its ranks have sent their last message, and then when
        they have also waited for the last message of each way (`final`)."""
        found = []
        for stage, messages in enumerate(self.final):
            last = (stage + 1) * self.blocks - 1
            times = [end[last] + timing.send[last]]
            if timing.release is not None:
                for message in messages:
                    times.append(_released(times[-1], begin[message], timing.release[message]))
            found.append(times)
        return found

    def _left(self, timing: Timing, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return when each rank would leave the gradient reduction if its replica were the last to enter: [S, D, T]."""
        return self.come(timing, begin, end) + timing.reduce[:, None, :]

    def _forward(self, timing: Timing) -> tuple[np.ndarray, np.ndarray]:
        begin = np.empty_like(timing.transfer)
        # when its message leaves; its ranks are free `send` later (`done`)
        end = np.empty_like(timing.transfer)
        head, middle, tail = work(timing)
        release = timing.release
        done = np.empty_like(end)
        for level in self.levels:
            first = level % self.blocks == 0
            at = np.where(first[:, None, None], timing.ready[level // self.blocks], done[level - 1])
            source = self.source[level]
            waits = source >= 0
            if waits.any():
                own = level[waits]
                # A transfer of -inf means that the block does not wait for the message. If the message is also never
                # sent (end is inf), their sum is nan, which fmax ignores.
                at[waits] = np.fmax(at[waits] + timing.landing[own], end[source[waits]] + timing.transfer[own])
            begin[level] = at
            at = at + head[level]
            if middle is not None:
                at = (latest(at) + middle[level])[..., None] + tail[level]
            if release is not None:
                held = self.held[level]
                holds = held >= 0
                at[holds] = _released(at[holds], begin[held[holds]], release[held[holds]])
            end[level] = at
            done[level] = at + timing.send[level]
        return begin, end

    def remaining(self, timing: Timing) -> np.ndarray:
        """Return the longest path from each block's begin to the end of the iteration: [B, D, T]."""
        # from each block's begin, and from its end
        left, rest = np.empty_like(timing.transfer), np.empty_like(timing.transfer)
        head, middle, tail = work(timing)
        release = timing.release
        closing = timing.closing + timing.reduce[:, None, :] + timing.norm
        final = {}
        if release is not None:
            for stage, messages in enumerate(self.final):
                for message in reversed(messages):
                    final[message] = release[message] + closing[stage]
                    closing[stage] += np.maximum(release[message], 0)
        for level in reversed(self.levels):
            last = level % self.blocks == self.blocks - 1
            following = np.minimum(level + 1, self.count - 1)
            after = (
                np.where(
                    last[:, None, None], closing[level // self.blocks], timing.landing[following] + left[following]
                )
                + timing.send[level]
            )
            target = self.target[level]
            sends = target >= 0
            if sends.any():
                after[sends] = np.maximum(after[sends], left[target[sends]] + timing.transfer[target[sends]])
            rest[level] = after
            if release is not None:
                held = self.held[level]
                after[held >= 0] += np.maximum(release[held[held >= 0]], 0)
            if middle is not None:
                after = (latest(after + tail[level]) + middle[level])[..., None]
            left[level] = after + head[level]
            if release is not None:
                taken = level[self.holder[level] >= 0]
                left[taken] = np.maximum(left[taken], release[taken] + rest[self.holder[taken]])
                for message in final.keys() & set(level.tolist()):
                    left[message] = np.maximum(left[message], final[message])
        return left

    def slack(self, timing: Timing, times: Times | None = None) -> np.ndarray:
        """Return by how much each block could begin later without delaying the end of the iteration: [B, D]. It is 0 on
        the critical path."""
        times = times or self.times(timing)
        return (times.makespan - times.begin - self.remaining(timing)).min(axis=-1)

    def critical(self, timing: Timing, times: Times | None = None) -> list[Step]:
        """Return the critical path, from its first block to its last."""
        times = times or self.times(timing)
        last = self._left(timing, times.begin, times.end)
        stage, replica, shard = (int(i) for i in np.unravel_index(int(last.argmax()), last.shape))
        begin, end = times.begin[:, replica], times.end[:, replica]
        vertex, ends = (stage + 1) * self.blocks - 1, True
        done = end[vertex, shard] + timing.send[vertex, replica, shard]
        if timing.release is not None:
            for message in self.final[stage]:
                if (released := begin[message, shard] + timing.release[message, replica, shard]) > done:
                    vertex, ends, done = message, False, released
        head, middle, _ = work(timing)
        path = []
        while True:
            held = int(self.held[vertex])
            begins = not (
                ends
                and timing.release is not None
                and held >= 0
                and begin[held, shard] + timing.release[held, replica, shard] >= end[vertex, shard]
            )
            if begins and ends and middle is not None:
                shard = int((begin[vertex] + head[vertex, replica]).argmax())
            stage, place = divmod(vertex, self.blocks)
            path.append(Step(vertex, stage, place, replica, shard, begins, ends))
            if not begins:
                vertex, ends = held, False
                continue
            source = int(self.source[vertex])
            arrival = end[source, shard] + timing.transfer[vertex, replica, shard] if source >= 0 else -np.inf
            landing = timing.landing[vertex, replica, shard]
            if place and end[vertex - 1, shard] + timing.send[vertex - 1, replica, shard] + landing >= arrival:
                vertex -= 1
            elif source >= 0 and arrival >= timing.ready[stage, replica, shard] + landing:
                vertex = source
            else:
                return path[::-1]
            ends = True

    def without(self, times: Times, changed: Timing, replicas: np.ndarray | list[int]) -> float:
        """Return the counterfactual: the length of the iteration if its replicas `replicas` were as in `changed`.
        `changed` contains only those replicas."""
        others = np.delete(times.replicas, replicas)
        return float(max(self.replica_ends(changed).max(), others.max(initial=-np.inf)))


def work(timing: Timing) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Return the work of each block in three parts: before its first collective [B, D, T]; from there to the end of its
    last collective [B, D], None without collectives; after that [B, D, T]."""
    segments = timing.compute.shape[1]
    if segments == 1:
        return timing.compute[:, 0], None, np.zeros(())
    middle = timing.collective.sum(axis=1)
    if segments > 2:
        middle = middle + latest(timing.compute[:, 1:-1]).sum(axis=1)
    return timing.compute[:, 0], middle, timing.compute[:, -1]


def _released(at: np.ndarray, arrived: np.ndarray, release: np.ndarray) -> np.ndarray:
    """Return when ranks may go on that wait, from `at` on, until their message was received. arrived: when the
    receiving block began."""
    return np.maximum(at + np.maximum(release, 0), arrived + release)


def latest(times: np.ndarray) -> np.ndarray:
    """Return the maximum over the last axis. That axis is short, so going column by column is ten times as fast as
    numpy's reduction."""
    return functools.reduce(np.maximum, [times[..., shard] for shard in range(times.shape[-1])])


@functools.lru_cache(maxsize=64)
def graph_of(schedule: Schedule) -> Graph:
    """Return the graph of a schedule. It is made once for each schedule."""
    return Graph(schedule)
