"""Finds the rank that makes a job slow, where, and by how much: Algorithm 2 of the MegaTrace paper, with its
ambiguities resolved.

With a schedule, each iteration is compared with the expected times of its blocks (Monitor). An iteration that performs
below 90 % of the healthy ones is analysed. The search looks on its critical path for a block, rank or link whose own
time exceeds the expected one. It takes the one without which the iteration would be shortest, sets its time to the
expected one, and continues. So it finds several faults at once. A sequential test finds ranks that are always a little
slower than their peers, in slow iterations and in others. Without a schedule, ranks are compared by their work before
collectives, where the last rank keeps all others waiting.

Invariants
 1. Own time is time outside MPI: a rank is never blamed for waiting.
 2. Delays that a pipeline bubble absorbs cost nothing, and no rank is reported for them.
 3. If all ranks are slower, none is reported: after CHANGE iterations this is the expected time.
 4. Transfers are times between two clocks: an excess below their uncertainty does not count.
 5. Delays that a rank's waits for a processor can explain (runqueue.py) are attributed to its processor, not to its
    work or the network.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ...core.units import span
from ..host.runqueue import EXPLAINS, UNSAMPLED, Delays
from ..model import stages
from ..model.events import Flag, Trace
from ..model.iterations import Iteration, Measured, iterations
from ..model.schedule import Schedule, ScheduleError
from ..model.verdict import Cause, Phase, State, Verdict
from . import balance, stragglers
from .finding import Finding, Limits
from .monitor import MANY, Monitor

DISTURBED = 0.05  # an iteration is disturbed if waits for a processor take this share of its length
WORTH = 0.01  # seconds; a fault that costs less in all of its iterations together is not reported
# if this share of the iterations is newer than the expectations, these are made again
RENEWED = 0.5
ALONE = "no stage has a second {}: one that is slow from the beginning on can't be told from a larger stage"
ACTIONS = {
    Cause.COMPUTE: "look at this host: clock rate, temperature, other processes, processors it may use",
    Cause.STARVED: (
        "see what else runs on the processors that this rank may use (taskset -p; top; the cpu.max of its cgroup)"
    ),
    Cause.NETWORK: "look at the links of these hosts",
    Cause.UNEQUAL: "give each micro-batch about the same work (pack or sort sequences by what they cost),"
    " and each stage as many layers as it has time for",
}


@dataclass(frozen=True)
class WatchResult:
    """The iterations that were looked at, and the findings in them."""

    trace: Trace
    monitor: Monitor
    measured: list[Iteration]
    found: list[Finding]


@dataclass(frozen=True)
class _SlowIteration:
    """An iteration that stands out.

    faults: the faults found in it, each with the begin (ns) of the first iteration in which it was found. Without
        faults the iteration is still slow.
    usual: the length of healthy iterations at that time, seconds.

    Each look decides again whether the ranks' waits for a processor explain the iteration, because samples of other
    hosts come late.
    """

    iteration: Iteration
    faults: tuple[tuple[Finding, int], ...]
    usual: float

    def found(self, schedule: Schedule, delays: Delays) -> list[Finding]:
        """Return the iteration's findings, attributed to their causes."""
        if self.faults:
            return [_attributed(finding, begin, self.iteration.end, schedule, delays) for finding, begin in self.faults]
        return _starved(self.iteration, self.usual, delays)


@dataclass
class WatchState:
    """Data that one look at a job keeps for the next look, which then adds only new iterations.

    measured: the measured iterations.
    monitor: the expectations.
    odd: the iterations that stand out.
    fed: the newest iteration that was fed to the monitor.
    primed: the number of the newest iteration when the expectations were made.
    """

    measured: Measured = field(default_factory=Measured)
    monitor: Monitor | None = None
    odd: list[_SlowIteration] = field(default_factory=list)
    fed: Iteration | None = None
    primed: int = -1

    def go_on(self, measured: list[Iteration], monitor: Monitor) -> bool:
        """Return whether the kept monitor can continue, so that the new one is not needed. It must have been fed these
        iterations (a restart may have undone some). And most of these iterations must not be newer than its
        expectations."""
        if (
            self.monitor is None
            or self.fed is None
            or (monitor.schedule, monitor.limits, monitor.hosts)
            != (self.monitor.schedule, self.monitor.limits, self.monitor.hosts)
        ):
            return False
        newest = next((one for one in reversed(measured) if one.number <= self.fed.number), None)
        return (
            newest is not None
            and newest.timing is self.fed.timing
            and sum(one.number > self.primed for one in measured) < RENEWED * len(measured)
        )


