"""The live view of `manapy trace top`: what each rank is doing now.

Invariants
 1. The view takes at most ROWS_SHARE + WHY_SHARE of a processor: the cost of a look decides the time until the next
    one.
 2. Rows use the newest calls of each thread (ROWS in the whole job), the verdict uses more (WHY). `manapy why` uses
    all.
"""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ...core.units import size, span
from ...trace.capture import rings
from ...trace.host import proc, runqueue
from ...trace.live import rank_rows
from ...trace.live.diagnose import as_json, state
from ...trace.live.rank_rows import Host, Rdma, Row, State
from ...trace.model import calls, stages
from ...trace.model.schedule import Schedule, ScheduleError
from ...trace.model.verdict import State as Judged
from ..shared.output import Output, aligned
from . import status_watch
from .diagnosis import judge

if TYPE_CHECKING:
    from rich.text import Text

    from ...trace.capture.locate import Found
    from ...trace.model.events import Trace
    from ...trace.model.verdict import Verdict

ROWS_SHARE, WHY_SHARE = 0.05, 0.04  # of a processor
ROWS, WHY = 1 << 15, 1 << 17  # records
FEWEST = 64  # of a thread
EVERY = 3.0  # seconds between verdicts, at least
LINES = 80  # if stdout is not a terminal

Line = tuple[str, str]  # text and its style
_STYLES = {
    State.DEAD: "bold red",
    State.STOPPED: "bold red",
    State.AWAITED: "yellow",
    State.TRANSFER: "cyan",
    State.COMPUTING: "green",
    State.UNRECORDED: "dim",
    State.PAUSED: "dim",
    State.FINISHED: "dim",
}
_JUDGED = {
    Judged.HEALTHY: "green",
    Judged.LATE: "yellow",
    Judged.SLOW: "yellow",
    Judged.HUNG: "bold red",
    Judged.UNKNOWN: "",
}


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
        self._sight: proc.Sight | None = None
        # sampled at each look: verdicts know which ranks waited for a processor since the first
        self._sampler = runqueue.Sampler()
        self._files = max(sum(1 for _ in found.folder.glob("rank-*.trace")), 1)
        self._reader = rings.Reader(found.folder, keep=self._each(WHY), others=found.others)

    def look(self) -> None:
        """Update the rows, for the time since the last look; and the verdicts, if they are due or at the end."""
        self._reader.poll()
        trace = self._reader.trace(self._each(ROWS))
        self._files = max(len(trace.ranks), 1)
        before, self._sight = self._sight, proc.sight(trace) if self.found.live else proc.Sight(0, {})
        trace = proc.described(trace, before or self._sight, self._sight)
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

    def _judge(self, before: proc.Sight) -> None:
        began = time.process_time()
        assert self._sight is not None
        self._reader.poll()  # a process that was dead at that look has already recorded everything
        trace = proc.described(self._reader.trace(self._each(WHY)), before, self._sight)
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


def top(found: Found, plan: Schedule | None, interval: float, once: bool, sort: str, out: Output) -> None:
    """Show the view until the job has ended, or Ctrl-C. once: print it once, for a live job after `interval`
    seconds."""
    view = View(found, plan)
    if once:
        view.look()
        if not view.over:
            time.sleep(interval)
            view.due = 0.0  # processes have been seen twice now, so that their activity is known
            view.look()
        out.data(data(view))
        for line, _ in lines(view, sort, LINES):
            out.line(line)
        return
    from rich.text import Text

    spent = 0.0

    def picture() -> tuple[Text, float | None]:
        nonlocal spent
        began = time.monotonic()
        view.look()
        shown = Text(no_wrap=True, overflow="ellipsis", end="")
        width, height = os.get_terminal_size(out.file.fileno())
        for i, (line, style) in enumerate(lines(view, sort, (height or 24) - 1, width or 80)):
            shown.append("\n" * bool(i) + line, style)
        so_far = time.process_time() - view.judging  # includes the drawing of the last picture
        cost, spent = so_far - spent if spent else 0.0, so_far  # the first look reads everything and does not count
        return shown, None if view.over else max(max(interval, cost / ROWS_SHARE) - (time.monotonic() - began), 0.0)

    status_watch.draw(picture, out)


# ---- what is shown


def data(view: View) -> dict[str, Any]:
    """The whole view, for JSON."""
    assert view.trace is not None
    return {
        "recording": str(view.found.folder),
        "job": str(view.found.job.dir) if view.found.job else None,
        "now_ns": view.trace.now,
        "schedule": str(view.plan) if view.plan is not None else None,
        "ranks": [asdict(row) | {"state": row.state.value} for row in view.rows],
        "hosts": [
            asdict(host) | {"states": {known.value: count for known, count in host.states.items()}}
            for host in rank_rows.hosts(view.rows)
        ],
        "state": state(view.verdicts).value,
        "verdicts": [as_json(verdict) for verdict in view.verdicts],
        "problems": _problems(view),
    }


