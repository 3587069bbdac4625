"""What `manapy trace top` knows of a job: the rows and verdicts of its newest look.

Invariant
 1. Rows use the newest calls of each thread (ROWS in the whole job), the verdict uses more (WHY). `manapy why` uses
    all.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ...trace.capture import layout, rings
from ...trace.host import process_state, runqueue
from ...trace.live import rank_rows
from ...trace.live.rank_rows import Row
from ...trace.model import stages
from ...trace.model.schedule import Schedule, ScheduleError
from .diagnosis import judge

if TYPE_CHECKING:
    from ...trace.capture.locate import Found
    from ...trace.model.events import Trace
    from ...trace.model.verdict import Verdict

WHY_SHARE = 0.04  # of a processor
ROWS, WHY = 1 << 15, 1 << 17  # records
FEWEST = 64  # of a thread
EVERY = 3.0  # seconds between verdicts, at least


class View:
    """Looks at one job repeatedly.

    given: its schedule, None: it is inferred. trace, rows, verdicts: of the last look. misfit: why the given schedule
    cannot be used. due: time of the next verdict, in seconds of the monotonic clock.
    """

    def __init__(self, found: Found, given: Schedule | None) -> None:
        self.found, self.given, self.plan = found, given, given
        self.trace: Trace | None = None
        self.rows: list[Row] = []
        self.verdicts: list[Verdict] = []
        self.misfit = ""
        self.judging = 0.0  # processor time of all verdicts, in seconds
        self.due = 0.0
        self._sight: process_state.ProcessSample | None = None
        # sampled at each look: verdicts know which ranks waited for a processor since the first
        self._sampler = runqueue.Sampler()
        self._files = max(sum(1 for _ in layout.files_in(found.folder)), 1)
        if found.others is not None:
            found.others.total = WHY
        self._reader = rings.Reader(found.folder, keep=self._each(WHY), others=found.others)

    def look(self) -> None:
        """Update the rows, for the time since the last look; and the verdicts, if they are due or at the end."""
        self._reader.poll()
        trace = self._reader.trace(self._each(ROWS))
        self._files = max(len(trace.ranks), 1)
        before, self._sight = (
            self._sight,
            process_state.sight(trace) if self.found.live else process_state.ProcessSample(0, {}),
        )
        trace = process_state.described(trace, before or self._sight, self._sight)
        if any(
            known.process in (process_state.DEAD, process_state.ZOMBIE) and not known.ended
            for known in trace.ranks.values()
        ):
            self._reader.poll()  # it may have finalized MPI after the first poll
            trace = process_state.described(self._reader.trace(self._each(ROWS)), before or self._sight, self._sight)
        if self.found.live:
            self._sampler.watch(trace)
            self._sampler.sample()
        if time.monotonic() >= self.due or rank_rows.over(trace):
            self._judge(before or self._sight)
        self.rows = rank_rows.rows(self.trace, trace, self._labels(trace))
        self.trace = trace

    @property
    def over(self) -> bool:
        """Has the job ended?"""
        return not self.found.live or self.trace is not None and rank_rows.over(self.trace)

    def _each(self, records: int) -> int:
        """One thread's share of so many records."""
        return max(records // self._files, FEWEST)

    def _judge(self, before: process_state.ProcessSample) -> None:
        began = time.process_time()
        assert self._sight is not None
        self._reader.poll()  # a process that was dead at that look has already recorded everything
        trace = process_state.described(self._reader.trace(self._each(WHY)), before, self._sight)
        self.verdicts = judge(self.found, trace, self.given, live=False, sampler=self._sampler)
        if self.given is None:
            self.plan = _inferred(trace)
        took = time.process_time() - began
        self.judging += took
        self.due = time.monotonic() + max(EVERY, took / WHY_SHARE)

    def _labels(self, trace: Trace) -> stages.Labels | None:
        self.misfit = ""
        if self.plan is None or self.plan.flat:
            return None
        try:
            return stages.label(trace, self.plan)
        except ScheduleError as error:
            self.misfit = str(error) if self.given is not None else ""
            return None


def _inferred(trace: Trace) -> Schedule | None:
    """The schedule that the calls show; None without stages: it may not be a training job."""
    try:
        plan = stages.infer(trace)
    except ScheduleError:
        return None
    return plan if plan.pp > 1 else None