def verdicts(
    trace: Trace,
    schedule: Schedule | None = None,
    limits: Limits | None = None,
    delays: Delays | None = None,
    labels: stages.Labels | None = None,
) -> list[Verdict]:
    """Return one SLOW verdict for each fault, the most expensive first; or one HEALTHY; or one UNKNOWN with the reason.

    schedule: found in the trace if it is not given.
    delays: the known waits of ranks for a processor.
    labels: the labels of the calls by the schedule, if they are known.

    Raises ScheduleError if the given schedule doesn't fit.
    """
    watched = watch(trace, schedule, limits, delays, labels)
    if not isinstance(watched, WatchResult):
        return watched
    told = _told(watched)
    if longer := unexplained(watched):
        told.append(longer)
    if unequal := uneven(watched):
        told.append(unequal)
    return told or [healthy(watched)]


def watch(
    trace: Trace,
    schedule: Schedule | None = None,
    limits: Limits | None = None,
    delays: Delays | None = None,
    labels: stages.Labels | None = None,
    looks: WatchState | None = None,
) -> WatchResult | list[Verdict]:
    """Look at all iterations of a trace. If it has none, or too few, return the verdicts that are possible without
    them. looks: the state from earlier looks at the same job; it is updated."""
    delays, looks = delays or Delays(), looks or WatchState()
    if labels is None and schedule is None:
        try:
            labels = stages.inferred(trace)
        except ScheduleError as error:
            return stragglers.verdicts(trace, str(error), delays)
    schedule = labels.schedule if labels is not None else schedule
    assert schedule is not None
    if schedule.flat:
        stages.check_size(trace, schedule)
        return stragglers.verdicts(trace, delays=delays)
    labels = labels or stages.label(trace, schedule)
    measured = [one for one in iterations(labels, looks.measured) if not one.first]
    interrupted = set(labels.iteration[(trace.events["flags"] & Flag.STOPPED) > 0].tolist())
    measured = [one for one in measured if one.number not in interrupted]
    if len(measured) < 3:
        return [
            Verdict(
                State.UNKNOWN,
                f"{len(measured)} whole iterations are recorded: too few to tell a slow one",
                confidence=0.0,
                action="look again when more are",
            )
        ]
    uncertainty = (
        max((r.uncertainty_ns for r in trace.ranks.values()), default=0) * 1e-9
        if len({r.host for r in trace.ranks.values()}) > 1
        else 0.0
    )
    monitor = Monitor(schedule, limits or Limits(), {rank: known.host for rank, known in trace.ranks.items()})
    new, odd = measured, []
    if looks.go_on(measured, monitor):
        assert looks.monitor is not None and looks.fed is not None
        monitor = looks.monitor
        new = [one for one in measured if one.number > looks.fed.number]
        odd = [one for one in looks.odd if one.iteration.number >= measured[0].number]
    monitor.uncertainty = uncertainty
    monitor.disturbed = frozenset(one.number for one in new if _disturbed(one, trace, delays))
    if new is measured:
        calm = [one for one in measured if one.number not in monitor.disturbed]
        calm = calm if len(calm) >= MANY else measured
        monitor.prime([one.timing for one in calm], [one.seconds for one in calm])
        looks.primed = measured[-1].number
    begins = {one.number: one.begin for one in measured}
    for one in new:
        faults = monitor.feed([one.number], one.timing, np.array([one.seconds]))
        if faults or one.seconds * monitor.limits.performance > monitor.length:
            odd.append(
                _SlowIteration(
                    one,
                    tuple(
                        (finding, begins.get(one.number - max(finding.chronic - 1, 0), measured[0].begin))
                        for finding in faults
                    ),
                    monitor.length,
                )
            )
    looks.monitor, looks.odd, looks.fed = monitor, odd, measured[-1]
    found = [finding for one in odd for finding in one.found(schedule, delays)]
    return WatchResult(trace, monitor, measured, found)


