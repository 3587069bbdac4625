"""A chain's history for people: its current state, one row per attempt, and a picture."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import ManapyError
from . import lock, policy, steps, timing
from .record import SUPERVISOR_LOCK, Chain, chains_in

TAIL = 4096  # bytes of the output in which its last line is looked for
_ESCAPE = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|[@-_])")  # ECMA-48

COLOURS = {
    "finished": "#4c9f70",
    "left": "#5b8db8",
    "yielded": "#8172b3",
    "stopped": "#ccb974",
    "crashed": "#c44e52",
    "hung": "#937860",
    "lost": "#c44e52",
    "expired": "#dd8452",
    "taken": "#dd8452",
    "running": "#bbbbbb",
}


class NoMatplotlib(ManapyError):
    """The library that draws is not installed."""


class Attempt(NamedTuple):
    """One row. Times in seconds since the epoch; ``how`` running, or as in attempt.Outcome, or lost."""

    number: int
    id: str
    nodes: list[str]
    begin: float
    end: float
    how: str
    reason: str
    deadline: float | None
    checkpoints: list[dict[str, Any]]
    failed: list[dict[str, Any]]
    resumed: list[str]  # checkpoints that steps continued from
    recovery: dict[str, float]  # see _recovery


def attempts(chain: Chain, now: float | None = None) -> list[Attempt]:
    """All attempts so far."""
    found = []
    for number in range(1, chain.attempts() + 1):
        events = chain.events(attempt=number)
        first = next(event for event in events if event["event"] == "attempt")
        end = next((event for event in events if event["event"] == "end"), None)
        begin, until = policy.span(chain, number, now)
        how, reason = (end["how"], end["reason"]) if end else ("running", "")
        resumed = [step["path"] for step in chain.steps(number) if step["verdict"] == "resume"]
        kinds = {kind: [e for e in events if e["event"] == kind] for kind in ("checkpoint", "failed")}
        found.append(
            Attempt(
                number,
                first["id"],
                first["nodes"],
                begin,
                until,
                how,
                reason,
                first["deadline"],
                kinds["checkpoint"],
                kinds["failed"],
                resumed,
                _recovery(chain, number),
            )
        )
    return found


def _recovery(chain: Chain, number: int) -> dict[str, float]:
    """How long the recovery from the failure of the attempt before took, in parts; empty if that did not fail, or no
    step has come so far. Seconds.

    ended: from the moment when the failure was noticed to the end of all processes; paused: the pause before this
    attempt; started: until manapy-launch asked what to do (the script and mpirun); restored: until all ranks ran.
    """
    before, begun = chain.events("end", number - 1), chain.events("attempt", number)
    running = chain.events("running", number)
    if not before or before[0]["how"] not in policy.FAILED or not running:
        return {}
    asked = [event for event in chain.events("step", number) if event["step"] == running[0]["step"]]
    ended = before[0]["time"]
    moments = [before[0].get("noticed") or ended, ended, begun[0]["time"], asked[0]["time"], running[0]["since"]]
    names = ("ended", "paused", "started", "restored")
    return {name: round(to - since, 3) for name, since, to in zip(names, moments[:-1], moments[1:], strict=True)}


def state(chain: Chain) -> str:
    """The state of a chain in one phrase."""
    over = chain.over()
    if over is not None:
        return (
            f"finished with exit code {over['code']}" if over["event"] == "finished" else f"stopped: {over['reason']}"
        )
    if not chain.attempts():
        tasks = chains_in(chain.dir)
        return f"a job array: each task has a chain of its own, such as {min(tasks)}" if tasks else "not begun yet"
    if chain.events("end", chain.attempts()):
        return "between two attempts"
    return "running" + (f", but {gone}" if (gone := gone_supervisor(chain)) else "")


def gone_supervisor(chain: Chain) -> str:
    """What has become of the supervisor, if it is gone although an attempt has no end: a phrase; else empty."""
    if not chain.attempts() or chain.events("end", chain.attempts()):
        return ""
    return lock.gone(chain.dir / SUPERVISOR_LOCK)


def last_words(chain: Chain) -> str:
    """The last line that the script has written, if its output is a file.

    manapy's own lines are skipped, and control characters are removed.
    """
    begun = chain.events("attempt")
    path = begun[-1].get("output") if begun else ""
    try:
        with open(path or os.devnull, "rb") as stream:
            stream.seek(max(stream.seek(0, os.SEEK_END) - TAIL, 0))
            text = stream.read(TAIL).decode(errors="replace")
    except OSError:
        return ""
    lines = [
        line
        for line in ("".join(filter(str.isprintable, _ESCAPE.sub("", line))).strip() for line in text.splitlines())
        if line and not line.startswith("manapy: ")
    ]
    return lines[-1] if lines else ""


def summary(chain: Chain, margin: float = timing.MARGIN) -> dict[str, Any]:
    """The current state, as data.

    Times in seconds; ``again``: the command that continues the chain, if it was stopped; ``leaves_at``: when the
    running attempt will be saved at the latest; ``output``: the last line.
    """
    rows = attempts(chain)
    last = rows[-1] if rows else None
    taken = [event for row in rows for event in row.checkpoints]
    measured, copy = timing.measured(taken)
    running = last is not None and last.how == "running"
    deadline = last.deadline if running and last is not None else None
    lead = None
    if deadline is not None and last is not None:
        lead = timing.lead(measured, deadline - last.begin, margin, copy)
    met = {event["step"]: event for event in chain.events("step")}
    fates = {number: steps.fate_of(chain, event) for number, event in met.items()}
    return {
        "dir": str(chain.dir),
        "state": state(chain),
        "again": (chain.over() or {}).get("again", ""),
        "command": chain.record["command"],
        "attempts": len(rows),
        "allocations": len({(row.id, row.deadline) for row in rows if row.id}),
        "used": policy.used(chain),
        "checkpoints": len(taken),
        "last_checkpoint": {k: taken[-1][k] for k in ("path", "time", "seconds", "bytes")} if taken else None,
        "deadline": deadline,
        "leaves_at": deadline - lead if deadline is not None and lead is not None else None,
        "steps": [
            {**{k: e[k] for k in ("step", "argv", "ranks", "verdict", "dir")}, "done": fates[number].kind == "done"}
            for number, e in met.items()
        ],
        "output": last_words(chain),
    }


def draw(chain: Chain, path: Path) -> None:
    """The timeline as a PNG: attempts as bars, checkpoints as marks. Raises NoMatplotlib, and ManapyError without
    attempts."""
    rows = attempts(chain)
    if not rows:
        raise ManapyError(f"{chain.dir}: nothing has run yet")
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise NoMatplotlib("the picture needs matplotlib (manapy's extra 'slurm'), or --no-plot") from None
    start = rows[0].begin
    whole = max(rows[-1].end - start, 1.0)
    unit, name = next(
        (u, n)
        for u, n in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
        if whole >= 2 * u or u == 1.0
    )
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.32 * len(rows)))
    labels = set()
    for row in rows:
        label = row.how if row.how not in labels else None
        labels.add(row.how)
        axes.barh(
            row.number,
            (row.end - row.begin) / unit,
            left=(row.begin - start) / unit,
            height=0.6,
            color=COLOURS[row.how],
            label=label,
        )
        for events, marker, colour, text in (
            (row.checkpoints, "|", "black", "checkpoint"),
            (row.failed, "x", "#c44e52", "failed checkpoint"),
        ):
            if events:
                times = [(event["time"] - start) / unit for event in events]
                axes.plot(
                    times,
                    [row.number] * len(times),
                    marker,
                    color=colour,
                    markersize=11,
                    label=text if text not in labels else None,
                )
                labels.add(text)
    axes.set_xlabel(f"{name} since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(start))}")
    axes.set_ylabel("attempt")
    axes.set_yticks([row.number for row in rows], [f"{row.number}{f' ({row.id})' if row.id else ''}" for row in rows])
    axes.invert_yaxis()
    axes.set_title(f"{chain.dir.name}: {state(chain)}")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35 / (0.4 + 0.12 * len(rows))), ncols=5, frameon=False)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
