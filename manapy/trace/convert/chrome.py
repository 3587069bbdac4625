"""Reads traces in Chrome's format (JSON): those of torch.profiler, one file for each rank, and those of tracers of MPI,
in which each process is a rank (chrome_mpi.py).

Of torch.profiler (Kineto) two kinds of events are used: NCCL's kernels, with the process group in their arguments
("Collective name", "Process Group Name"), and Gloo's collectives (`gloo:all_reduce`), which do not name it.
Format: "Trace Event Format" (Google), libkineto/src/output_json.cpp.

Invariants
 1. A profiler's window begins and ends within the job. What happened before and after it is unknown, so no call of it
    is open, and no rank can be said to be stuck.
 2. Gloo's collectives are used only if the job has one process group: otherwise their process group is unknown.
 3. Messages are left out if their peer is not known; a note says so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..model.events import Op
from ..model.match import IS_COLLECTIVE
from . import chrome_mpi, numbering
from .chrome_events import SECOND, arguments, integer, time
from .foreign import Call, ForeignCommunicator, ForeignError, ForeignJob, ForeignRank, by_rank, size_of
from .operations import operation, width

_RANK = re.compile(r"rank[^0-9a-z]?(\d+)|(\d+)(?:\.[A-Za-z]\w*)*$", re.IGNORECASE)


def is_trace(data: Any) -> bool:
    """Return whether this is a trace in Chrome's format."""
    return isinstance(data, list) or (isinstance(data, Mapping) and "traceEvents" in data)


def checked(path: Path, data: Any) -> Mapping[str, Any]:
    """Return the trace if it is sound. Raises ForeignError."""
    data = {"traceEvents": data} if isinstance(data, list) else data
    if not isinstance(data["traceEvents"], list) or not all(isinstance(one, Mapping) for one in data["traceEvents"]):
        raise ForeignError(f"{path}: its traceEvents are damaged")
    return data


def job(traces: Iterable[tuple[Path, Mapping[str, Any]]], ranks: int | None = None) -> ForeignJob:
    """Return the job of these traces. ranks: how many it had, if they do not say so. Raises ForeignError."""
    notes: list[str] = []
    groups: dict[Hashable, ForeignCommunicator] = {}
    left_out = Counter[str]()
    found: list[ForeignRank] = []
    sizes = set()
    traced = chrome_mpi.Traced()
    for path, data in traces:
        if not traced.add(path, data):
            profile = _Profile(path, data, groups, left_out)
            found.append(profile.rank())
            sizes.add(profile.size)
    ordered = by_rank([*found, *traced.ranks()])
    left_out.update(traced.left_out if traced.calls else {})
    sizes.discard(0)
    if len(sizes) > 1:
        raise ForeignError(f"the traces are of jobs of {' and '.join(map(str, sorted(sizes)))} ranks")
    size = size_of(ordered, groups.values(), next(iter(sizes), None), ranks)
    if size is None:
        size = max(max(ordered), *(max(group.members, default=0) for group in groups.values()), 0) + 1
        notes.append(f"the traces do not say how many ranks the job had: {size} is assumed (--ranks N)")
    if any(call.group == chrome_mpi.WORLD for rank in ordered.values() for call in rank.calls):
        groups[chrome_mpi.WORLD] = ForeignCommunicator(tuple(range(size)), chrome_mpi.WORLD)
    for rank in ordered.values():  # members of other communicators are not known
        for call in rank.calls:
            if call.group is not None:
                groups.setdefault(call.group, ForeignCommunicator((), str(call.group)))
    notes += [f"{count} calls are left out: {why}" for why, count in left_out.items()]
    made = ForeignJob("Chrome trace", size, ordered, groups, notes)
    numbering.number(made)
    return made


# ---- torch.profiler


