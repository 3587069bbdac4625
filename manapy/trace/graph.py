"""The blocks of one iteration as a graph, level by level, and what its longest path says.

A vertex is a block (schedule.py) on all ranks of one tensor-parallel group. It waits for the block before it on its ranks and for the message of another stage.
All replicas have the same graph, so one level of it is a few vertices, each an array over [replica, shard], and the longest path through 4096 ranks is some
hundreds of numpy calls.

Invariants
 1. Times are seconds from the iteration's start, float64. numpy.inf: it never happens.
 2. A block's work is cut by its TP collectives: compute[block, k, replica, shard] is what comes before its k-th one, the last k what comes after the last.
    A collective begins when the last shard has come to it and takes collective[block, k, replica].
 3. After its last block a rank computes `closing`, joins the gradient reduction over its replicas, and then the norm over all ranks, with which an iteration ends.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np

from .schedule import Schedule


@dataclass(frozen=True)
class Timing:
    """What the parts of one iteration took, in seconds. B = pp * blocks vertices, vertex = stage * blocks + place in the stage's order; K = segments of a block.

    compute: [B, K, D, T]; collective: [B, K - 1, D], after the last arrival; transfer: [B, D, T], of the message that a block waits for;
    send: [B, D, T], in the call that passes its result on; ready: [S, D, T], when each rank was there for the first block;
    closing: [S, D, T], work before the gradient reduction; reduce: [S, T], of the reduction after the last arrival; norm: of what comes after it.
    """

    compute: np.ndarray
    collective: np.ndarray
    transfer: np.ndarray
    send: np.ndarray
    ready: np.ndarray
    closing: np.ndarray
    reduce: np.ndarray
    norm: float = 0.0

    def replicas(self, which: np.ndarray | list[int]) -> Timing:
        """Only these replicas, in this order; one may be there more than once."""
        return replace(
            self, compute=self.compute[:, :, which], collective=self.collective[:, :, which], transfer=self.transfer[:, which], send=self.send[:, which],
            ready=self.ready[:, which], closing=self.closing[:, which],
        )  # fmt: skip


@dataclass(frozen=True)
class Times:
    """When a Timing's blocks begin (their ranks and their message are there) and end (their result is passed on): [B, D, T]; end of each replica: [D]; of the iteration."""

    begin: np.ndarray
    end: np.ndarray
    replicas: np.ndarray
    makespan: float


@dataclass(frozen=True)
class Step:
    """One block of the critical path, on the rank that was the last to come to its first collective."""

    vertex: int
    stage: int
    place: int
    replica: int
    shard: int


