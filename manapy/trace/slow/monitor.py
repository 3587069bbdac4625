"""How long the parts of an iteration are expected to take, and which parts of a slow iteration exceed this: Algorithm 2
of the MegaTrace paper, for slow.py.

Invariants: those of slow.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ..model.graph import Graph, Sizes, Step, Timing, graph_of
from ..model.schedule import Schedule
from ..model.verdict import Cause, Phase
from .cusum import Cusum
from .finding import ALIKE, LEARN, NEARLY, Finding, Limits, lower_median, own_times

PRIMED = 16  # the first expectation is the median of at most so many iterations
FAST = 0.2  # quantile of lengths; the first expectation is made from iterations about as short as that
DRIFT = 0.05  # largest relative deviation from the running averages that is taken into account
CHANGE = 3  # after so many iterations in a row with another length on all ranks, that length is expected
SHIFT = 0.1  # relative excess of own time: on most ranks it is a change of the job, on one rank a slow rank
FAULTS = 8  # largest number of faults found in one iteration
LEFT = 0.95  # the search in an iteration ends when its remaining performance is above this
NOISE = 3.0  # an excess must be so many times the noise of blocks
MANY = 12  # number of iterations from which on their normal variation is known


@dataclass
class Monitor:
    """Expected times, and the search for faults in iterations that are fed in order.

    hosts: the host of each rank.
    uncertainty: of clocks, seconds.
    disturbed: iterations in which a rank had to wait for a processor. If all ranks take longer in them, this is not a
        change of the job.
    """

    schedule: Schedule
    limits: Limits = field(default_factory=Limits)
    hosts: dict[int, str] = field(default_factory=dict)
    uncertainty: float = 0.0
    disturbed: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.graph: Graph = graph_of(self.schedule)
        self.length = np.nan  # expected length of an iteration, seconds
        # relative excess of healthy iterations: four deviations of the differences between neighbouring iterations
        self.unsteady = 0.0
        self.own: np.ndarray | None = None  # [B], expected own time of each block
        self._other: list[tuple[int, float]] = []  # iterations that may be the first of a change, with their lengths
        self.lasting = Cusum(self.schedule, self.graph, self.hosts)
        self.unexplained: list[int] = []  # slow iterations in which no rank or link is at fault
        self.changes: list[float] = []  # factors by which all iterations have become longer

    def prime(self, timings: list[Timing], lengths: list[float]) -> None:
        """Compute the expectations from the fast ones of some iterations. A slow iteration is slow because of
        something, but nothing makes an iteration faster than it is. lengths: seconds."""
        if len(lengths) >= MANY:
            steps = np.abs(np.diff(np.log(lengths)))
            self.unsteady = float(np.expm1(4 * 1.4826 * np.median(steps) / np.sqrt(2)))
        fast = np.flatnonzero(
            np.asarray(lengths) <= np.quantile(lengths, FAST, method="higher") * (1 + max(DRIFT, self.unsteady / 2))
        )[:PRIMED].tolist()
        timings = [timings[i] for i in fast]
        self.length = float(np.median([lengths[i] for i in fast]))
        self.own = np.median([lower_median(own_times(t), 1) for t in timings], axis=0)[:, 0]
        self.segments, self.closing, self.transfer = (
            np.median([lower_median(getattr(t, name), 1)[..., 0] for t in timings], axis=0)
            for name in ("compute", "closing", "transfer")
        )  # fmt: skip
        self.collective = np.median([np.median(t.collective, axis=-1) for t in timings], axis=0)
        self.reduce = np.median([np.median(t.reduce, axis=-1) for t in timings], axis=0)
        sizes = [t.sizes for t in timings if t.sizes is not None]
        self.sizes = None
        if sizes:
            self.sizes = Sizes(
                np.median([np.median(of.message, axis=(1, 2)) for of in sizes], axis=0),
                np.median([np.median(of.collective, axis=2) for of in sizes], axis=0),
                np.median([np.median(of.reduce, axis=-1) for of in sizes], axis=0),
            )
        whole = self.segments.sum(axis=1)
        self._shape = np.divide(
            self.segments, whole[:, None], out=np.zeros_like(self.segments), where=whole[:, None] > 0
        )

    def feed(self, numbers: list[int], timing: Timing, lengths: np.ndarray) -> list[Finding]:
        """Return the faults in iterations, and update the expectations. The iterations are in order, their replicas
        side by side: D of `timing` is the schedule's D times their number. lengths: [iterations], seconds."""
        assert self.own is not None
        own = own_times(timing)
        low = lower_median(own, len(numbers))
        found = []
        may_be = (lengths > self.length * (1 / self.limits.performance)).any()  # noise matters only if one may be slow
        noise = _noise(own, self.own, self.schedule.pp, len(numbers)) if may_be else np.zeros(len(numbers))
        slow = lengths > self.length * np.maximum(
            1 / self.limits.performance, 1 + np.maximum(NOISE * noise, self.unsteady)
        )
        for i, number in enumerate(numbers):
            if lengths[i] < self.length * self.limits.performance:
                self._change(number, low[:, i], float(lengths[i]))
            elif slow[i]:
                of = range(i * self.schedule.dp, (i + 1) * self.schedule.dp)
                found += self._taken_apart(
                    number,
                    timing.replicas(list(of)) if len(numbers) > 1 else timing,
                    low[:, i],
                    float(lengths[i]),
                    float(noise[i]),
                )
            else:
                self._other = []
        if self.schedule.dp * self.schedule.tp > 1:
            found += self.lasting.feed(numbers, own.reshape(*low.shape, -1), timing, lengths)
        healthy = ~slow & (lengths > self.length * self.limits.performance)
        if healthy.any():
            weight = 1 - (1 - LEARN) ** int(healthy.sum())
            self.own += weight * np.clip(
                np.median(low[:, healthy], axis=1) - self.own, -DRIFT * self.own, DRIFT * self.own
            )
            self.length += weight * float(
                np.clip(np.median(lengths[healthy]) - self.length, -DRIFT * self.length, DRIFT * self.length)
            )
        return found

    # ---- one slow iteration ----

    def _taken_apart(self, number: int, timing: Timing, low: np.ndarray, length: float, noise: float) -> list[Finding]:
        """Return the faults in one slow iteration. low: [B], the lower median of each block's own time."""
        assert self.own is not None
        own = own_times(timing)
        blocks = self.own > 0
        per_rank = np.ones((self.schedule.pp, *own.shape[1:]))
        for stage in range(self.schedule.pp):
            mine = (
                np.flatnonzero(blocks[stage * self.graph.blocks : (stage + 1) * self.graph.blocks])
                + stage * self.graph.blocks
            )
            if len(mine):
                before = self.own[mine, None, None]
                per_rank[stage] = np.median(own[mine] / before, axis=0)
        # With few ranks this must be the value of one rank, not a value between a slow rank and a healthy one.
        everybody = max(float(np.quantile(per_rank, 0.25, method="lower")), 1.0)
        changes = len(self.changes)
        if everybody > 1 + SHIFT:
            self._change(number, low, length)
        else:
            everybody, self._other = 1.0, []
        times = self.graph.times(timing)
        usual = self.length * everybody
        if times.makespan * self.limits.performance <= usual:
            if len(self.changes) == changes:
                self.unexplained.append(number)
            return []
        late = np.flatnonzero(times.replicas * LEFT > usual)
        if not len(late):
            late = np.array([int(times.replicas.argmax())])
        return _Search(self, number, timing, late, times.replicas, per_rank, length, everybody, noise).run()

    def _change(self, number: int, low: np.ndarray, length: float) -> None:
        """Note one more iteration that is longer or shorter on all ranks. If CHANGE such iterations in a row have the
        same length, that length is expected from now on."""
        if number in self.disturbed:
            return
        self._other = [*(one for one in self._other if abs(one[1] / length - 1) < SHIFT), (number, length)]
        if len(self._other) >= CHANGE:
            self.changes.append(length / self.length)
            first = {one for one, _ in self._other} - {number}
            self.unexplained = [one for one in self.unexplained if one not in first]
            self.own, self.length, self._other = low.copy(), length, []


