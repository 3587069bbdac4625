"""Writes one recorded job as a self-contained page of HTML: it needs no network, other files or libraries.

report.js draws the timeline and the heatmap from columns of numbers in the page. The rest is plain HTML and SVG.

Invariants
 1. Names and texts of programs are escaped, in HTML and in the data of the script. The page's policy forbids it to load
    anything.
 2. The page has a bounded size, however large the trace is: constants limit each part, and the page says what was left
    out.
"""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from ...core.units import ranges, span
from ..model import calls, efficiency, match, waits
from ..model.events import OPEN, Flag, Op, Trace
from ..model.iterations import Iteration, iterations
from ..model.stages import PHASES, Labels
from ..model.verdict import Verdict, lines
from . import critical, heatmap, queues
from .markup import Time, cut, note, plural, table
from .timeline_bins import NOT_CALLS, Marks, marks

MARKS, LANES = 40_000, 128  # limits of the timeline
VERDICTS, PROBLEMS, ROWS = 24, 60, 80  # limits of lists and tables
RANKS = 60  # characters of a list of ranks

_KINDS = (
    ("send", "#2f6fb7", match.SENDS),
    ("receive", "#c2610c", (*match.RECEIVES, Op.PROBE, Op.MPROBE)),
    ("completion", "#8a63b8", (*match.COMPLETIONS, Op.START, Op.CANCEL, Op.REQUEST_FREE)),
    ("collective", "#2b8a3e", tuple(range(Op.BARRIER, Op.COMM_CREATE))),
    ("one-sided", "#0e8f9a", tuple(range(Op.WIN_FENCE, Op.WIN_FLUSH + 1))),
    ("set-up, files, other", "#6e7781", ()),
)
_KIND_OF = np.full(1 << 16, len(_KINDS) - 1, np.uint8)
for _kind, (_, _, _ops) in enumerate(_KINDS):
    _KIND_OF[[int(op) for op in _ops]] = _kind

_WHY = {
    waits.Wait.LATE_SENDER: "late sender",
    waits.Wait.LATE_RECEIVER: "late receiver",
    waits.Wait.WAIT_AT_NXN: "wait at N×N",
    waits.Wait.LATE_ROOT: "late root",
    waits.Wait.EARLY_ROOT: "early root",
}

_IS_OPEN, _NONBLOCKING, _KNOWN, _FAILED, _STOPPED = 1, 2, 4, 8, 16  # bits of a mark: report.js


