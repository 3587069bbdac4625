"""Reads OTF2 archives: traces of Score-P, of other tools, and those that export.py writes.

An archive has a location for each thread, and events with the regions that were entered and left, and with the
messages, requests and collectives of MPI. The package otf2 reads it. Score-P has related the hosts' clocks.
Source: OTF2 3.x, python bindings; "OTF2 User Manual", event records.

Invariants
 1. A location's calls become records of one thread of its rank. A region of MPI that was not left, or that was left at
    the end of the archive without any event in it, is an open call of which nothing else is known.
 2. Nonblocking collectives, one-sided communication and files are left out; a note says so.
 3. Ranks in events are ranks in the communicator.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..model.events import ANY, NO_PEER, OPEN, Flag, Op
from . import numbering
from .foreign import Call, ForeignCommunicator, ForeignError, ForeignJob, ForeignRank, by_rank, size_of
from .operations import FUNCTIONS

SECOND = 10**9
ANCHOR = "traces.otf2"
MISSING = "OTF2 needs the package otf2 (manapy's extra 'trace')"
_SENDS = {"bsend": Op.BSEND, "ssend": Op.SSEND, "rsend": Op.RSEND}


@dataclass
class _Region:
    """A region that a location has entered. calls: what happened in it. exit: OPEN, while it has not left it."""

    name: str
    enter: int
    calls: list[Call] = field(default_factory=list)
    exit: int = OPEN


def anchor(path: Path) -> Path | None:
    """Return the anchor file of the archive at this path, a file or a folder, or None."""
    if path.is_dir():
        found = path / ANCHOR
        return found if found.is_file() else next(iter(sorted(path.glob("*.otf2"))), None)
    return path if path.suffix == ".otf2" else None


def job(path: Path, ranks: int | None = None) -> ForeignJob:
    """Return the job of an archive. path: its anchor file. Raises ForeignError if the package otf2 is not installed, or
    the archive is damaged."""
    try:
        import otf2
    except ImportError:
        raise ForeignError(MISSING) from None
    if not path.is_file():
        raise ForeignError(f"{path}: no such file")
    try:
        with otf2.reader.open(str(path)) as archive:
            return _Archive(otf2, archive, path).job(ranks)
    except ForeignError:
        raise
    except Exception as error:  # the package raises many kinds, and its library's errors are one of them
        text = str(error).replace("\n", " ")[:80]
        raise ForeignError(f"{path}: no OTF2 archive, damaged or truncated ({type(error).__name__}: {text})") from None


class _Archive:
    def __init__(self, otf2: Any, archive: Any, path: Path) -> None:
        self.otf2, self.archive, self.path = otf2, archive, path
        clock = archive.definitions.clock_properties
        self.scale, self.offset = SECOND / clock.timer_resolution, clock.global_offset
        begun = clock.realtime_timestamp
        self.base = begun if SECOND < begun < 1 << 62 else SECOND
        self.number = self._numbers()
        self.names = {
            getattr(otf2.CollectiveOp, name): op
            for name, op in {
                **{op.name: op for op in map(Op, range(Op.BARRIER, Op.NEIGHBOR))},
                **{f"{op.name}V": op for op in (Op.GATHER, Op.SCATTER, Op.ALLGATHER, Op.ALLTOALL)},
                "ALLTOALLW": Op.ALLTOALL,
                "REDUCE_SCATTER_BLOCK": Op.REDUCE_SCATTER,
                "CREATE_HANDLE": Op.COMM_CREATE,
            }.items()
            if hasattr(otf2.CollectiveOp, name)
        }
        self.calls: dict[int, list[Call]] = {}
        self.hosts: dict[int, str] = {}
        self.ended: set[int] = set()
        self.stacks: dict[Any, list[_Region]] = {}
        self.posts: dict[Hashable, Call] = {}
        self.requests = 0  # posts so far: an archive may use the number of a request again
        self.left_out = Counter[str]()
        self.last = 0
        self.unended: dict[Any, _Region] = {}  # of each location, its last region if that is of MPI and has no event

    def _numbers(self) -> dict[Any, int]:
        """Return the rank of each location group."""
        found: dict[Any, int] = {}
        for group in self.archive.definitions.groups:
            if group.group_type == self.otf2.GroupType.COMM_LOCATIONS and group.paradigm == self.otf2.Paradigm.MPI:
                for rank, location in enumerate(group.members):
                    found.setdefault(location.group, rank)
        for location in self.archive.definitions.locations if not found else ():
            if match := re.search(r"(\d+)\s*$", location.group.name):
                found.setdefault(location.group, int(match[1]))
        return found

    def job(self, ranks: int | None) -> ForeignJob:
        """Read all events."""
        for location, event in self.archive.events:
            rank = self.number.get(location.group)
            if rank is None:
                continue
            handler = _HANDLERS.get(type(event).__name__)
            if handler is not None:
                at = self.base + round((event.time - self.offset) * self.scale)
                self.last = max(self.last, at)
                if rank not in self.hosts:
                    parent = location.group.system_tree_parent
                    self.hosts[rank] = parent.name if parent is not None else ""
                handler(self, location, rank, event, at)
        self._close()
        notes: list[str] = []
        groups = self._groups()
        found = by_rank(
            ForeignRank(
                rank, f"{self.path} (rank {rank})", calls, self.last, self.hosts.get(rank, ""), rank in self.ended
            )
            for rank, calls in sorted(self.calls.items())
        )
        size = size_of(found, groups.values(), max(self.number.values(), default=-1) + 1, ranks)
        assert size is not None
        notes += [f"{count} calls are left out: {why}" for why, count in self.left_out.items()]
        made = ForeignJob("OTF2", size, found, groups, notes)
        numbering.number(made)
        return made

    def _groups(self) -> dict[Hashable, ForeignCommunicator]:
        """Return the communicators that calls have named."""
        used = {call.group: None for calls in self.calls.values() for call in calls if call.group is not None}
        found: dict[Hashable, ForeignCommunicator] = {}
        for comm in used:
            ranks = comm.group.members  # type: ignore[attr-defined]
            members = tuple(self.number[one.group] for one in ranks if one.group in self.number)
            found[comm] = ForeignCommunicator(members, comm.name)  # type: ignore[attr-defined]
        return found

    # ---- regions

    def enter(self, location: Any, rank: int, event: Any, at: int) -> None:
        """Note the begin of a region."""
        self.stacks.setdefault(location, []).append(_Region(event.region.name, at))

    def leave(self, location: Any, rank: int, event: Any, at: int) -> None:
        """Make a call of a region that has ended, if it is one of MPI."""
        self.unended.pop(location, None)
        stack = self.stacks.get(location)
        if not stack:
            return
        region = stack.pop()
        region.exit = at
        self._call(location, rank, region)

    def _call(self, location: Any, rank: int, region: _Region) -> None:
        op = FUNCTIONS.get(region.name.lower())
        if not region.calls and op in (Op.INIT, Op.FINALIZE):
            region.calls.append(Call(op, region.enter))
        elif not region.calls and op is not None:
            self.unended[location] = region
        if op == Op.FINALIZE and region.exit != OPEN:
            self.ended.add(rank)
        for place, call in enumerate(region.calls):
            call.thread = location.name
            call.enter, call.exit = region.enter, region.exit
            if place + 1 < len(region.calls):
                call.flags |= Flag.MORE
        self.calls.setdefault(rank, []).extend(region.calls)

    def _close(self) -> None:
        """Make open calls of regions that did not end (invariant 1)."""
        for location, stack in self.stacks.items():
            for region in stack:
                self._call(location, self.number[location.group], region)
        for location, region in self.unended.items():
            op = FUNCTIONS[region.name.lower()]
            if region.exit in (OPEN, self.last):
                call = Call(op, region.enter, thread=location.name)
                self.calls.setdefault(self.number[location.group], []).append(call)

    def _add(self, location: Any, call: Call) -> Call:
        stack = self.stacks.get(location)
        if stack:
            stack[-1].calls.append(call)
        return call

    # ---- what happens in them

    def _kind(self, location: Any) -> Op:
        """Return the operation of a send, which the region's name tells."""
        stack = self.stacks.get(location)
        name = stack[-1].name.lower().removeprefix("mpi_").lstrip("i") if stack else ""
        return _SENDS.get(name, Op.SEND)

    def send(self, location: Any, rank: int, event: Any, at: int) -> None:
        """A blocking send."""
        op = self._kind(location)
        call = Call(op, at, at, event.communicator, event.receiver, event.msg_tag, event.msg_length)
        self._add(location, call)

    def receive(self, location: Any, rank: int, event: Any, at: int) -> None:
        """A blocking receive that has ended."""
        self._add(location, Call(Op.RECV, at, at, event.communicator, event.sender, event.msg_tag, event.msg_length))

    def post_send(self, location: Any, rank: int, event: Any, at: int) -> None:
        """The post of a nonblocking send."""
        post = Call(self._kind(location), at, at, event.communicator, event.receiver, event.msg_tag, event.msg_length)
        self._post(location, rank, event, post)

    def post_receive(self, location: Any, rank: int, event: Any, at: int) -> None:
        """The post of a nonblocking receive. Its peer and tag follow when it ends."""
        self._post(location, rank, event, Call(Op.RECV, at, at, peer=ANY, tag=ANY))

    def _post(self, location: Any, rank: int, event: Any, post: Call) -> None:
        key = rank, location, event.request_id
        self.requests += 1
        post.request = self.requests
        post.flags = Flag.NONBLOCKING
        self.posts[key] = self._add(location, post)

    def complete_send(self, location: Any, rank: int, event: Any, at: int) -> None:
        """A nonblocking send has ended."""
        self._complete(location, rank, event, at)

    def complete_receive(self, location: Any, rank: int, event: Any, at: int) -> None:
        """A nonblocking receive has ended."""
        post = self._complete(location, rank, event, at)
        if post is not None:
            post.group, post.peer, post.tag = event.communicator, event.sender, event.msg_tag
            post.bytes = event.msg_length

    def _complete(self, location: Any, rank: int, event: Any, at: int) -> Call | None:
        post = self.posts.pop((rank, location, event.request_id), None)
        if post is not None:
            self._add(location, Call(Op.WAIT, at, at, request=post.request))
        return post

    def collective(self, location: Any, rank: int, event: Any, at: int) -> None:
        """A blocking collective has ended."""
        op = self.names.get(event.collective_op)
        if op is None:
            self.left_out[_REST] += 1
            return
        root = event.root if isinstance(event.root, int) and 0 <= event.root < 1 << 31 else NO_PEER
        self._add(location, Call(op, at, at, event.communicator, root, bytes=event.size_sent))

    def rest(self, location: Any, rank: int, event: Any, at: int) -> None:
        """Something that has no record here."""
        self.left_out[_REST] += 1


_REST = "nonblocking collectives, one-sided communication, and what only newer versions of MPI have"
_HANDLERS: Mapping[str, Any] = {
    "Enter": _Archive.enter,
    "Leave": _Archive.leave,
    "MpiSend": _Archive.send,
    "MpiRecv": _Archive.receive,
    "MpiIsend": _Archive.post_send,
    "MpiIrecvRequest": _Archive.post_receive,
    "MpiIsendComplete": _Archive.complete_send,
    "MpiIrecv": _Archive.complete_receive,
    "MpiCollectiveEnd": _Archive.collective,
    "NonBlockingCollectiveRequest": _Archive.rest,
    "RmaCollectiveEnd": _Archive.rest,
}