class Graph:
    """The levels of a schedule's graph. source[vertex]: the vertex whose message it waits for, -1 for none."""

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
        self.levels = self._levels()

    def _levels(self) -> list[np.ndarray]:
        """Vertices whose predecessors are all in the levels before."""
        level = np.full(self.count, -1)
        open_, current = np.arange(0, self.count, self.blocks), 0  # the next block of each stage
        levels = []
        ends = open_ + self.blocks
        while (left := open_ < ends).any():
            heads = open_[left]
            source = self.source[heads]
            now = heads[(source < 0) | ((level[source] >= 0) & (level[source] < current))]
            if not len(now):
                raise AssertionError(f"the schedule {self.schedule} waits for itself")
            level[now] = current
            open_[now // self.blocks] += 1
            levels.append(now)
            current += 1
        return levels

    def times(self, timing: Timing) -> Times:
        """The longest path to each block: one pass over the levels."""
        begin, end = self._forward(timing)
        replicas = self._left(timing, end).max(axis=(0, 2)) + timing.norm
        return Times(begin, end, replicas, float(replicas.max()))

    def replica_ends(self, timing: Timing) -> np.ndarray:
        """Only the ends of the replicas, [D], as in `times`."""
        return self._left(timing, self._forward(timing)[1]).max(axis=(0, 2)) + timing.norm

    def _left(self, timing: Timing, end: np.ndarray) -> np.ndarray:
        """When each rank leaves the gradient reduction, were its replica the last to come: [S, D, T]."""
        last = slice(self.blocks - 1, None, self.blocks)
        return end[last] + timing.send[last] + timing.closing + timing.reduce[:, None, :]

    def _forward(self, timing: Timing) -> tuple[np.ndarray, np.ndarray]:
        begin = np.empty_like(timing.transfer)
        end = np.empty_like(timing.transfer)  # when its message leaves; `done`, when its ranks are free, is `send` later
        head, middle, tail = work(timing)
        done = np.empty_like(end)
        for level in self.levels:
            first = level % self.blocks == 0
            at = np.where(first[:, None, None], timing.ready[level // self.blocks], done[level - 1])
            source = self.source[level]
            waits = source >= 0
            if waits.any():
                at[waits] = np.maximum(at[waits], end[source[waits]] + timing.transfer[level[waits]])
            begin[level] = at
            at = at + head[level]
            if middle is not None:
                at = (_latest(at) + middle[level])[..., None] + tail[level]
            end[level] = at
            done[level] = at + timing.send[level]
        return begin, end

    def remaining(self, timing: Timing) -> np.ndarray:
        """The longest path from each block's begin to the end of the iteration: [B, D, T]."""
        left = np.empty_like(timing.transfer)
        head, middle, tail = work(timing)
        closing = timing.closing + timing.reduce[:, None, :] + timing.norm
        for level in reversed(self.levels):
            last = level % self.blocks == self.blocks - 1
            after = np.where(last[:, None, None], closing[level // self.blocks], left[np.minimum(level + 1, self.count - 1)]) + timing.send[level]
            target = self.target[level]
            sends = target >= 0
            if sends.any():
                after[sends] = np.maximum(after[sends], left[target[sends]] + timing.transfer[target[sends]])
            if middle is not None:
                after = (_latest(after + tail[level]) + middle[level])[..., None]
            left[level] = after + head[level]
        return left

    def slack(self, timing: Timing, times: Times | None = None) -> np.ndarray:
        """By how much each block could begin later without a later end of the iteration: [B, D]. 0 on the critical path."""
        times = times or self.times(timing)
        return (times.makespan - times.begin - self.remaining(timing)).min(axis=-1)

    def critical(self, timing: Timing, times: Times | None = None) -> list[Step]:
        """The critical path from its first block to its last."""
        times = times or self.times(timing)
        last = self._left(timing, times.end)
        stage, replica, shard = (int(i) for i in np.unravel_index(int(last.argmax()), last.shape))
        vertex = (stage + 1) * self.blocks - 1
        head, middle, _ = work(timing)
        path = []
        while vertex >= 0:
            if middle is not None:
                shard = int((times.begin[vertex, replica] + head[vertex, replica]).argmax())
            stage, place = divmod(vertex, self.blocks)
            path.append(Step(vertex, stage, place, replica, shard))
            source = int(self.source[vertex])
            arrival = times.end[source, replica, shard] + timing.transfer[vertex, replica, shard] if source >= 0 else -np.inf
            if place and times.end[vertex - 1, replica, shard] + timing.send[vertex - 1, replica, shard] >= arrival:
                vertex -= 1
            elif source >= 0 and arrival >= timing.ready[stage, replica, shard]:
                vertex = source
            else:
                vertex = -1
        return path[::-1]

    def without(self, times: Times, changed: Timing, replicas: np.ndarray | list[int]) -> float:
        """The iteration's length if its replicas `replicas` were as in `changed` (which has those only): the counterfactual."""
        others = np.delete(times.replicas, replicas)
        return float(max(self.replica_ends(changed).max(), others.max(initial=-np.inf)))


def work(timing: Timing) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Of each block: before the first collective [B, D, T], from there to the end of the last one [B, D] (None without collectives), after it [B, D, T]."""
    segments = timing.compute.shape[1]
    if segments == 1:
        return timing.compute[:, 0], None, np.zeros(())
    middle = timing.collective.sum(axis=1)
    if segments > 2:
        middle = middle + _latest(timing.compute[:, 1:-1]).sum(axis=1)
    return timing.compute[:, 0], middle, timing.compute[:, -1]


def _latest(times: np.ndarray) -> np.ndarray:
    """Maximum over the last axis, which is short: column by column is ten times as fast as numpy's reduction."""
    return functools.reduce(np.maximum, [times[..., shard] for shard in range(times.shape[-1])])


@functools.lru_cache(maxsize=64)
def graph_of(schedule: Schedule) -> Graph:
    """Made once for each schedule."""
    return Graph(schedule)