class _Profile:
    """The trace of one rank by torch.profiler. Adds its process groups to `groups`, and what it leaves out to
    `left_out`."""

    def __init__(
        self, path: Path, data: Mapping[str, Any], groups: dict[Hashable, ForeignCommunicator], left_out: Counter[str]
    ) -> None:
        self.path, self.events, self.groups, self.left_out = path, data["traceEvents"], groups, left_out
        self.host = str(data.get("host_name", ""))
        # Without a base, times count from anywhere; 0 would be read as an open call's exit
        self.base = integer(data.get("baseTimeNanoseconds"), 0) or SECOND
        info = data.get("distributedInfo")
        info = info if isinstance(info, Mapping) else {}
        self.size = integer(info.get("world_size"), 0)
        named = _RANK.search(path.name)
        self.number = integer(info.get("rank"), int(named[1] or named[2]) if named else -1)
        if self.number < 0:
            raise ForeignError(f"{path}: it does not say its rank (distributedInfo), nor does its name")
        self.own: list[str] = []
        config = info.get("pg_config")
        for one in config if isinstance(config, list) else ():
            if isinstance(one, Mapping) and isinstance(one.get("ranks"), list):
                self._add(str(one.get("pg_name")), one["ranks"], str(one.get("pg_desc", "")))

    def _add(self, name: str, ranks: Iterable[Any], text: str) -> None:
        members = tuple(integer(rank, -1) for rank in ranks)
        if min(members, default=-1) < 0:
            return
        before = self.groups.setdefault(name, ForeignCommunicator(members, "" if text == "undefined" else text))
        if before.members != members:
            raise ForeignError(f"{self.path}: its process group {name} has other members than in another trace")
        if name not in self.own:
            self.own.append(name)

    def rank(self) -> ForeignRank:
        """Return its calls."""
        calls = self._of_nccl() or self._of_gloo()
        times = [time(self.path, event, "ts", self.base) for event in self.events if event.get("ph") in ("X", "i")]
        if not times:
            raise ForeignError(f"{self.path}: it has no events")
        marks = {event.get("name"): event for event in self.events if event.get("ph") == "i"}
        until = max(*times, *(call.exit for call in calls), 0)
        if (end := marks.get("Record Window End")) is not None:
            until = max(time(self.path, end, "ts", self.base), *(call.exit for call in calls), 0)
        return ForeignRank(self.number, str(self.path), calls, until, self.host, since=min(times))

    def _call(self, event: Mapping[str, Any], op: Op, group: str, size: int) -> Call:
        begin = time(self.path, event, "ts", self.base)
        return Call(op, begin, begin + time(self.path, event, "dur"), group, bytes=size, thread=group)

    def _of_nccl(self) -> list[Call]:
        calls = []
        for event in self.events:
            args = arguments(event)
            if event.get("cat") != "kernel":
                continue
            if "Collective name" not in args:
                if str(event.get("name", "")).startswith("nccl"):
                    self.left_out["NCCL's kernels do not name their process group (PyTorch before 2.2)"] += 1
                continue
            op, name = operation(str(args["Collective name"])), str(args.get("Process Group Name", ""))
            if op is None or not IS_COLLECTIVE[op]:
                self.left_out["messages, whose peers the profiler does not name, and unknown operations"] += 1
                continue
            listed = str(args.get("Process Group Ranks", ""))
            if name not in self.own and listed and "..." not in listed:
                self._add(name, re.findall(r"\d+", listed), str(args.get("Process Group Description", "")))
            size = integer(args.get("In msg nelems"), 0) * width(str(args.get("dtype", "")))
            calls.append(self._call(event, op, name, size))
        return calls

    def _of_gloo(self) -> list[Call]:
        named = [event for event in self.events if str(event.get("name", "")).startswith("gloo:")]
        several = [name for name in self.own if len(self.groups[name].members) > 1]
        calls = []
        for event in named if len(several) == 1 else ():
            op = operation(str(event["name"]))
            if op is None or not IS_COLLECTIVE[op]:
                self.left_out["messages, whose peers the profiler does not name, and unknown operations"] += 1
                continue
            calls.append(self._call(event, op, several[0], 0))
        if named and not calls:
            self.left_out["Gloo's events do not name their process group, and the job has several"] += len(named)
        return calls
