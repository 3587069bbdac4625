"""Looks at a job again and again until it has ended: for `manapy why --watch`, and for the watch that a chain keeps.

Invariants
 1. There is one more look after the end of the job, so that events after the previous look are seen.
 2. While all ranks of a job on this host make progress, nothing is read but the heads of their rings
    (head_progress.py), and slow ranks are looked for every WINDOW seconds only, unless it has to be found out whether
    one stays slow.
 3. A look at a recording of which nothing can be read, because no host answers, has no result. It is made again. It
    is an error if it is the first look, after BLIND seconds without a result, and if the job has ended.
 4. A watch with a ``share`` takes at most that share of a processor for its looks while nothing is wrong, and a fifth
    of one otherwise.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ..shared.leaving import Leaving
from .diagnosis import look

if TYPE_CHECKING:
    from ...trace.capture.locate import Found
    from ...trace.hang.network import Probe
    from ...trace.host.runqueue import Sampler
    from ...trace.live.standing import StandingVerdicts, WatchUpdate
    from ...trace.model.events import Trace
    from ...trace.model.schedule import Schedule
    from ...trace.model.verdict import Verdict


BLIND = 600.0  # seconds


class LookResult(NamedTuple):
    """One look. ``over``: the job has ended, and this is the last one."""

    trace: Trace
    verdicts: list[Verdict]
    news: WatchUpdate
    over: bool


def looks(
    found: Found,
    sampler: Sampler,
    leaving: Leaving,
    standing: StandingVerdicts,
    every: float,
    plan: Schedule | None = None,
    probe: Probe | None = None,
    share: float | None = None,
) -> Iterator[LookResult]:
    """Look every ``every`` seconds, until the job has ended or a signal asks to leave. ``share``: invariant 4. Raises
    NoTraceError (invariant 3)."""
    from ...trace.capture.rings import NoTraceError
    from ...trace.live.diagnose import DiagnosisState
    from ...trace.live.head_progress import ProgressWatch
    from ...trace.live.stack_memory import SuspectStacks
    from ...trace.model.verdict import State
    from ...trace.slow.alarms import WINDOW
    from ...trace.slow.slow import WatchState

    pulse, watched, looked, stacks = ProgressWatch(found.folder), WatchState(), DiagnosisState(), SuspectStacks()
    over, seen = False, -math.inf  # seen: when the last look with a result began
    while True:
        used, began = _used(), time.monotonic()
        try:
            trace, verdicts = look(
                found, plan, sampler=sampler, watched=watched, probe=probe, looked=looked, take_stacks=False
            )
        except NoTraceError:
            if over or began - seen > BLIND or found.job is not None and found.job.end() is not None:
                raise
            if leaving.wait(every):
                return
            continue
        seen = began
        news = standing.look(verdicts, time.monotonic(), last=over)
        if found.live and not over:
            evident = stacks.added(verdicts, news.act, trace, found.others)
            news = _with_evidence(news, verdicts, evident)
            verdicts = evident
        yield LookResult(trace, verdicts, news, over)
        if over or leaving.asked:
            return
        over = _over(found, trace)
        used = _used() - used
        pause, calm = (every, WINDOW) if share is None else (max(every, 5 * used), max(WINDOW, used / share))
        due = time.monotonic() + (pause if standing.suspects else calm)
        well = standing.worst not in (State.HUNG, State.LATE) and not standing.suspects
        if found.others is not None and share is not None and well:
            pause = calm
        leaving.wait(0.0 if over else pause)
        while found.others is None and not over and not leaving.asked and time.monotonic() < due and pulse.beats():
            leaving.wait(every)


def _used() -> float:
    """Processor time of this process and of the processes that it has started (py-spy, remote shells), seconds."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _with_evidence(news: WatchUpdate, verdicts: list[Verdict], evident: list[Verdict]) -> WatchUpdate:
    """Return the news with more evidence. evident: the same verdicts, with it."""
    more = {id(verdict): evidence for verdict, evidence in zip(verdicts, evident, strict=True)}
    new, act = (tuple(more.get(id(verdict), verdict) for verdict in group) for group in (news.new, news.act))
    return replace(news, new=new, act=act)


def _over(found: Found, trace: Trace) -> bool:
    """Has the job ended, as far as this host can see?"""
    from ...trace.host import process_state

    if all(known.ended for known in trace.ranks.values()):
        return True
    here, gone = process_state.here(trace), found.others.gone() if found.others else frozenset()
    return gone.union(here) >= set(trace.ranks) and all(
        process_state.look(trace.ranks[r].pid, trace.ranks[r].pid_start).state == process_state.DEAD for r in here
    )
