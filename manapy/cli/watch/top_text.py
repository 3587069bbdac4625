"""The text and the data of `manapy trace top`.

If there is no room for a line for each rank, ranks that do the same share one (rank_groups.py).
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from ...core.units import and_more, first_and_more, ranges, size, span
from ...trace.live import rank_groups, rank_rows
from ...trace.live.diagnose import as_json, state
from ...trace.live.rank_groups import RankGroup
from ...trace.live.rank_rows import Host, Rdma, Row, State
from ...trace.model import calls
from ...trace.model.verdict import State as Judged
from ...trace.model.verdict import Verdict
from ..shared.output import aligned
from .top_view import View

WHICH = 30  # characters of a list of ranks

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

    If there is no room for all ranks, it has groups of ranks, and hosts. Verdicts are wrapped to ``width``.
    """
    assert view.trace is not None
    below = [*[(text, "yellow") for text in _problems(view)[:2]], *_why(view.verdicts, width)]
    hosts = [host for host in rank_rows.hosts(view.rows) if host.host]
    room = max(room - 2 - len(below), 1)  # without the head line, and the table's head
    if len(view.rows) <= room:
        shown = [RankGroup((row.rank,), (row.host,), row) for row in sorted(view.rows, key=rank_rows.SORTS[sort])]
        table, left_out = _ranks(shown, _EACH, several_hosts=len(hosts) > 1), ""
    else:
        below_ranks = _hosts(_fitting(hosts, view.rows, max(room // 2 - 1, 1))) if len(hosts) > 1 else []
        found, room = rank_groups.groups(view.rows, room - len(below_ranks)), max(room - len(below_ranks), 1)
        if sort == "wait":
            found.sort(key=lambda group: rank_rows.SORTS[sort](group.common))
        left_out = f" in {len(found)} groups" + (f", {room} of them shown" if room < len(found) else "")
        table = [*_ranks(found[:room], _GROUPED, several_hosts=len(hosts) > 1), *below_ranks]
    unseen = sum(row.state is State.UNRECORDED for row in view.rows)
    head = (
        f"{view.trace.job or view.found.folder.name}: {len(view.rows)} "
        f"ranks{f' on {len(hosts)} hosts' if len(hosts) > 1 else ''}{left_out}"
    )
    head += (f", {unseen} not recorded here" if unseen else "") + time.strftime(
        ", %H:%M:%S", time.localtime(view.trace.now / rank_rows.SECOND)
    )
    return [(head, "bold"), *table, *below]


def _problems(view: View) -> list[str]:
    assert view.trace is not None
    found = [*view.trace.problems, *(problem for known in view.trace.ranks.values() for problem in known.problems)]
    return [*([view.misfit] if view.misfit else []), *dict.fromkeys(found)]


def _why(verdicts: Sequence[Verdict], width: int | None) -> list[Line]:
    text = f"why: {verdicts[0].sentence}{and_more(verdicts, ': manapy why')}"
    return [
        (line, _JUDGED[verdicts[0].state])
        for line in (textwrap.wrap(text, width, subsequent_indent="  ") if width else [text])
    ]


Columns = dict[str, tuple[bool, Callable[[RankGroup], str]]]  # by head: is it right-aligned, the cell of a group
_EACH: Columns = {
    "rank": (True, lambda group: str(group.common.rank)),
    "host": (False, lambda group: group.common.host),
}
_GROUPED: Columns = {
    "ranks": (True, lambda group: str(len(group.ranks))),
    "which": (False, lambda group: ranges(group.ranks, WHICH)),
    "host": (False, lambda group: first_and_more(group.hosts)),
}


def _ranks(groups: Sequence[RankGroup], which: Columns, *, several_hosts: bool) -> list[Line]:
    """A line for each group. which: the columns that say which ranks it has."""
    rows = [group.common for group in groups]
    columns: Columns = {name: column for name, column in which.items() if name != "host" or several_hosts} | {
        "state": (False, lambda group: group.common.state.value),
        "for": (True, lambda group: _or_nothing(group.common.since_ns, span)),
        "iteration": (True, lambda group: _or_nothing(group.common.iteration, str)),
        "calls/s": (
            True,
            lambda group: _or_nothing(group.common.calls_s, lambda rate: f"{rate:.{0 if rate >= 10 else 1}f}"),
        ),
        "waited": (True, lambda group: _or_nothing(group.common.waited, _percent)),
        "sent/s": (True, lambda group: _or_nothing(group.common.sent_s, size)),
        "rdma": (False, lambda group: _or_nothing(group.common.rdma, _rdma)),
        "call": (False, _call),
    }
    for name in ("iteration", "rdma"):
        if all(getattr(row, name) is None for row in rows):
            del columns[name]
    cells = [list(columns), *([show(group) for _, show in columns.values()] for group in groups)]
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


def _call(group: RankGroup) -> str:
    """The current or last call of ranks, and which ranks wait."""
    row = group.common
    if row.state in (State.WAITING, State.TRANSFER):
        awaited = calls.named(row.waits_for)
        said = len(row.waits_for) == 1 and f"{awaited}," in f"{row.call},"
        return row.call + (f"; waits for {awaited}" if row.waits_for and not said else "")
    after = (
        f"after {row.call}" if row.call and row.state in (State.COMPUTING, State.AWAITED, State.PAUSED) else row.call
    )
    whom = "it" if len(group.ranks) == 1 else "each"
    return after + (f"; {calls.count(row.awaited_by, 'rank')} for {whom}" if row.awaited_by else "")