def _starved(iteration: Iteration, usual: float, delays: Delays) -> list[Finding]:
    """Return the finding on a slow iteration in which no block or transfer stands out, if waits for a processor explain
    it. Such waits hit all blocks of a rank, and scatter. Only an upper limit of their cost is known: a wait costs
    nothing while the rank would have had to wait for others anyway."""
    excess = iteration.seconds - usual
    waits = {
        rank: wait * 1e-9
        for rank in delays.ranks
        if (wait := delays.waited(rank, iteration.begin, iteration.end)) is not None
    }
    rank = max(waits, key=waits.__getitem__, default=-1)
    if not waits or waits[rank] < EXPLAINS * excess:
        return []
    return [
        Finding(
            iteration.number,
            Cause.STARVED,
            rank,
            min(waits[rank], excess),
            iteration.seconds,
            usual,
            iteration.seconds,
            sampled=True,
        )
    ]


def _disturbed(iteration: Iteration, trace: Trace, delays: Delays) -> bool:
    """Return whether a rank had to wait for a processor. The usual length of an iteration, and its variation, are
    computed from the other iterations."""
    least = DISTURBED * (iteration.end - iteration.begin)
    return any((delays.waited(rank, iteration.begin, iteration.end) or 0) >= least for rank in trace.ranks)


def _attributed(finding: Finding, begin: int, end: int, schedule: Schedule, delays: Delays) -> Finding:
    """Return the finding attributed to its cause. The cause is a rank's processor if one of the ranks that take part
    waited for a processor for long enough (invariant 5). begin, end: of the finding's iterations, ns."""
    if finding.cause is Cause.COMPUTE:
        parties = finding.ranks or (finding.rank,)
    else:
        parties = (
            (finding.rank, finding.peer)
            if finding.peer is not None
            else tuple(schedule.ranks[schedule.places[finding.rank, 0]].ravel().tolist())
        )
    waits = {rank: wait for rank in parties if (wait := delays.waited(rank, begin, end)) is not None}
    if not waits:
        return finding
    rank = max(waits, key=waits.__getitem__)
    if waits[rank] * 1e-9 < EXPLAINS * (finding.took - finding.expected) * max(finding.chronic, 1):
        return replace(finding, sampled=True)
    return replace(
        finding, sampled=True, cause=Cause.STARVED, rank=rank, peer=None, ranks=(), vertex=None, phase=Phase.UNKNOWN
    )


def healthy(watched: WatchResult) -> Verdict:
    """Return the verdict that nothing is wrong with the job."""
    changes = tuple(
        f"at one point the work of all ranks became {factor:.2f} times what it was: no rank is to blame for that"
        for factor in watched.monitor.changes
    )
    text = (
        f"healthy: {len(watched.measured)} iterations, now of {span(int(watched.monitor.length * 1e9))}, none slow "
        "because of a rank or link"
    )
    schedule = watched.monitor.schedule
    odd = _unexplained(watched)
    longer = (f"{_longer(watched.monitor, odd)}, because of no single rank or link",) if odd else ()
    return Verdict(State.HEALTHY, text, evidence=(f"schedule {schedule}", *_alone(schedule), *changes, *longer))


def _alone(schedule: Schedule) -> list[str]:
    """Return the limits of the verdict if no stage has peers for comparison."""
    return [ALONE.format("replica" if schedule.tp > 1 else "rank")] if schedule.dp == 1 else []