def lines(view: View, sort: str, room: int, width: int | None = None) -> list[Line]:
    """The view for people, in at most ``room`` lines.

    If there is no room for all ranks, it has the most conspicuous ranks, and hosts. Verdicts are wrapped to ``width``.
    """
    assert view.trace is not None
    below = [*[(text, "yellow") for text in _problems(view)[:2]], *_why(view.verdicts, width)]
    hosts = [host for host in rank_rows.hosts(view.rows) if host.host]
    room -= 2 + len(below)  # the head line, and the table's head
    table: list[Line] = []
    shown = view.rows
    if len(shown) > max(room, 1):
        table = _hosts(_fitting(hosts, view.rows, max(room // 2 - 1, 1)))
        shown = sorted(view.rows, key=rank_rows.SORTS["state" if sort == "rank" else sort])[: max(room - len(table), 1)]
    shown = sorted(shown, key=rank_rows.SORTS[sort])
    left_out = f", {len(shown)} of them shown" if len(shown) < len(view.rows) else ""
    unseen = sum(row.state is State.UNRECORDED for row in view.rows)
    head = (
        f"{view.trace.job or view.found.folder.name}: {len(view.rows)} "
        f"ranks{f' on {len(hosts)} hosts' if len(hosts) > 1 else ''}{left_out}"
    )
    head += (f", {unseen} not recorded here" if unseen else "") + time.strftime(
        ", %H:%M:%S", time.localtime(view.trace.now / rank_rows.SECOND)
    )
    return [
        (head, "bold"),
        *_ranks(shown, several_hosts=len(hosts) > 1, iterations=any(row.iteration is not None for row in view.rows)),
        *table,
        *below,
    ]


def _problems(view: View) -> list[str]:
    assert view.trace is not None
    found = [*view.trace.problems, *(problem for known in view.trace.ranks.values() for problem in known.problems)]
    return [*([view.misfit] if view.misfit else []), *dict.fromkeys(found)]


def _why(verdicts: Sequence[Verdict], width: int | None) -> list[Line]:
    more = f" (and {len(verdicts) - 1} more: manapy why)" if len(verdicts) > 1 else ""
    text = f"why: {verdicts[0].sentence}{more}"
    return [
        (line, _JUDGED[verdicts[0].state])
        for line in (textwrap.wrap(text, width, subsequent_indent="  ") if width else [text])
    ]


def _ranks(rows: Sequence[Row], several_hosts: bool, iterations: bool) -> list[Line]:
    columns = {
        "rank": (True, lambda row: str(row.rank)),
        **({"host": (False, lambda row: row.host)} if several_hosts else {}),
        "state": (False, lambda row: row.state.value),
        "for": (True, lambda row: span(row.since_ns) if row.since_ns is not None else ""),
        **({"iteration": (True, lambda row: _or_nothing(row.iteration, str))} if iterations else {}),
        "calls/s": (
            True,
            lambda row: _or_nothing(row.calls_s, lambda rate: f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"),
        ),
        "waited": (True, lambda row: _or_nothing(row.waited, _percent)),
        "sent/s": (True, lambda row: _or_nothing(row.sent_s, size)),
        **({"rdma": (False, lambda row: _or_nothing(row.rdma, _rdma))} if any(row.rdma for row in rows) else {}),
        "call": (False, _call),
    }
    cells = [list(columns), *([show(row) for _, show in columns.values()] for row in rows)]
    texts = aligned(cells, [right for right, _ in columns.values()])
    return [
        (texts[0], "bold"),
        *((text, _STYLES.get(row.state, "")) for text, row in zip(texts[1:], rows, strict=True)),
    ]


def _fitting(hosts: list[Host], rows: Sequence[Row], room: int) -> list[Host]:
    """The most conspicuous hosts, and one line for the others."""
    if len(hosts) <= room:
        return hosts
    found = sorted(hosts, key=lambda host: host.conspicuous)[: room - 1]
    named = {host.host for host in found}
    others = [row for row in rows if row.host and row.host not in named]
    return [*found, rank_rows.summary(f"{len(hosts) - len(found)} others" if found else f"{len(hosts)} hosts", others)]


def _hosts(hosts: Sequence[Host]) -> list[Line]:
    columns = ("host", "ranks", "waited", "sent/s", "states")
    cells = [
        [host.host, str(host.ranks), _or_nothing(host.waited, _percent), size(host.sent_s), _counted(host.states)]
        for host in hosts
    ]
    texts = aligned([list(columns), *cells], (False, True, True, True, False))
    return [
        (texts[0], "bold"),
        *((text, _STYLES.get(next(iter(host.states)), "")) for text, host in zip(texts[1:], hosts, strict=True)),
    ]


def _or_nothing(value: Any, show: Any) -> str:
    return "" if value is None else show(value)


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _counted(states: dict[State, int]) -> str:
    return ", ".join(f"{count} {known.value}" for known, count in states.items())


def _rdma(known: Rdma) -> str:
    return f"{known.pairs} QPs, {size(known.posted_s)}/s, {known.in_flight} in flight"


def _call(row: Row) -> str:
    """The current or last call of a rank, and which ranks wait."""
    if row.state in (State.WAITING, State.TRANSFER):
        whom = calls.ranks(row.waits_for)
        named = len(row.waits_for) == 1 and f"rank {whom}," in f"{row.call},"
        return row.call + (
            f"; waits for {'rank' if len(row.waits_for) == 1 else 'ranks'} {whom}" if whom and not named else ""
        )
    after = (
        f"after {row.call}" if row.call and row.state in (State.COMPUTING, State.AWAITED, State.PAUSED) else row.call
    )
    return after + (f"; {calls.count(row.awaited_by, 'rank')} for it" if row.awaited_by else "")
