"""Rules by which other systems find hung and slow ranks, for comparison. Each is inspired by a published system and
uses only its idea; none is that system.

Hangs: calls in a Trace that have been open for longer than PENDING. Slowdowns: the Timing of an iteration compared with
healthy ones (History). All return the suspected rank, or None.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...trace.model.events import OPEN, Op, Trace
from ...trace.model.graph import Timing
from ...trace.model.schedule import Schedule

PENDING = 2.0  # seconds
SEGMENT = 1.5  # MegaScale: times the mean of all ranks
DISTANCE = 3.0  # Minder: z-score
ANOMALY = 6.0  # Holmes: robust z-score of one operation


@dataclass(frozen=True)
class History:
    """Healthy iterations. own, spread: [B, D, T], median and MAD-based deviation of each block's work."""

    schedule: Schedule
    own: np.ndarray
    spread: np.ndarray

    @classmethod
    def of(cls, schedule: Schedule, timings: list[Timing]) -> History:
        """The history of some iterations."""
        own = np.array([timing.compute.sum(axis=1) for timing in timings])
        middle = np.median(own, axis=0)
        return cls(schedule, middle, 1.4826 * np.median(np.abs(own - middle), axis=0) + 0.01 * middle)


def _open_collectives(trace: Trace) -> list[tuple[set[int], set[int]]]:
    """Members of each collective that has been open for long, and those that have entered it."""
    events = trace.events
    found: dict[tuple[int, int], set[int]] = {}
    old = (
        (events["exit"] == OPEN)
        & (trace.now - events["enter"] > PENDING * 1e9)
        & (events["op"] >= Op.BARRIER)
        & (events["op"] <= Op.EXSCAN)
    )
    for event in events[old]:
        found.setdefault((int(event["comm"]), int(event["context"])), set()).add(int(event["rank"]))
    return [(set(trace.comms[comm].members.tolist()), ranks) for (comm, _), ranks in found.items()]


def jit(trace: Trace) -> int | None:
    """Inspired by JIT's watchdog (Gupta et al., EuroSys'24): a collective is pending for too long. The suspect is a
    member that has not entered and is in no call."""
    waiting = set(trace.events["rank"][trace.events["exit"] == OPEN].tolist())
    for members, entered in _open_collectives(trace):
        if missing := sorted(members - entered - waiting):
            return missing[0]
    return None


def c4(trace: Trace) -> int | None:
    """Inspired by C4 (Dong et al., 2024): all members have entered and none returns, or both ends of a message wait.
    This is a communication fault, of the first of them."""
    for members, entered in _open_collectives(trace):
        if members == entered:
            return min(members)
    events = trace.events
    old = events[(events["exit"] == OPEN) & (trace.now - events["enter"] > PENDING * 1e9)]
    sends = {(int(e["rank"]), int(e["peer"]), int(e["tag"])) for e in old[old["op"] == Op.SEND]}
    recvs = {(int(e["peer"]), int(e["rank"]), int(e["tag"])) for e in old[old["op"] == Op.RECV]}
    both = sorted(sends & recvs)
    return both[0][0] if both else None


def megascale_hang(trace: Trace) -> int | None:
    """MegaScale's heat map shows latencies of calls that have ended; in a hang there are none."""
    return None


def megascale(history: History, timing: Timing, length: float) -> int | None:
    """Inspired by MegaScale's heat map (Jiang et al., NSDI'24): a rank's mean latency of a forward or backward pass,
    compared with a fixed threshold above the mean of all ranks."""
    schedule = history.schedule
    own = timing.compute.sum(axis=1)
    backward = np.array([block.backward for stage in range(schedule.pp) for block in schedule.blocks_of(stage)])
    worst, rank = SEGMENT, None
    for which in (~backward, backward):
        mean = own[which].reshape(schedule.pp, -1, schedule.dp, schedule.tp).mean(axis=1)
        ratio = mean / mean.mean()
        if ratio.max() > worst:
            worst, rank = ratio.max(), int(schedule.ranks[np.unravel_index(int(ratio.argmax()), ratio.shape)])
    return rank


def minder(history: History, timing: Timing, length: float) -> int | None:
    """Inspired by Minder (Deng et al., NSDI'25): each rank's load in the window, z-scored over the ranks. The suspect
    is the rank whose distance to all others is an outlier."""
    schedule = history.schedule
    own = timing.compute.sum(axis=1).reshape(schedule.pp, -1, schedule.dp, schedule.tp).sum(axis=1)
    usual = history.own.reshape(schedule.pp, -1, schedule.dp, schedule.tp).sum(axis=1)
    load, before = (own / length).ravel(), (usual / length).ravel()
    distances = np.abs((load - before)[:, None] - (load - before)[None]).sum(axis=1)
    z = (distances - distances.mean()) / (distances.std() + 1e-9)
    if z.max() < DISTANCE or distances.max() < 0.05 * len(load):
        return None
    return int(schedule.ranks.ravel()[int(z.argmax())])


def holmes(history: History, timing: Timing, length: float) -> int | None:
    """Inspired by Holmes (Yao et al., NSDI'25): operations that are anomalous by a robust z-score compared with
    themselves. The suspect is the rank with most of the excess."""
    schedule = history.schedule
    own = timing.compute.sum(axis=1)
    z = (own - history.own) / history.spread
    anomalous = np.argwhere(z > ANOMALY)
    if not len(anomalous) or (own - history.own)[z > ANOMALY].sum() < 0.1 * length:
        return None
    votes: dict[int, float] = {}
    for vertex, replica, shard in anomalous.tolist():
        rank = int(schedule.ranks[vertex // schedule.blocks, replica, shard])
        votes[rank] = votes.get(rank, 0.0) + float((own - history.own)[vertex, replica, shard])
    return max(votes, key=votes.__getitem__)


HANGS = {"JIT": jit, "C4": c4, "MegaScale": megascale_hang}
SLOWDOWNS = {"Holmes": holmes, "Minder": minder, "MegaScale": megascale}
