"""Decides which findings on slow iterations are worth an alarm, in a job that is watched. Algorithm 2 of the MegaTrace
paper reports every slow iteration, which would be too many alarms.

A fault is worth an alarm if it costs FLOOR seconds, and SHARE of the time. It may cost this in one iteration, or in all
iterations of each half of a window of the newest ones. So a block that is late once by milliseconds, because the system
did something else, is not worth an alarm. Many such blocks are not, either, unless they are always of the same rank or
link. Costs are counterfactual: the time by which the iterations would be shorter without the fault (slow.py).

Invariants
 1. Both thresholds are those of a hang and of a slow iteration: timeouts.FLOOR and slow.Limits.performance. There are
    no other thresholds.
 2. A window has at least WINDOW seconds and FEWEST iterations. With fewer, only a single iteration can be slow.
 3. Findings of the sequential test alone have to add up to FLOOR, too.
 4. If a rank's waits for a processor are sampled, events before the first sample cause no alarm, because they can't be
    distinguished from such waits.
"""

from __future__ import annotations

from dataclasses import replace

from ...core.units import span
from ..hang.timeouts import FLOOR
from ..host.runqueue import Delays
from ..model.events import Trace
from ..model.iterations import Iteration
from ..model.schedule import Schedule
from ..model.stages import Labels
from ..model.verdict import Cause, State, Verdict
from . import slow
from .slow import Finding, WatchState, WatchResult

WINDOW = 5.0  # seconds
FEWEST = 16  # iterations


def verdicts(
    trace: Trace,
    schedule: Schedule | None = None,
    limits: slow.Limits | None = None,
    delays: Delays | None = None,
    labels: Labels | None = None,
    looks: WatchState | None = None,
) -> list[Verdict]:
    """Return verdicts like slow.verdicts, but only on findings that are worth an alarm. looks: the state from earlier
    looks at the same job; it is updated."""
    watched = slow.watch(trace, schedule, limits, delays, labels, looks)
    if not isinstance(watched, WatchResult):
        cheap = [
            replace(said, state=State.HEALTHY, cause=Cause.NONE, sentence=f"not worth an alarm: {said.sentence}")
            for said in watched
            if (said.cost_ns or FLOOR) < FLOOR
        ]
        return [said for said in watched if (said.cost_ns or FLOOR) >= FLOOR] or cheap
    sampled = delays.ranks if delays is not None else {}
    # invariant 4
    watched = replace(
        watched, found=[finding for finding in watched.found if finding.sampled or finding.rank not in sampled]
    )
    found = [*_single(watched), *_window(watched), *_chronic(watched)]
    if not found:
        said = slow.healthy(watched)
        small = sum(finding.cost for finding in watched.found if not finding.chronic)
        if small:
            said = replace(
                said,
                evidence=(*said.evidence, f"iterations that were slow for once have cost {span(int(small * 1e9))}"),
            )
        unequal = slow.uneven(watched)
        return [replace(said, evidence=(*said.evidence, unequal.sentence))] if unequal is not None else [said]
    return sorted(found, key=lambda verdict: -(verdict.cost_ns or 0))


def _share(watched: WatchResult) -> float:
    """Return the share of the healthy time that a fault has to cost."""
    return 1 / watched.monitor.limits.performance - 1


def _single(watched: WatchResult) -> list[Verdict]:
    """Return verdicts on single iterations that one fault alone has made longer by that share."""
    least = max(FLOOR * 1e-9, _share(watched) * watched.monitor.length)
    return [slow.tell(watched, [finding]) for finding in watched.found if not finding.chronic and finding.cost >= least]


def _fault(finding: Finding) -> tuple[object, ...]:
    """Return a key that is equal for findings with the same fault: of one rank, or of one link in either direction."""
    return finding.cause, frozenset((finding.rank, finding.peer)) if finding.cause is Cause.NETWORK else finding.rank


def _newest(measured: list[Iteration]) -> list[Iteration]:
    """Return the iterations of the window, or none if there are too few."""
    length = 0.0
    for count, one in enumerate(reversed(measured), 1):
        length += one.seconds
        if length >= WINDOW and count >= FEWEST:
            return measured[-count:]
    return []


def _window(watched: WatchResult) -> list[Verdict]:
    """Return verdicts on faults that have made both halves of the window longer by that share."""
    window = _newest(watched.measured)
    if not window:
        return []
    numbers = {one.number: one for one in window}
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in watched.found:
        if not finding.chronic and finding.iteration in numbers:
            groups.setdefault(_fault(finding), []).append(finding)
    middle = (window[0].begin + window[-1].end) // 2
    found = []
    for group in groups.values():
        halves = [
            sum(f.cost for f in group if (numbers[f.iteration].end > middle) == second) for second in (False, True)
        ]
        healthy = [
            watched.monitor.length * sum((one.end > middle) == second for one in window) for second in (False, True)
        ]
        if sum(halves) >= FLOOR * 1e-9 and all(
            cost >= _share(watched) * of for cost, of in zip(halves, healthy, strict=True)
        ):
            found.append(_lasting(watched, group, window))
    return found


def _lasting(watched: WatchResult, group: list[Finding], window: list[Iteration]) -> Verdict:
    """Return the verdict on a permanent fault. It is named by its most expensive finding."""
    said = slow.tell(watched, sorted(group, key=lambda finding: -finding.cost))
    cost, took = sum(finding.cost for finding in group), (window[-1].end - window[0].begin) * 1e-9
    slowed = len({finding.iteration for finding in group})
    text = (
        f"{slowed} of the last {len(window)} iterations were slower because of this, by {span(int(cost * 1e9))} of "
        f"{span(int(took * 1e9))}"
    )
    sentence = f"{said.sentence}; {text}"
    return replace(said, sentence=sentence, iteration=None, micro=None, since_ns=None, share=cost / took)


def _chronic(watched: WatchResult) -> list[Verdict]:
    """Return verdicts on ranks that are always a little slower, and have been for long enough to cost FLOOR."""
    groups: dict[int, list[Finding]] = {}
    for finding in watched.found:
        if finding.chronic:
            groups.setdefault(finding.rank, []).append(finding)
    costly = [
        group for group in groups.values() if sum(finding.cost * finding.chronic for finding in group) >= FLOOR * 1e-9
    ]
    return [replace(slow.tell(watched, group), since_ns=None) for group in costly]
