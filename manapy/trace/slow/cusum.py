"""Ranks that are always a little slower than their peers, by a sequential test, for monitor.py.

It is a one-sided CUSUM (Page, 1954). It runs over the logarithm of each rank's own time relative to its peers', in
units of its scatter. Invariants: those of slow.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..model.graph import Graph, Timing
from ..model.schedule import Schedule
from ..model.verdict import Cause
from .finding import ALIKE, LEARN, NEARLY, Finding, lower_median, own_times

SMALL, CERTAIN = 0.0125, 25.0  # tolerated excess over the peers' own time; sum from which on a rank counts as slow
PATIENCE = 8  # least number of iterations for a finding
CHEAP = 0.004  # a rank that costs less than this share of an iteration is not reported


class Cusum:
    """The state of the test. hosts: the host of each rank."""

    def __init__(self, schedule: Schedule, graph: Graph, hosts: dict[int, str]) -> None:
        self.schedule, self.graph, self.hosts = schedule, graph, hosts
        shape = (schedule.pp, schedule.dp, schedule.tp)
        self._sum, self._since, self._excess = np.zeros(shape), np.zeros(shape, int), np.zeros(shape)
        self._spread = np.nan
        self._before: np.ndarray | None = None  # own time relative to the peers' in the iteration before

    def feed(self, numbers: list[int], work: np.ndarray, timing: Timing, lengths: np.ndarray) -> list[Finding]:
        """Take these iterations into account, and return findings. work: [B, iterations, peers], own times of the
        blocks, seconds."""
        stages_, count = self.schedule.pp, len(numbers)
        peers = np.median(work, axis=-1, keepdims=True)
        ratio = np.divide(work, peers, out=np.ones_like(work), where=peers > 0)
        own = (
            np.log(np.maximum(np.median(ratio.reshape(stages_, -1, count, work.shape[-1]), axis=1), 1e-9))
            .transpose(1, 0, 2)
            .reshape(count, *self._sum.shape)
        )
        if work.shape[-1] == 2:
            own = 2 * own  # the median of two values is half way between them
        found = []
        for i, number in enumerate(numbers):
            own_i = own[i]
            spread = max(self._scatter(own_i, work.shape[-1]), 1e-3)
            self._spread = spread if np.isnan(self._spread) else self._spread + LEARN * (spread - self._spread)
            self._sum += np.clip((own_i - SMALL) / max(self._spread, spread), -4, 4)
            below = self._sum <= 0
            self._sum[below], self._since[below], self._excess[below] = 0, 0, 0
            self._since[~below] += 1
            self._excess[~below] += own_i[~below]
            if (self._sum > CERTAIN).any() and ((self._sum > CERTAIN) & (self._since >= PATIENCE)).any():
                found += self._chronic(
                    number,
                    timing.replicas(list(range(i * self.schedule.dp, (i + 1) * self.schedule.dp))),
                    float(lengths[i]),
                )
        return found

    def _scatter(self, own: np.ndarray, peers: int) -> float:
        """Return a robust estimate of the scatter of ranks' own time relative to their peers'. If there are only two
        peers, both are equally far from the middle when one is slow. Then the change from one iteration to the next is
        used."""
        before, self._before = self._before, own
        if peers > 2 or before is None:
            return 1.4826 * float(np.median(np.abs(own)))
        return 1.4826 * float(np.median(np.abs(own - before))) / np.sqrt(2)

    def _chronic(self, number: int, timing: Timing, length: float) -> list[Finding]:
        """Return findings on ranks whose sum is high enough and that cost something. Ranks of one host that are about
        as slow make one finding."""
        found = []
        before = self.graph.times(timing).makespan
        blocks = self.graph.blocks
        groups: dict[object, list[tuple[int, int, int]]] = {}
        for s, d, t in np.argwhere((self._sum > CERTAIN) & (self._since >= PATIENCE)).tolist():
            place = (s, d, t)
            rank = int(self.schedule.ranks[place])
            groups.setdefault(self.hosts.get(rank) or rank, []).append(place)
        flagged = [place for places in groups.values() for place in places]
        excess = {place: float(np.exp(self._excess[place] / self._since[place])) for place in flagged}
        work = own_times(timing).reshape(self.schedule.pp, blocks, *timing.compute.shape[2:]).sum(axis=1)
        for stage, replica, shard in flagged:
            if sum(place[0] == stage for place in flagged) > 1:  # then the median of the stage isn't the norm
                excess[stage, replica, shard] = max(
                    excess[stage, replica, shard], float(work[stage, replica, shard] / lower_median(work[stage], 1)[0])
                )
        parts = [part for places in groups.values() for part in _parts(places, excess)]
        costs = [before - self._without(timing, {place: excess[place] for place in part}) for part in parts]
        # If the parts wait for each other, repairing one alone gains nothing.
        if len(parts) > 1 and (together := before - self._without(timing, excess)) * NEARLY > 2 * sum(costs):
            parts, costs = [[place for part in parts for place in part]], [together]
        for places, cost in zip(parts, costs, strict=True):
            if cost <= CHEAP * before:
                continue
            worst = max(places, key=excess.__getitem__)
            took = float(timing.compute[worst[0] * blocks : (worst[0] + 1) * blocks, :, worst[1], worst[2]].sum())
            ranks = [int(self.schedule.ranks[place]) for place in places]
            since = int(self._since[worst])
            found.append(
                Finding(
                    number,
                    Cause.COMPUTE,
                    int(self.schedule.ranks[worst]),
                    cost,
                    took,
                    took / excess[worst],
                    length,
                    ranks=tuple(ranks),
                    chronic=since,
                )
            )
            for place in places:
                self._sum[place], self._since[place], self._excess[place] = 0, 0, 0
        return found

    def _without(self, timing: Timing, excess: dict[tuple[int, int, int], float]) -> float:
        """Return the length of an iteration if the work of these ranks took less time by these factors."""
        compute = timing.compute.copy()
        for (stage, replica, shard), factor in excess.items():
            compute[stage * self.graph.blocks : (stage + 1) * self.graph.blocks, :, replica, shard] /= factor
        return self.graph.times(replace(timing, compute=compute)).makespan

    def so_far(self, rank: int) -> int:
        """Return for how many of the newest iterations a rank has been slower than its peers since the last finding on
        it."""
        return int(self._since[tuple(self.schedule.places[rank])])


def _parts(
    places: list[tuple[int, int, int]], excess: dict[tuple[int, int, int], float]
) -> list[list[tuple[int, int, int]]]:
    """Divide these ranks into parts that are about as slow, the slowest first."""
    parts: list[list[tuple[int, int, int]]] = []
    for place in sorted(places, key=lambda one: -excess[one]):
        if parts and excess[place] - 1 >= ALIKE * (excess[parts[-1][0]] - 1):
            parts[-1].append(place)
        else:
            parts.append([place])
    return parts
