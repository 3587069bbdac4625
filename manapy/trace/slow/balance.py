"""The time that a training job loses because its work is unequal although no rank is slow: unequal between stages, or
between micro-batches (sequence lengths).

The same work is spread evenly in the graph of each iteration (graph.py). First each block takes its average time over
iterations, replicas and shards. Then each stage takes the average time of stages. The lost time is that by which the
iterations would be shorter. For real jobs see Lin et al., "Understanding stragglers in large model training using
what-if analysis" (2025).

Invariants
 1. The total work stays the same: means are taken, not minima.
 2. Micro-batches are called unequal only if the data show it: a micro-batch that is long in one block is also long in
    others. Scatter that only one block has comes from the machine.
 3. An optimizer or a data loader before the first block of a stage is not part of its balance.
 4. A loss of a tenth of the iteration or more is a verdict. In a job that is watched it is no alarm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..model.graph import Graph, Timing, graph_of
from ..model.iterations import Iteration
from ..model.schedule import Schedule

FEWEST = 8  # number of iterations that are needed
MOST = 16  # number of iterations that are used; they are spread evenly over all
SHARED = 0.5  # correlation of a micro-batch's blocks from which on the micro-batch itself counts as long


@dataclass(frozen=True)
class Balance:
    """The result of `balance`.

    took: seconds of an iteration, with the same work on all shards of a TP group.
    even: seconds of an iteration with the same work spread evenly.
    micros: share of an iteration that is lost between micro-batches; 0 if the data do not cause it.
    stages: share of an iteration that is lost between stages.
    work: own work of each stage's ranks in an iteration, seconds.
    correlation: of the blocks of a micro-batch.
    """

    took: float
    even: float
    micros: float
    stages: float
    work: tuple[float, ...]
    correlation: float

    @property
    def lost(self) -> float:
        """The lost share of an iteration."""
        return self.micros + self.stages


def balance(schedule: Schedule, measured: Sequence[Iteration]) -> Balance | None:
    """Compute the balance of these iterations. Returns None if they are too few."""
    if len(measured) < FEWEST:
        return None
    chosen = [measured[i] for i in np.unique(np.linspace(0, len(measured) - 1, MOST).astype(int)).tolist()]
    graph = graph_of(schedule)
    mean = np.mean([one.timing.compute.mean(axis=(2, 3)) for one in chosen], axis=0)  # [B, K]
    place = np.arange(graph.count) % graph.blocks
    rest = mean.sum(axis=1) * (place > 0)
    per_stage = rest.reshape(schedule.pp, -1).sum(axis=1)
    factor = np.divide(per_stage.mean(), per_stage, out=np.ones_like(per_stage), where=per_stage > 0)
    closing = float(min(one.timing.closing.min() for one in chosen))
    level = mean * np.repeat(factor, graph.blocks)[:, None]
    took, alike, even = (
        float(np.mean([graph.times(of(one.timing)).makespan for one in chosen]))
        for of in (
            lambda timing: _with(timing, timing.compute.mean(axis=3), closing),
            lambda timing: _with(timing, mean[:, :, None], closing),
            lambda timing: _with(timing, level[:, :, None], closing),
        )
    )
    shared = _correlation(schedule, graph, [one.timing for one in chosen])
    micros = max(took - alike, 0) / took if shared >= SHARED else 0.0
    return Balance(
        took,
        even if micros else took - max(alike - even, 0),
        micros,
        max(alike - even, 0) / took,
        tuple(mean.sum(axis=1).reshape(schedule.pp, -1).sum(axis=1).tolist()),
        shared,
    )


def _with(timing: Timing, work: np.ndarray, closing: float) -> Timing:
    """Return an iteration's timing with this work, [B, K, D or 1], on all shards. Differences between the shards of a
    TP group are not part of the balance. Of the time before the gradient reduction, only the minimum over all ranks is
    certainly work: a rank may wait there in a call that isn't recorded."""
    return replace(
        timing,
        compute=np.broadcast_to(work[..., None], timing.compute.shape),
        closing=np.full_like(timing.closing, closing),
    )


def _correlation(schedule: Schedule, graph: Graph, timings: Sequence[Timing]) -> float:
    """Return the correlation between the work of two blocks of the same micro-batch, over iterations and replicas: the
    median over all micro-batches."""
    # [B, iterations * replicas]
    own = np.stack([timing.compute.sum(axis=1).mean(axis=-1) for timing in timings], axis=1).reshape(graph.count, -1)
    found = []
    for micro in range(schedule.micro):
        mine = [
            vertex
            for vertex in range(graph.count)
            if micros(schedule, vertex) == {micro} and vertex % graph.blocks and own[vertex].std() > 0
        ]
        if len(mine) > 1:
            table = np.corrcoef(own[mine])
            found.append(float(np.median(table[np.triu_indices(len(mine), 1)])))
    return float(np.median(found)) if found else 0.0


def micros(schedule: Schedule, vertex: int) -> set[int]:
    """Return the micro-batches that are worked on between the calls around a block's work. If no call separates one
    block from the next, the work is that of both."""
    stage, place = divmod(vertex, schedule.blocks)
    return {schedule.blocks_of(stage)[one].micro for one in merged(schedule, stage, place)}


def merged(schedule: Schedule, stage: int, place: int) -> list[int]:
    """Return the places of a stage whose work can't be told apart from that of this place, including the place itself.
    With TP, collectives separate the blocks."""
    blocks, first = schedule.blocks_of(stage), place
    if schedule.tp > 1:
        return [place]
    while first and schedule.source(stage, blocks[first]) is None and schedule.target(stage, blocks[first - 1]) is None:
        first -= 1
    last = place
    while (
        last + 1 < len(blocks)
        and schedule.target(stage, blocks[last]) is None
        and schedule.source(stage, blocks[last + 1]) is None
    ):
        last += 1
    return list(range(first, last + 1))