def uneven(watched: WatchResult) -> Verdict | None:
    """Return the verdict that a good part of each iteration is lost to unequal work, or None. There is none if a rank
    is slow all the time, because that would look the same."""
    slow = {finding.iteration for finding in watched.found}.union(watched.monitor.unexplained)
    calm = [one for one in watched.measured if one.number not in slow]
    if any(finding.chronic for finding in watched.found) or len(calm) < len(watched.measured) / 2:
        return None
    monitor = watched.monitor
    found = balance.balance(monitor.schedule, calm)
    if found is None or found.lost < 1 - monitor.limits.performance or found.took - found.even < WORTH:
        return None
    shares = ((found.micros, "between micro-batches"), (found.stages, "between stages"))
    parts = ", ".join(f"{share:.0%} {where}" for share, where in shares if share >= 0.01)
    works = ", ".join(span(int(work * 1e9)) for work in found.work)
    evidence = [f"{parts}; work of the stages in an iteration: {works}"]
    if found.micros >= 0.01:
        evidence.append(
            f"the blocks of a micro-batch are long together (correlation {found.correlation:.2f}): it is its data"
        )
    evidence += _alone(monitor.schedule)
    return Verdict(
        State.SLOW,
        f"{found.lost:.0%} of each iteration is lost to unequal work, no rank or link is slow: it takes"
        f" {span(int(found.took * 1e9))}, and the same work spread evenly would take {span(int(found.even * 1e9))}",
        Cause.UNEQUAL,
        cost_ns=int((found.took - found.even) * 1e9),
        confidence=0.9,
        evidence=(*evidence, f"schedule {monitor.schedule}"),
        action=ACTIONS[Cause.UNEQUAL],
    )


def unexplained(watched: WatchResult) -> Verdict | None:
    """Return the verdict that iterations are longer than others and no single rank explains it, or None if that has
    cost less than a tenth of the time."""
    monitor = watched.monitor
    mine = _unexplained(watched)
    excess = sum(one.seconds - monitor.length for one in mine)
    if excess < max(WORTH, (1 - monitor.limits.performance) * sum(one.seconds for one in watched.measured)):
        return None
    return Verdict(
        State.UNKNOWN,
        f"{_longer(monitor, mine)}, no single rank or link explains it",
        iteration=max(mine, key=lambda one: one.seconds).number,
        confidence=0.3,
        evidence=(f"together they took {span(int(excess * 1e9))} more", f"schedule {monitor.schedule}"),
        action="is the data of these iterations different?",
    )


def _unexplained(watched: WatchResult) -> list[Iteration]:
    """Return the slow iterations for which no rank or link is at fault."""
    explained = {finding.iteration for finding in watched.found}
    return [one for one in watched.measured if one.number in set(watched.monitor.unexplained) - explained]


def _longer(monitor: Monitor, mine: list[Iteration]) -> str:
    """Return the text that says by how much these iterations are longer."""
    took = float(np.median([one.seconds for one in mine]))
    which = (
        f"{len(mine)} iterations from {mine[0].number} on are" if len(mine) > 1 else f"iteration {mine[0].number} is"
    )
    return (
        f"{which} {took / monitor.length:.1f} times as long as others ({span(int(took * 1e9))} instead of"
        f" {span(int(monitor.length * 1e9))})"
    )


def _told(watched: WatchResult) -> list[Verdict]:
    """Return findings as verdicts. Findings of the same rank and kind in several iterations make one verdict."""
    found = watched.found
    groups: dict[tuple[object, ...], list[Finding]] = {}
    slow = {rank for finding in found if not finding.chronic and finding.vertex is None for rank in finding.ranks}
    for finding in found:
        if finding.chronic and slow.intersection(finding.ranks):
            continue
        key: tuple[object, ...] = (
            finding.cause,
            finding.phase,
            finding.vertex,
            finding.iteration if finding.vertex is not None else None,
        )
        if finding.vertex is None and finding.ranks:  # of ranks that are slow together, the worst may change
            key = (
                *key,
                next(
                    (
                        known[-1]
                        for known, group in groups.items()
                        if known[:-1] == key and set(finding.ranks).intersection(group[0].ranks)
                    ),
                    finding.rank,
                ),
            )
        else:
            key = (*key, finding.rank)
        groups.setdefault(key, []).append(finding)
    told = [
        tell(watched, group)
        for group in groups.values()
        if sum(finding.cost * max(finding.chronic, 1) for finding in group) >= WORTH
    ]
    return sorted(told, key=lambda verdict: -(verdict.cost_ns or 0))