@dataclass
class _Suspect:
    """A possible fault.

    edits: (field of Timing, index, ceiling): changes that give its parts their expected times.
    joint: it covers several groups of slow ranks, for example on several hosts, whose ranks of one TP group wait for
        each other. Repairing one of them alone gains nothing.
    """

    finding: Finding
    edits: list[tuple[str, tuple, np.ndarray | float]]
    joint: bool = False

    @property
    def excess(self) -> float:
        """Time above the expected time, in total, seconds."""
        return self.finding.took - self.finding.expected

    def innocent(self, timing: Timing) -> Timing:
        """Return the timing without this fault."""
        arrays = {name: getattr(timing, name).copy() for name in {name for name, _, _ in self.edits}}
        for name, index, ceiling in self.edits:
            arrays[name][index] = np.minimum(arrays[name][index], ceiling)
        return replace(timing, **arrays)


class _Search:
    """The search for what makes one iteration slow. It looks only at the late replicas; the others can't be the
    cause."""

    def __init__(
        self,
        monitor: Monitor,
        number: int,
        timing: Timing,
        late: np.ndarray,
        replicas: np.ndarray,
        per_rank: np.ndarray,
        length: float,
        everybody: float,
        noise: float,
    ) -> None:
        self.monitor, self.graph, self.schedule, self.limits = monitor, monitor.graph, monitor.schedule, monitor.limits
        self.number, self.late, self.length = number, late, length
        self.timing = timing.replicas(late.tolist())
        self.in_time = float(np.delete(replicas, late).max(initial=0.0))
        self.slow_ranks = per_rank[:, late] > everybody * (1 + max(SHIFT, noise))
        assert monitor.own is not None
        self.expected = monitor.own[:, None] * monitor._shape
        self.expected = np.where(self.expected > 0, self.expected, monitor.segments) * everybody
        self.usual = monitor.length * everybody
        self.node = 1 + max(self.limits.node, NOISE * noise)
        rates = [
            _noise(timing.transfer, monitor.transfer, self.schedule.pp, 1)[0],
            _noise(timing.collective.sum(axis=1)[..., None], monitor.collective.sum(axis=1), self.schedule.pp, 1)[0],
        ]
        self.slower = max(1 / (1 - self.limits.bandwidth), 1 + NOISE * float(max(rates)))
        self.enough = self.usual * max(1 / LEFT, 1 + NOISE * noise, 1 + monitor.unsteady)
        names = np.array([monitor.hosts.get(rank, "") for rank in range(self.schedule.size)])
        self.host = names[self.schedule.ranks[:, late]]
        sizes, usual = self.timing.sizes, monitor.sizes
        message, collective, reduce = np.ones_like(self.timing.transfer), np.ones_like(self.timing.collective), 1.0
        if sizes is not None and usual is not None:
            message, collective = _grown(sizes.message, usual.message), _grown(sizes.collective, usual.collective)
            reduce = _grown(sizes.reduce, usual.reduce).max(axis=-1)
        self.transfer = monitor.transfer[:, None, None] * message
        self.collective = monitor.collective[..., None] * collective
        self.reduce = monitor.reduce * reduce
        self.alike = self._alike(per_rank[:, late])

    def run(self) -> list[Finding]:
        """Find faults until the rest of the iteration is no slower than others. The cost of each fault is its cost
        alone, with the other faults repaired."""
        found: list[_Suspect] = []
        timing = self.timing
        for _ in range(FAULTS):
            times = self.graph.times(timing)
            if times.makespan <= self.enough:
                break
            path = self.graph.critical(timing, times)
            replica = path[-1].replica
            gains = []
            suspects = sorted(self._suspects(timing, path), key=lambda one: -one.excess)
            single, several = ([one for one in suspects if one.joint == joint][:FAULTS] for joint in (False, True))
            for suspect in (*single, *several):
                gains.append(
                    (times.replicas[replica] - self.graph.replica_ends(suspect.innocent(timing))[replica], suspect)
                )
            least = max(0.2 * (times.makespan - self.usual), self.enough - self.usual, 2 * self.monitor.uncertainty)
            gain, best = _simplest([one for one in gains if not one[1].joint])
            together, twins = max(
                ((gain, one) for gain, one in gains if one.joint), key=lambda one: one[0], default=(0.0, None)
            )
            if gain < NEARLY * together:
                gain, best = together, twins
            if best is None or gain < least:
                break
            found.append(best)
            timing = best.innocent(timing)
        if not found:
            self.monitor.unexplained.append(self.number)
        rest = self._makespan(timing)
        findings = []
        for one in found:
            alone = self.timing
            for other in found:
                alone = alone if other is one else other.innocent(alone)
            findings.append(replace(one.finding, cost=self._makespan(alone) - rest))
        return findings

    def _makespan(self, timing: Timing) -> float:
        return max(float(self.graph.replica_ends(timing).max()), self.in_time)

    def _suspects(self, timing: Timing, path: list[Step]) -> list[_Suspect]:
        """Return the blocks, slow ranks, collectives and messages on the critical path that took too long."""
        found: dict[object, _Suspect] = {}
        for step in path:
            groups = sorted({int(group) for group in self.alike[step.stage, step.replica] if group >= 0})
            for key in (*((group,) for group in groups), tuple(groups)):
                if key and key not in found:
                    found[key] = self._slow_ranks(timing, key)
            whole = (self._block(timing, step), self._collectives(timing, step)) if step.whole else ()
            for suspect in (*whole, self._message(timing, step) if step.begins else None):
                if suspect is not None:
                    found[len(found)] = suspect
        for suspect in self._ends(timing, path[-1]):
            found[len(found)] = suspect
        return list(found.values())

    def _alike(self, factors: np.ndarray) -> np.ndarray:
        """Return for each slow rank its group, [S, late replicas, T]: ranks of the same host that are about as slow may
        have the same cause. -1: the rank isn't slow."""
        groups = np.full(factors.shape, -1)
        excess = np.where(self.slow_ranks, factors - 1, 0)
        for number in range(factors.size):
            left = self.slow_ranks & (groups < 0)
            if not left.any():
                break
            worst = np.unravel_index(int(np.where(left, excess, -1).argmax()), excess.shape)
            host = self.host[worst]
            groups[worst] = number
            if host:
                groups[left & (self.host == host) & (excess >= ALIKE * excess[worst])] = number
        return groups

    def _slow_ranks(self, timing: Timing, groups: tuple[int, ...]) -> _Suspect:
        """Return the suspect that consists of all ranks of these groups."""
        edits: list[tuple[str, tuple, np.ndarray | float]] = []
        ranks, excess, usual = list[int](), list[float](), list[float]()
        for s, d, t in np.argwhere(np.isin(self.alike, groups)).tolist():
            own = slice(s * self.graph.blocks, (s + 1) * self.graph.blocks)
            edits.append(("compute", (own, slice(None), d, t), self.expected[own]))
            edits.append(("closing", (s, d, t), float(self.monitor.closing[s])))
            ranks.append(self._rank(s, d, t))
            excess.append(float(timing.compute[own, :, d, t].sum()))
            usual.append(float(self.expected[own].sum()))
        worst = int(np.argmax(np.subtract(excess, usual)))
        return _Suspect(
            Finding(
                self.number,
                Cause.COMPUTE,
                ranks[worst],
                0.0,
                excess[worst],
                usual[worst],
                self.length,
                ranks=tuple(ranks),
            ),
            edits,
            len(groups) > 1,
        )

    def _block(self, timing: Timing, step: Step) -> _Suspect | None:
        """Return the suspect for a block's own work, or None. It is the shard whose work exceeds the expected work
        most, if it exceeds it by too much."""
        own, expected = timing.compute[step.vertex, :, step.replica], self.expected[step.vertex]
        excess = own - expected[:, None]
        shard = int(np.maximum(excess, 0).sum(axis=0).argmax())
        took, usual = float(own[:, shard].sum()), float(expected.sum())
        if took <= usual * self.node:
            return None
        segment = int(excess[:, shard].argmax())
        backward = self.schedule.blocks_of(step.stage)[step.place].backward
        phase = (
            Phase.TRANSFER
            if segment == len(expected) - 1 and segment
            else Phase.BACKWARD
            if backward
            else Phase.FORWARD
        )
        long = own.sum(axis=0) > usual * self.node
        finding = replace(self._finding(Cause.COMPUTE, step, shard, took, usual), vertex=step.vertex, phase=phase)
        if long.sum() > 1:  # these shards wait for each other
            finding = replace(
                finding, ranks=tuple(self._rank(step.stage, step.replica, int(one)) for one in np.flatnonzero(long))
            )
        return _Suspect(
            finding,
            [("compute", (step.vertex, slice(None), step.replica, int(one)), expected) for one in np.flatnonzero(long)],
        )

    def _collectives(self, timing: Timing, step: Step) -> _Suspect | None:
        took, usual = (
            float(timing.collective[step.vertex, :, step.replica].sum()),
            float(self.collective[step.vertex, :, step.replica].sum()),
        )
        if took <= usual * self.slower + 2 * self.monitor.uncertainty:
            return None
        finding = replace(
            self._finding(Cause.NETWORK, step, step.shard, took, usual), vertex=step.vertex, phase=Phase.TRANSFER
        )
        return _Suspect(
            finding,
            [("collective", (step.vertex, slice(None), step.replica), self.collective[step.vertex, :, step.replica])],
        )

    def _message(self, timing: Timing, step: Step) -> _Suspect | None:
        """Return the suspect for the message that a block waited for, or None. If most messages of the rank at one end
        are slow, the suspect is that rank's link, with all of its slow messages."""
        source = int(self.graph.source[step.vertex])
        if source < 0:
            return None
        took, usual = (
            float(timing.transfer[step.vertex, step.replica, step.shard]),
            float(self.transfer[step.vertex, step.replica, step.shard]),
        )
        if took <= usual * self.slower + 2 * self.monitor.uncertainty:
            return None
        has = self.graph.source >= 0
        slow = has & (
            timing.transfer[:, step.replica, step.shard]
            > self.transfer[:, step.replica, step.shard] * self.slower + 2 * self.monitor.uncertainty
        )
        to = np.arange(self.graph.count) // self.graph.blocks
        ends = (source // self.graph.blocks, step.stage)
        touched = [has & ((to == stage) | (self.graph.source // self.graph.blocks == stage)) for stage in ends]
        shares = [float(slow[of].mean()) for of in touched]
        which = int(shares[1] >= shares[0])
        many = shares[which] >= 0.5
        mine = np.flatnonzero(touched[which] & slow) if many else np.array([step.vertex])
        rank, peer = (self._rank(stage, step.replica, step.shard) for stage in (ends[which], ends[1 - which]))
        finding = replace(
            self._finding(Cause.NETWORK, step, step.shard, took, usual),
            rank=rank,
            peer=peer,
            phase=Phase.TRANSFER,
            vertex=None if many else step.vertex,
        )
        return _Suspect(
            finding,
            [
                (name, (mine, step.replica, step.shard), self.transfer[mine, step.replica, step.shard])
                for name in ("transfer", "landing")
            ],
        )

    def _ends(self, timing: Timing, last: Step) -> list[_Suspect]:
        """Return suspects for the work before the gradient reduction, and for the reduction itself."""
        found = []
        own, usual = timing.closing[last.stage, last.replica], float(self.monitor.closing[last.stage])
        shard = int(own.argmax())
        if own[shard] > usual * self.node:
            finding = replace(self._finding(Cause.COMPUTE, last, shard, float(own[shard]), usual), phase=Phase.REDUCE)
            found.append(_Suspect(finding, [("closing", (last.stage, last.replica, shard), usual)]))
        took, usual = float(timing.reduce[last.stage].max()), float(self.reduce[last.stage])
        if took > usual * self.slower + 2 * self.monitor.uncertainty:
            finding = replace(self._finding(Cause.NETWORK, last, last.shard, took, usual), phase=Phase.REDUCE)
            found.append(_Suspect(finding, [("reduce", (last.stage,), usual)]))
        return found

    def _finding(self, cause: Cause, step: Step, shard: int, took: float, usual: float) -> Finding:
        return Finding(self.number, cause, self._rank(step.stage, step.replica, shard), 0.0, took, usual, self.length)

    def _rank(self, stage: int, replica: int, shard: int) -> int:
        return int(self.schedule.ranks[stage, self.late[replica], shard])


def _simplest(gains: list[tuple[float, _Suspect]]) -> tuple[float, _Suspect | None]:
    """Return the suspect that explains most, with its gain. A single block is preferred to a whole rank or host that
    explains hardly more, because with noise a rank always explains a little more than one of its blocks."""
    gain, best = max(gains, key=lambda one: one[0], default=(0.0, None))
    if best is not None and best.finding.vertex is None:
        single = [one for one in gains if one[1].finding.vertex is not None and one[0] >= NEARLY * gain]
        return max(single, key=lambda one: one[0], default=(gain, best))
    return gain, best


def _grown(sizes: np.ndarray, usual: np.ndarray) -> np.ndarray:
    """Return how many times as large as usual the sizes are, at least 1. A transfer may take longer by this factor."""
    usual = usual.reshape(*usual.shape, *(1,) * (sizes.ndim - usual.ndim))
    return np.maximum(np.divide(sizes, usual, out=np.ones(sizes.shape), where=usual > 0), 1.0)


def _noise(took: np.ndarray, usual: np.ndarray, stages_: int, count: int) -> np.ndarray:
    """Return a robust estimate of how much blocks deviate from their usual time, as a share of it: [iterations].
    Deviations that all blocks of a rank have in common do not count. A deviation that is no larger proves nothing.
    took: [B, replicas, ...]."""
    off = []
    for mine in np.split(np.arange(len(usual)), stages_):
        mine = mine[usual[mine] > 0]
        if len(mine) > 1:
            part = took[mine] / usual[mine].reshape(-1, *(1,) * (took.ndim - 1))
            part = part / np.maximum(np.median(part, axis=0), 1e-12)
            off.append(np.abs(part - 1).reshape(len(mine), count, -1).transpose(1, 0, 2).reshape(count, -1))
    return 1.4826 * np.median(np.concatenate(off, axis=1), axis=1) if off else np.zeros(count)
