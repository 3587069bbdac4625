"""The status of a job as `manapy status` prints it.

A job with many ranks is shown in groups of ranks that do the same, so that it fits a screen.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from ...core.units import ago, first_and_more, ranges, size
from ..shared.output import Output
from ..shared.trees import Node, drawn

MANY = 32  # more ranks are shown in groups
GROUPS = 20  # the largest ones are shown
SHOWN = 40  # characters of a list of ranks
NOTED = 3  # numbers of processes that are named


STATES = {"R": "running", "S": "sleeping", "D": "waiting for a device", "T": "stopped", "t": "stopped by a debugger"}


def show(status: dict[str, Any], out: Output, *, each: bool = False, trees: bool = False) -> None:
    """Print the status. each: one line for each rank, also of many; trees: the processes of ranks that have several."""
    protocol = "" if status["protocol"] == "cc" else f", protocol {status['protocol']}"
    out.line(f"job {status['id']} in {status['dir']}: {status['state']}, {status['size']} ranks{protocol}")
    ranks = status["ranks"]
    several = any(rank.get("processes") for rank in ranks)
    if each or len(ranks) <= MANY:
        rows = [(r["rank"], r["host"], r["pid"], *_what(r), *[_number(r)] * several) for r in ranks]
        out.table(("rank", "host", "pid", "state", "waits for", "program", *["processes"] * several), rows)
    else:
        _show_groups(ranks, out, several)
    if trees:
        for rank in ranks:
            _show_tree(rank, out)
    elif several:
        out.line(f"{_note(ranks)}: --rank R shows those of rank R")
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


def _number(rank: dict[str, Any]) -> int | str:
    """How many processes a rank has."""
    found = rank.get("processes")
    return "?" if found is None else len(found) or 1


def _numbers(ranks: list[dict[str, Any]]) -> int | str:
    """The same for ranks of a group, such as 1-3."""
    found = {_number(rank) for rank in ranks}
    known = sorted(number for number in found if isinstance(number, int))
    if not known or len(found) == 1:
        return found.pop()
    text = f"{known[0]}-{known[-1]}" if len(known) > 1 else str(known[0])
    return text + ", ?" * (len(known) < len(found))


def _note(ranks: list[dict[str, Any]]) -> str:
    """How many ranks have several processes, for example "4 ranks with 3 processes each, 1 with 5"."""
    numbers = Counter(len(rank["processes"]) for rank in ranks if rank.get("processes"))
    (first, ranks_with), *others = numbers.most_common(NOTED)
    text = f"{ranks_with} rank{'s' * (ranks_with > 1)} with {first} processes{' each' * (ranks_with > 1)}"
    text += "".join(f", {count} with {number}" for number, count in others)
    if left := numbers.total() - sum(count for _, count in numbers.most_common(NOTED)):
        text += f", {left} with other numbers"
    return text


def _show_tree(rank: dict[str, Any], out: Output) -> None:
    found = rank.get("processes")
    if found is None and rank["state"] not in ("starting", "finishing", "ended", "died"):
        out.line(f"rank {rank['rank']} has not reported its processes; process {rank['pid']} may be stopped")
    if found:
        out.line(f"rank {rank['rank']}:")
        uses_mpi = rank.get("mpi", "none") != "none"
        nodes = [Node(p["pid"], p["parent"], _process(p, uses_mpi and p["pid"] == rank["pid"])) for p in found]
        for line in drawn(nodes):
            out.line(f"  {line}")


def _process(process: dict[str, Any], is_mpi: bool) -> str:
    known = f", known to the program as {process['known_as']}" if process["known_as"] != process["pid"] else ""
    state = STATES.get(process["state"], f"state {process['state']}")
    return f"{process['name']}{' (MPI process)' * is_mpi}: {state}{known}"


def _show_groups(ranks: list[dict[str, Any]], out: Output, several: bool) -> None:
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for rank in ranks:
        groups.setdefault(_what(rank), []).append(rank)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    rows = []
    for what, members in ordered[:GROUPS]:
        where = first_and_more(sorted({rank["host"] for rank in members if rank["host"]}))
        rows.append(
            (
                len(members),
                ranges([rank["rank"] for rank in members], SHOWN),
                where,
                *what,
                *[_numbers(members)] * several,
            )
        )
    out.table(("ranks", "which", "hosts", "state", "waits for", "program", *["processes"] * several), rows)
    if left := ordered[GROUPS:]:
        out.line(f"and {sum(len(members) for _, members in left)} ranks in {len(left)} smaller groups")
    out.line("--ranks shows each rank")
