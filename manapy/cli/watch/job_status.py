"""The status of a job as `manapy status` prints it.

A job with many ranks is shown in groups of ranks that do the same, so that it fits a screen.
"""

from __future__ import annotations

import time
from typing import Any

from ...core.units import ago, first_and_more, ranges, size
from ..shared.output import Output

MANY = 32  # more ranks are shown in groups
GROUPS = 20  # the largest ones are shown
SHOWN = 40  # characters of a list of ranks


def show(status: dict[str, Any], out: Output, *, each: bool = False) -> None:
    """Print the status. each: one line for each rank, also of many."""
    protocol = "" if status["protocol"] == "cc" else f", protocol {status['protocol']}"
    out.line(f"job {status['id']} in {status['dir']}: {status['state']}, {status['size']} ranks{protocol}")
    if each or len(status["ranks"]) <= MANY:
        rows = [(r["rank"], r["host"], r["pid"], *_what(r)) for r in status["ranks"]]
        out.table(("rank", "host", "pid", "state", "waits for", "program"), rows)
    else:
        _show_groups(status["ranks"], out)
    for text in status.get("waiting", []):
        out.line(text)
    if status["dirty"]:
        used = f", used: {' and '.join(status['dirty_used'])}" if status["dirty_used"] else ""
        out.line(f"checkpoints write what has changed since the last one (--dirty {status['dirty']}{used})")
    if status["checkpoint_dir"] != status["dir"]:
        out.line(f"checkpoints go to {status['checkpoint_dir']}")
    if last := status.get("last_checkpoint"):
        out.line(f"last checkpoint {last['path']}, {ago(time.time() - last['time'])} ago, {size(last['bytes'])}")
    else:
        out.line("no checkpoint yet")


def _what(rank: dict[str, Any]) -> tuple[str, str, str]:
    return rank["state"], rank.get("waits_for") or "", rank.get("program") or ""


def _show_groups(ranks: list[dict[str, Any]], out: Output) -> None:
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for rank in ranks:
        groups.setdefault(_what(rank), []).append(rank)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    rows = []
    for what, members in ordered[:GROUPS]:
        where = first_and_more(sorted({rank["host"] for rank in members if rank["host"]}))
        rows.append((len(members), ranges([rank["rank"] for rank in members], SHOWN), where, *what))
    out.table(("ranks", "which", "hosts", "state", "waits for", "program"), rows)
    if left := ordered[GROUPS:]:
        out.line(f"and {sum(len(members) for _, members in left)} ranks in {len(left)} smaller groups")
    out.line("--ranks shows each rank")