def page(trace: Trace, verdicts: Sequence[Verdict], labels: Labels | None = None) -> str:
    """Return the complete page. verdicts: as diagnose() finds them. labels: of the schedule, if one is known."""
    matching = match.match(trace)
    found = waits.classify(trace, matching)
    measured = list(iterations(labels)) if labels is not None else []
    begin = int(trace.events["enter"].min()) if len(trace.events) else trace.now
    end = _end(trace, begin)
    named = {rank for verdict in verdicts for rank in (verdict.rank, verdict.peer) if rank is not None}
    drawn = marks(trace, found, MARKS, LANES, named)
    warm = heatmap.work(labels, measured) if labels is not None and measured else heatmap.share(trace, begin, end)
    data = _timeline_data(trace, matching, found, labels, drawn, begin, end) | {
        "flags": [
            {"at": v.since_ns - begin, "text": f"rank {v.rank}" if v.rank is not None else v.state.value}
            for v in verdicts[:VERDICTS]
            if v.since_ns is not None
        ],
        "iterations": [one.begin - begin for one in measured[:: 1 + len(measured) // 1000]],
        "heat": _heat_data(trace, warm, begin),
    }
    sections = [
        *(_verdict(verdict) for verdict in verdicts[:VERDICTS]),
        note(f"{len(verdicts) - VERDICTS} more verdicts: see <code>manapy why</code>")
        if len(verdicts) > VERDICTS
        else "",
        *(
            (_timeline(drawn, len(trace.events)), _heatmap(warm, measured))
            if len(trace.events)
            else (note("No call is recorded."),)
        ),
        critical.section(labels, measured, verdicts) if labels is not None and measured else "",
        _open_calls(trace, matching),
        _waits(trace, found),
        queues.section(trace, begin, end),
        _problems(trace, found),
    ]
    here = Path(__file__)
    title = escape(cut(f"manapy: {trace.job}" if trace.job else "manapy"))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; \
style-src 'unsafe-inline'">
<title>{title}</title>
<style>
{here.with_suffix(".css").read_text()}</style>
</head>
<body>
<h1>{title}</h1>
<p class="facts">{escape(_facts(trace, begin, end))}</p>
{"".join(sections)}
<div id="tip"></div>
<noscript><p>The timeline and the heatmap are drawn by the page's own script, which is turned off.</p></noscript>
<script type="application/json" id="data">{_json(data)}</script>
<script>
{here.with_suffix(".js").read_text()}</script>
</body>
</html>
"""


def _end(trace: Trace, begin: int) -> int:
    """Return the end of the time that is shown, ns: `now`, or the last return of a call if all ranks have finalized."""
    if trace.ranks and all(known.ended for known in trace.ranks.values()) and len(trace.events):
        return max(int(trace.events["exit"].max()), begin + 1)
    return max(trace.now, begin + 1)


def _facts(trace: Trace, begin: int, end: int) -> str:
    hosts = {known.host for known in trace.ranks.values() if known.host}
    said = [
        f"{len(trace.ranks)} of {trace.size} ranks" if len(trace.ranks) != trace.size else plural(trace.size, "rank")
    ]
    said += [f"on {plural(len(hosts), 'host')}"] if hosts else []
    said += [f"{plural(len(trace.events), 'record')} over {span(end - begin)}"]
    if begin > 10**18:  # the clock of the simulator begins at 0
        said.append(f"from {datetime.datetime.fromtimestamp(begin / 1e9, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC")
    generations = max((known.generation for known in trace.ranks.values()), default=0)
    return ", ".join([*said, f"restarted {plural(generations, 'time')}"] if generations else said)


def _rank(trace: Trace, rank: int) -> str:
    known = trace.ranks.get(rank)
    return f"rank {rank} ({known.host})" if known is not None and known.host else f"rank {rank}"


def _verdict(verdict: Verdict) -> str:
    sentence, *more = (line.strip() for line in lines(verdict))
    rest = "".join(f"<li>{escape(cut(line))}</li>" for line in more[:PROBLEMS])
    return (
        '<div class="verdict '
        f'{verdict.state.value}"><b>{escape(cut(sentence))}</b>{f"<ul>{rest}</ul>" if rest else ""}</div>\n'
    )


# ---- data for the script


def _json(data: object) -> str:
    """Return data for a script element: no text in it can end the element, or begin a comment."""
    return (
        json.dumps(data, separators=(",", ":")).replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    )


def _column(values: np.ndarray) -> dict[str, str]:
    """Return an array for report.js: integers in the smallest type that has room for them."""
    if values.dtype.kind != "f":
        lowest, highest = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        kinds = (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32)
        values = values.astype(
            next((kind for kind in kinds if np.iinfo(kind).min <= lowest and highest <= np.iinfo(kind).max), np.float64)
        )
    values = values.astype(values.dtype.newbyteorder("<"))
    return {
        "type": f"{values.dtype.kind}{values.dtype.itemsize}",
        "values": base64.b64encode(values.tobytes()).decode(),
    }


def _timeline_data(
    trace: Trace,
    matching: match.Matching,
    found: waits.Waits,
    labels: Labels | None,
    drawn: Marks,
    begin: int,
    end: int,
) -> dict[str, Any]:
    at = drawn.event
    events = trace.events[at]
    post = matching.post[at]
    source = np.where(post >= 0, post, at)  # for a completion, the post is shown: it says more
    bits = (
        _IS_OPEN * (events["exit"] == OPEN) + _NONBLOCKING * (events["flags"] & Flag.NONBLOCKING != 0)
        + _KNOWN * ((found.wait[at] > 0) | (found.transfer[at] > 0))
        + _FAILED * (events["flags"] & Flag.FAILED != 0) + _STOPPED * (events["flags"] & Flag.STOPPED != 0)
    )  # fmt: skip
    comm = np.where((events["comm"] >= 0) & (events["comm"] < len(trace.comms)), events["comm"], -1)
    used, index = np.unique(comm, return_inverse=True)
    hidden = int(used[0] < 0) if len(used) else 0
    columns = {
        "lane": drawn.lane, "begin": (drawn.begin - begin).astype(np.float64), "calls": drawn.calls, "op": events["op"],
        "kind": _KIND_OF[events["op"]], "bits": bits,
        "of": np.where(post >= 0, matching.op[source], 0), "peer": matching.peer[source], "tag": matching.tag[source],
        "comm": index.reshape(-1) - hidden,
        "bytes": events["bytes"].astype(np.float32), "who": found.who[at],
        "length": (drawn.end - drawn.begin).astype(np.float32), "inside": drawn.inside.astype(np.float32),
        "waited": drawn.waited.astype(np.float32),
    }  # fmt: skip
    if labels is not None:
        columns |= {"iteration": labels.iteration[at], "micro": labels.micro[at], "phase": labels.phase[at]}
    ops = np.union1d(columns["op"], columns["of"]).tolist()
    threads = any(thread for _, thread in drawn.lanes)
    return {
        "span": end - begin,
        "lanes": [_rank(trace, rank) + (f", thread {thread}" if threads else "") for rank, thread in drawn.lanes],
        "marks": {name: _column(values) for name, values in columns.items()},
        "kinds": [[name, colour] for name, colour, _ in _KINDS],
        "ops": {op: calls.name(op).removeprefix("MPI_") for op in ops},
        "sends": [int(op) for op in match.SENDS],
        "receives": [int(op) for op in (*match.RECEIVES, Op.PROBE, Op.MPROBE)],
        "comms": [calls.communicator(trace, i) for i in used[hidden:].tolist()],
        "phases": [phase.value for phase in PHASES],
    }


def _heat_data(trace: Trace, warm: heatmap.Heat, begin: int) -> dict[str, Any]:
    cells: dict[str, np.ndarray] = {
        "value": warm.values.ravel().astype(np.float32),
        "begin": (warm.begin - begin).astype(np.float64),
        "end": (warm.end - begin).astype(np.float64),
    }
    if warm.ratio is not None:
        cells["ratio"] = warm.ratio.ravel().astype(np.float32)
    return {
        "rows": [_rank(trace, a) if a == b else f"ranks {a} to {b}" for a, b in warm.rows],
        "columns": [str(a) if a == b else f"{a} to {b}" for a, b in warm.columns],
        "cells": {name: _column(values) for name, values in cells.items()},
    }


# ---- sections


def _timeline(drawn: Marks, records: int) -> str:
    legend = "".join(f'<span><i style="background:{colour}"></i>{name}</span>' for name, colour, _ in _KINDS)
    said = ["Drag to look closer, with shift to move; double-click for all of it; Ctrl and the wheel zoom."]
    if drawn.left_out:
        said.append(
            f"{drawn.left_out:,} of {drawn.left_out + len(drawn.lanes):,} ranks (or threads) are left out: shown are "
            "those that verdicts name, and others evenly from all."
        )
    if drawn.grain:
        few = (
            f"{records:,} records are too many to be drawn one by one: calls shorter than {span(drawn.grain)} are "
            "drawn together,"
        )
        said.append(f"{few} as high (in narrow rows: as dark) as the share of that time they took.")
    return (
        "<h2>What the ranks did</h2>\n"
        f'<p class="legend">{legend}<span><i style="background:#57606a;opacity:.35"></i>pale: waiting for another '
        "rank</span>"
        '<span><i style="background:#cf222e;opacity:.45"></i>has not returned</span><button data-zoom=".5">+</button> '
        '<button data-zoom="2">−</button></p>\n'
        f'<canvas id="timeline" role="img" aria-label="timeline of {len(drawn.lanes)} '
        f'ranks"></canvas>\n{note(" ".join(said))}'
    )


def _heatmap(warm: heatmap.Heat, measured: Sequence[Iteration]) -> str:
    if warm.ratio is not None:
        seconds = np.array([one.seconds for one in measured])
        title, scale = "Own work of each rank in each iteration", "linear-gradient(to right,#2166ac,#fff8e8,#b2182b)"
        low, high, rule = "half of what is usual in its stage", "twice", "the largest of them counts"
        median, longest = (span(float(value) * 1e9) for value in (np.median(seconds), seconds.max()))
        said = (
            f"{plural(len(measured), 'iteration')} that all ranks have ended: {median} (median), the longest {longest}."
        )
    else:
        title, scale = "Share of the time in MPI", "linear-gradient(to right,#fff,#1f4fa0)"
        low, high, rule = "none", "all of it", "the least of them counts"
        said = "No schedule of a training job is known. A rank with less than the others keeps them waiting."
    coarse = (
        f" Rows or columns that stand for several: {rule}."
        if any(a != b for a, b in [*warm.rows, *warm.columns])
        else ""
    )
    return (
        f'<h2>{title}</h2>\n<p class="legend">{low} <i style="width:8em;background:{scale}"></i> {high}; <span><i '
        'style="background:#e1e4e8"></i>not known</span></p>\n'
        '<canvas id="heatmap" role="img" '
        f'aria-label="{title}"></canvas>\n{note(f"{said}{coarse} Click to see it in the timeline.")}'
    )


def _open_calls(trace: Trace, matching: match.Matching) -> str:
    at = np.flatnonzero(
        (trace.events["exit"] == OPEN) & match.first_of_call(trace.events) & ~np.isin(trace.events["op"], NOT_CALLS)
    )
    if not len(at):
        return ""
    at = at[np.argsort(trace.events["enter"][at], kind="stable")]
    same: dict[str, list[int]] = {}
    for i in at.tolist():
        same.setdefault(calls.describe(trace, matching, i), []).append(i)
    rows = []
    for call, events in list(same.items())[:ROWS]:  # the call that has lasted longest comes first
        ranks = sorted({int(rank) for rank in trace.events["rank"][events]})
        whose = _rank(trace, ranks[0]) if len(ranks) == 1 else f"{len(ranks):,} ranks: {ranges(ranks, RANKS)}"
        rows.append((whose, call, Time(trace.now - int(trace.events["enter"][events[0]]))))
    return f"<h2>Calls that have not returned</h2>\n{table(('rank', 'call', 'for'), rows)}{_more(len(same))}"


def _waits(trace: Trace, found: waits.Waits) -> str:
    """Return the tables of waits: which rank waited for which, and sums per rank and kind of call."""
    rows = [row for row in waits.table(trace, found) if row.op not in NOT_CALLS]
    if not rows:
        return ""
    whom, groups = _who_for_whom(trace, found)
    by_wait = sorted(rows, key=lambda row: (-row.wait, row.rank))
    said = (
        note(f"{plural(found.uncertain, 'wait')} not counted: shorter than the clocks of the hosts are certain.")
        if found.uncertain
        else ""
    )
    return (
        "<h2>Who waited for whom</h2>\n"
        + (
            table(("rank", "waited for", "in", "why", "calls", "waiting", "longest"), whom) + _more(groups)
            if whom
            else note("No wait of one rank for another can be shown in these records.")
        )
        + said
        + "<h2>Time in MPI</h2>\n"
        + note(escape(efficiency.sentence(efficiency.efficiency(trace))))
        + table(
            ("rank", "call", "calls", "time", "waiting", "transfer", "mostly for"),
            [
                (
                    _rank(trace, r.rank),
                    calls.name(r.op),
                    r.calls,
                    Time(r.time),
                    Time(r.wait),
                    Time(r.transfer),
                    f"rank {r.culprit}" if r.culprit >= 0 else "",
                )
                for r in by_wait[:ROWS]
            ],
        )
        + _more(len(by_wait))
    )


def _who_for_whom(trace: Trace, found: waits.Waits) -> tuple[list[tuple[object, ...]], int]:
    """Return the rows of the table, the longest waits first, and the number of rows without the limit."""
    at = waits.one_per_call(trace, found)
    at = at[found.who[at] >= 0]
    keys = np.stack([trace.events["rank"][at], found.who[at], trace.events["op"][at], found.kind[at]])
    groups, of = np.unique(keys, axis=1, return_inverse=True)
    of, wait = of.reshape(-1), found.wait[at]
    count, longest = np.bincount(of, minlength=groups.shape[1]), np.zeros(groups.shape[1], np.int64)
    total = np.bincount(of, wait.astype(np.float64), minlength=groups.shape[1])
    np.maximum.at(longest, of, wait)
    rows = []
    for i in np.argsort(-total, kind="stable")[:ROWS].tolist():
        rank, who, op, kind = (int(key) for key in groups[:, i])
        rows.append(
            (
                *(_rank(trace, r) for r in (rank, who)),
                calls.name(op),
                _WHY[waits.Wait(kind)],
                int(count[i]),
                Time(total[i]),
                Time(longest[i]),
            )
        )
    return rows, groups.shape[1]


def _more(number: int) -> str:
    return note(f"{number - ROWS:,} more rows are left out.") if number > ROWS else ""


def _problems(trace: Trace, found: waits.Waits) -> str:
    """Return the section on what the records don't show."""
    begin = int(trace.events["enter"].min()) if len(trace.events) else 0
    said = list(trace.problems)
    missing = sorted(set(range(trace.size)) - set(trace.ranks))
    if missing:
        said.append(f"no records of {'rank' if len(missing) == 1 else 'ranks'} {calls.ranks(missing)}")
    for rank, known in sorted(trace.ranks.items()):
        said += [f"rank {rank}: {problem}" for problem in known.problems]
        if known.lost:
            since = f"; whole from {span(known.first_ns - begin)} on" if known.first_ns > begin else ""
            said.append(
                f"rank {rank}: {plural(known.lost, 'record')} lost (overwritten before they were read, or "
                f"damaged){since}"
            )
        if known.pauses:
            last = "still is" if known.paused else f"was until {span(known.pauses[-1][1] - begin)}"
            said.append(
                f"rank {rank}: its program has paused recording (MPI_Pcontrol) {plural(len(known.pauses), 'time')}, "
                f"and it {last}"
            )
    if not said:
        return f"<h2>What is not known</h2>\n{note('No record was lost.')}"
    rest = f"<li>{len(said) - PROBLEMS:,} more</li>" if len(said) > PROBLEMS else ""
    return (
        "<h2>What is not "
        f"known</h2>\n<ul>{''.join(f'<li>{escape(cut(text))}</li>' for text in said[:PROBLEMS])}{rest}</ul>\n"
    )