def tell(watched: WatchResult, group: list[Finding]) -> Verdict:
    """Return findings of one kind as one verdict."""
    first, monitor = group[0], watched.monitor
    schedule, graph = monitor.schedule, monitor.graph
    rank, host = first.rank, monitor.hosts.get(first.rank, "")
    name = f"rank {rank}{f' ({host})' if host else ''}"
    stage, micro, where = int(schedule.places[rank, 0]), None, ""
    if first.vertex is not None:
        stage, place = divmod(first.vertex, graph.blocks)
        block = schedule.blocks_of(stage)[place]
        micro = block.micro
        either = [schedule.blocks_of(stage)[one] for one in balance.merged(schedule, stage, place)]
        where = (
            " in "
            + " or ".join(f"{'backward' if one.backward else 'forward'} of micro-batch {one.micro}" for one in either)
            + f", iteration {first.iteration}"
        )
        if first.phase is Phase.TRANSFER:
            where = (
                where.replace(" in ", " after ", 1)
                if first.cause is Cause.COMPUTE
                else where.replace(" in ", " into ", 1)
            )
        stage = int(schedule.places[rank, 0])
    cost = float(np.median([f.cost for f in group]))
    count = len({f.iteration for f in group})
    took = f"{span(int(first.took * 1e9))} instead of {span(int(first.expected * 1e9))}"
    slowed = f"in {count} iteration{'s' if count > 1 else ''} from {min(f.iteration for f in group)} on"
    lasting = monitor.lasting.so_far(rank) if first.chronic else 0
    last = max(watched.measured[-1].number if lasting else 0, *(f.iteration for f in group))
    always = f"in {sum(f.chronic for f in group) + lasting} iterations up to {last}" if first.chronic else slowed
    ranks = sorted({r for f in group for r in f.ranks})
    usual = f"healthy ones take {span(int(monitor.length * 1e9))}"
    if first.chronic:  # no iteration was healthy
        usual = f"and would take {span(int((first.length - first.cost) * 1e9))} without that"
    if first.cause is Cause.NETWORK:
        whom = f"between {name} and rank {first.peer}" if first.peer is not None else f"of {name}'s group"
        text = f"the network {whom} is slow{where or f' {always}'}: a transfer takes {took}"
    elif first.cause is Cause.STARVED:
        text = (
            f"{name} waits for a processor, {always}: others run on those that it may use; the iteration took "
            f"{span(int(first.length * 1e9))}"
        )
    elif first.vertex is not None or first.phase is Phase.REDUCE:
        text = f"{name} is slow{where or ' before the gradient reduction'}: its own work took {took}"
    else:
        hosts = list(dict.fromkeys(monitor.hosts.get(r, "") for r in ranks))
        of = f" of {host}" if len(hosts) == 1 else f" ({', '.join(filter(None, hosts))})"
        who = f"{len(ranks)} ranks{of} are" if len(ranks) > 1 and host else f"{name} is"
        text = f"{who} slow {always}: the work of an iteration takes {took}"
    return Verdict(
        State.SLOW,
        (
            f"{text}; without that the iteration would be "
            f"{'up to ' if first.cause is Cause.STARVED else ''}{span(int(cost * 1e9))} shorter"
        ),
        first.cause,
        rank,
        first.peer,
        first.phase,
        stage,
        first.iteration,
        micro,
        detail=("always a little slower than its peers" if first.chronic else "throttled")
        if first.vertex is None and first.cause is Cause.COMPUTE and first.ranks
        else "",
        since_ns=next((one.begin for one in watched.measured if one.number == first.iteration), None),
        cost_ns=int(cost * 1e9),
        confidence=0.95 if first.cause is Cause.COMPUTE else 0.85,
        evidence=(
            f"iteration {first.iteration} took {span(int(first.length * 1e9))}, {usual}",
            *((f"equally slow: ranks {', '.join(map(str, ranks))}",) if len(ranks) > 1 else ()),
        ),
        alternatives=() if all(f.sampled for f in group) or first.chronic else (UNSAMPLED,),
        action=ACTIONS[first.cause],
    )
