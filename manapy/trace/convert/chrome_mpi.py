"""Traces in Chrome's format by tracers of MPI: events with the names of MPI functions; process ids are ranks.

Arguments say what is known of a call: comm (or communicator), peer (or dest, source, root ...), tag, bytes (or size).

Invariants
 1. Only MPI_COMM_WORLD is known: the name of another communicator may mean different ones on different ranks. Calls
    that name none are taken to be on MPI_COMM_WORLD only if they can be: the trace makes no other communicator, all
    ranks make the same collectives, and none leaves one before all have come.
 2. If some messages are not known (their peer, or functions that are not read here), no message can be said to be
    missing: then the peers of all are dropped.
 3. A rank in a function that is not read here is not outside MPI: what it does is not known (Op.PAUSE).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..capture.clocks import MEETING
from ..model.events import ANY, NO_PEER, OPEN, Flag, Op
from ..model.match import IS_COLLECTIVE
from .chrome_events import SECOND, arguments, integer, time
from .foreign import Call, ForeignError, ForeignRank
from .operations import FUNCTIONS

_FUNCTION = re.compile(r"P?(MPI_\w+)")
_CREATES = re.compile(r"mpi_(i?comm_(i?dup|split|create)\w*|cart_\w+|(dist_)?graph_create\w*|intercomm_\w+)")
_MESSAGES = re.compile(r"mpi_(\w*(send|recv)\w*|start|startall)")
_POSTS = {f"mpi_i{op.name.lower()}": op for op in (Op.SEND, Op.BSEND, Op.SSEND, Op.RSEND, Op.RECV)}
_WAITS = {"mpi_wait": Op.WAIT, "mpi_waitall": Op.WAITALL, "mpi_waitany": Op.WAITANY, "mpi_waitsome": Op.WAITANY}
_PEERS = ("peer", "dest", "destination", "source", "src", "dst", "root", "partner")
WORLD = "MPI_COMM_WORLD"
_WORLDS = ("mpi_comm_world", "comm_world", "world", "0x44000000", str(0x44000000))  # the last two: MPICH's handle
_UNNAMED = ""  # the group of calls that do not name it


class Traced:
    """The calls in such traces. left_out: how many are left out, by reason."""

    def __init__(self) -> None:
        self.calls: dict[int, list[Call]] = {}
        self.sources: dict[int, Path] = {}
        self.left_out = Counter[str]()
        self.creates = self.incomplete = False
        self._ended: set[int] = set()
        self._until: dict[Path, int] = {}

    def add(self, path: Path, data: Mapping[str, Any]) -> bool:
        """Add a trace. Returns False if it is none of MPI functions. Raises ForeignError."""
        events = data["traceEvents"]
        if not any(_FUNCTION.fullmatch(str(event.get("name", ""))) for event in events):
            return False
        self._until[path] = 0
        opened: dict[Hashable, list[tuple[Mapping[str, Any], int]]] = {}
        for event in events:
            kind = event.get("ph")
            if kind not in ("X", "B", "E"):
                continue
            at = time(path, event, "ts", SECOND)
            self._until[path] = max(self._until[path], at)
            place = (str(event.get("pid")), str(event.get("tid")))
            if kind == "X":
                self._event(path, event, at, at + time(path, event, "dur"))
            elif kind == "B":
                opened.setdefault(place, []).append((event, at))
            elif stack := opened.get(place):
                begun, since = stack.pop()
                both = {**arguments(begun), **arguments(event)}
                self._event(path, {**begun, "args": both}, since, at)
        for stack in opened.values():
            for event, at in stack:
                self._event(path, event, at, OPEN)
        return True

    def _event(self, path: Path, event: Mapping[str, Any], enter: int, exit: int) -> None:
        match = _FUNCTION.fullmatch(str(event.get("name", "")))
        if match is None:
            return
        self._until[path] = max(self._until[path], exit)
        name, args = match[1].lower(), arguments(event)
        rank = integer(args.get("rank", event.get("pid")), -1)
        if rank < 0:
            raise ForeignError(f"{path}: the process id of {match[0]} is no rank: {str(event.get('pid'))[:40]}")
        if self.sources.setdefault(rank, path) != path:
            raise ForeignError(
                f"{self.sources[rank]} and {path} are both of rank {rank}: give the files of one job only"
            )
        self.creates |= _CREATES.fullmatch(name) is not None
        calls = self.calls.setdefault(rank, [])
        thread = str(event.get("tid", 0))
        op = FUNCTIONS.get(name, _POSTS.get(name, _WAITS.get(name)))
        if op is None:
            self.incomplete |= _MESSAGES.fullmatch(name) is not None
            self.left_out[f"{match[1]} is not imported"] += 1
            calls += [Call(Op.PAUSE, enter, thread=thread)] if exit == OPEN else []
            return
        if op == Op.FINALIZE and exit != OPEN:
            self._ended.add(rank)
        peer = next((integer(args[key], NO_PEER) for key in _PEERS if key in args), NO_PEER)
        message = op < Op.WAIT
        self.incomplete |= message and peer < 0
        named = args.get("comm", args.get("communicator"))
        group = _UNNAMED if named is None else WORLD if str(named).lower() in _WORLDS else None
        calls.append(
            Call(
                op,
                enter,
                exit,
                group,
                peer if -1 < peer < 1 << 31 else NO_PEER,
                min(max(integer(args.get("tag"), ANY), ANY), (1 << 31) - 1) if message else -1,
                min(max(integer(args.get("bytes", args.get("size")), 0), 0), 1 << 62),
                thread=thread,
                flags=Flag.NONBLOCKING if name in _POSTS else Flag(0),
            )
        )

    def ranks(self) -> list[ForeignRank]:
        """Return all ranks. Those of one file share a clock."""
        known = not self.creates and self._fit()
        unknown = 0
        for call in (call for calls in self.calls.values() for call in calls):
            if call.group == _UNNAMED:
                call.group = WORLD if known else None
            if call.op < Op.WAIT and (self.incomplete or call.group is None):
                call.peer = NO_PEER
            unknown += call.group is None and bool(IS_COLLECTIVE[call.op])
        if unknown:
            self.left_out["collectives whose communicator is not known: they are not compared"] += unknown
        shared = Counter(self.sources.values())
        return [
            ForeignRank(
                rank,
                str(self.sources[rank]),
                calls,
                self._until[self.sources[rank]],
                "traced host" if shared[self.sources[rank]] > 1 else "",
                rank in self._ended,
            )
            for rank, calls in self.calls.items()
        ]

    def _fit(self) -> bool:
        """Return whether the collectives without a communicator can all be on MPI_COMM_WORLD (invariant 1)."""
        unnamed = [
            sorted((c for c in calls if IS_COLLECTIVE[c.op] and c.group == _UNNAMED), key=lambda call: call.enter)
            for calls in self.calls.values()
        ]
        one_clock = len(set(self.sources.values())) == 1
        return all(_are_one(calls, one_clock) for calls in zip(*unnamed, strict=False))


def _are_one(calls: Iterable[Call], one_clock: bool) -> bool:
    """Return whether these calls of different ranks can be one collective."""
    made = list(calls)
    if len({call.op for call in made}) > 1:
        return False
    ends = [call.exit for call in made if call.exit != OPEN]
    return not (one_clock and made[0].op in MEETING and ends and max(call.enter for call in made) > min(ends))
