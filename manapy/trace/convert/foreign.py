"""Recordings of other tools, in the form that all readers here produce, and how that becomes a recording of manapy.

A reader (flight_recorder.py, chrome.py, otf2_archive.py) makes a ForeignJob. `write` makes a folder of trace files of
it, which `manapy why`, `manapy trace report` and the others read like a copy of a job's rings.

Invariants
 1. What a tool has not recorded is not invented. A rank without a file has no trace file. Calls before the oldest one
    of a rank count as lost if the tool may have had them.
 2. A job ends at one moment: the earliest time up to which any rank was recorded, as far as the clocks are known. A
    later call of another rank would look like a call that the first rank has left out.
 3. Ranks have their own clocks unless the tool names the same host. clocks.py relates them when the files are read.
 4. The folder appears only when it is complete.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...core.errors import ManapyError
from ..capture import clocks, format, layout
from ..model.events import EVENT, NO_PEER, OPEN, Flag, Op

MOST = 1 << 26  # ranks (tracefile.py)
LARGEST = 2 << 30  # bytes of one file of another tool; JSON takes ten times its size in memory


class ForeignError(ManapyError):
    """A file is none of the tool's, is damaged, or contradicts another one. The message is one line. It may contain
    names from the file: characters that would control a terminal are replaced."""

    def __init__(self, message: str) -> None:
        super().__init__(layout.printable(message))


@dataclass(slots=True)
class Call:
    """One call. Times are ns of the rank's clock since 1970.

    group: the key of its communicator in ForeignJob.groups; None: not known.
    peer: the other rank, or the root, as a rank in the group.
    seq: the number of a collective in its group, from 1; 0: not known.
    thread: calls with the same key are in order, and do not overlap.
    request: of a nonblocking operation and its completions, unique in the rank; 0: none.
    """

    op: Op
    enter: int
    exit: int = OPEN
    group: Hashable = None
    peer: int = NO_PEER
    tag: int = -1
    bytes: int = 0
    seq: int = 0
    thread: Hashable = 0
    request: int = 0
    flags: Flag = Flag(0)


@dataclass
class ForeignRank:
    """The recording of one rank.

    source: the file, for messages.
    until: the moment up to which it was recorded, ns on its clock.
    ended: it has finalized MPI.
    since: the moment from which on it was recorded, ns on its clock; 0: from its first call on.
    place: where in the program its newest call was made, if that is known.
    """

    rank: int
    source: str
    calls: list[Call]
    until: int
    host: str = ""
    ended: bool = False
    since: int = 0
    place: str = ""


@dataclass(frozen=True)
class ForeignCommunicator:
    """A communicator. members: world ranks in its order; empty: they are not known."""

    members: tuple[int, ...]
    name: str = ""


@dataclass
class ForeignJob:
    """A job that another tool has recorded.

    producer: the tool's name, at most 31 characters; format.UNTIMED if it records no durations.
    notes: what is missing or assumed, one line each.
    """

    producer: str
    size: int
    ranks: dict[int, ForeignRank]
    groups: dict[Hashable, ForeignCommunicator]
    notes: list[str] = field(default_factory=list)


def by_rank(found: Iterable[ForeignRank]) -> dict[int, ForeignRank]:
    """Return the ranks by number. Raises ForeignError if two have the same one, or a number is impossible."""
    ranks: dict[int, ForeignRank] = {}
    for one in found:
        if not 0 <= one.rank < MOST:
            raise ForeignError(f"{one.source}: {one.rank} is no rank")
        if one.rank in ranks:
            raise ForeignError(
                f"{ranks[one.rank].source} and {one.source} are both of rank {one.rank}: give the files of one job only"
            )
        ranks[one.rank] = one
    return ranks


def size_of(
    ranks: Iterable[int], groups: Iterable[ForeignCommunicator], stated: int | None, given: int | None
) -> int | None:
    """Return the number of ranks of the job. None: it is not known.

    ranks: those that have a file. stated: the number in the files. given: the user's. Raises ForeignError if they
    contradict each other.
    """
    largest = max((*ranks, *(rank for group in groups for rank in group.members)), default=-1)
    if largest >= MOST or (stated or 0) > MOST:
        raise ForeignError(f"{max(largest, stated or 0)} is too large a number for a rank: the files are damaged")
    for size in (stated, given):
        if size is not None and size <= largest:
            raise ForeignError(f"there is a rank {largest}: the job cannot have had {size} ranks")
    if stated is not None and given is not None and stated != given:
        raise ForeignError(f"by its files the job had {stated} ranks, not {given}")
    return stated if stated is not None else given


def missing(job: ForeignJob) -> str:
    """Return a line on the ranks that are in no file, or ""."""
    absent = [rank for rank in range(job.size) if rank not in job.ranks]
    return f"the files contain nothing of rank{'s' if len(absent) > 1 else ''} {some(absent)}" if absent else ""


def some(ranks: Sequence[int]) -> str:
    """Return the first ones of these ranks, for people."""
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")


# ---- writing


def write(job: ForeignJob, out: Path) -> int:
    """Write the job as a folder of trace files. Returns the number of records.

    Raises ForeignError if `out` exists or nothing is in the job, and OSError.
    """
    if out.exists() or out.is_symlink():
        raise ForeignError(f"{out} exists already")
    if not any(rank.calls for rank in job.ranks.values()):
        why = f" ({job.notes[-1]})" if job.notes else ""
        raise ForeignError(f"the files contain no MPI call and no collective that can be imported{why}")
    part = out.with_name(f".{out.name}.{os.getpid()}")
    part.mkdir(parents=True)
    try:
        ends = _ends(job)
        # An entry without members would be a device (rings.py)
        numbers = {key: index for index, (key, group) in enumerate(job.groups.items()) if group.members}
        count = sum(_File(job, numbers, part, rank).write(out.name, ends[rank]) for rank in sorted(job.ranks))
        part.rename(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return count


def _host(rank: ForeignRank) -> str:
    return rank.host or f"host of rank {rank.rank}"


def _ends(job: ForeignJob) -> dict[int, int]:
    """Return for each rank, on its clock, the moment that the job shows (invariant 2)."""
    ranks = [job.ranks[rank] for rank in sorted(job.ranks)]
    found, on = clocks.lines([(_host(rank), [clocks.Sample(0, 0, 0)], clocks.SECOND, True) for rank in ranks])
    parts = [_meetings(job, rank) for rank in ranks]
    clocks.align(found, on[0], np.repeat(np.array(on), [len(part) for part in parts]), np.concatenate(parts))
    running = [(rank, found[on[i]]) for i, rank in enumerate(ranks) if not rank.ended]
    ends = {rank.rank: rank.until for rank in ranks}
    if not running:
        return ends
    shown = min(int(line.shifted(np.array([rank.until]))[0]) for rank, line in running)
    for rank, line in running:
        behind = int(line.shifted(np.array([rank.until]))[0]) - rank.until
        ends[rank.rank] = min(shown - behind, rank.until)
    return ends


def _meetings(job: ForeignJob, rank: ForeignRank) -> np.ndarray:
    """Return the collectives by which clocks can be related, as events."""
    numbers = {key: index for index, key in enumerate(job.groups)}
    calls = [call for call in rank.calls if call.seq and call.group in numbers]
    events = np.zeros(len(calls), EVENT)
    for name, values in {
        "op": [int(call.op) for call in calls],
        "flags": [int(call.flags) for call in calls],
        "comm": [numbers[call.group] for call in calls],
        "enter": [call.enter for call in calls],
        "exit": [call.exit for call in calls],
        "context": [call.seq for call in calls],
    }.items():
        events[name] = values
    return events


def _short(text: str, most: int = 63) -> str:
    """Return as much of a text as a field of a trace file's head has room for: `most` bytes."""
    return text.encode(errors="replace")[:most].decode(errors="ignore")


class _File:
    """Writes the trace file of one rank."""

    def __init__(self, job: ForeignJob, numbers: dict[Hashable, int], folder: Path, rank: int) -> None:
        self.job, self.numbers, self.folder, self.rank = job, numbers, folder, job.ranks[rank]

    def write(self, name: str, end: int) -> int:
        """Write the calls up to `end` (ns). Returns their number. name: of the job."""
        threads: dict[Hashable, list[Call]] = {}
        since = self.rank.since
        # The mark says from when on a thread's calls are known, also if its first one came later.
        marks = [Call(Op.MARK, since, since)] if since else []
        for call in sorted(self.rank.calls, key=lambda call: call.enter):
            if call.enter <= end:
                threads.setdefault(call.thread, list(marks)).append(call)
        if marks and not threads:
            threads[0] = marks
        kept = list(threads.values())[: format.RINGS]
        dropped = sum(len(calls) for calls in list(threads.values())[format.RINGS :])
        used = list(dict.fromkeys(call.group for calls in kept for call in calls if call.group in self.numbers))
        longest = max((len(calls) for calls in kept), default=0)
        writer = format.Writer(
            self.folder,
            self.rank.rank,
            self.job.size,
            job=_short(name),
            host=_short(_host(self.rank)),
            producer=self.job.producer,
            program=_short(self.rank.place, 255),
            capacity=1 << max(longest, 64).bit_length(),
            rings=max(len(kept), 1),
            comms=max(len(used), 1),
            members=max(sum(len(self.job.groups[key].members) for key in used), 1),
        )
        comms = {
            key: writer.comm(self.numbers[key] + 1, list(self.job.groups[key].members), name=self.job.groups[key].name)
            for key in used
        }
        begin = min((calls[0].enter for calls in kept), default=end)
        for moment in (begin, max(begin, end)):
            writer.sample(moment, moment, moment)
        requests: dict[int, int] = {}
        for index, calls in enumerate(kept):
            writer.head.past[index] = 1 if since else 0
            writer.ring(index)
            writer.extend(self._records(calls, index, comms, requests, end), index)
        writer.head.unrecorded = dropped
        writer.close(format.FINALIZED if self.rank.ended else format.SAVED)
        return sum(call.op != Op.MARK for calls in kept for call in calls)

    def _records(
        self, calls: list[Call], ring: int, comms: dict[Hashable, int], requests: dict[int, int], end: int
    ) -> np.ndarray:
        first = 2 if self.rank.since else 1
        records = np.zeros(len(calls), format.RECORD)
        for i, call in enumerate(calls):
            if call.request and call.flags & Flag.NONBLOCKING:
                requests[call.request] = (ring << 48) + first + i
            left = call.exit if call.exit != OPEN and (call.exit <= end or self.rank.ended) else 0
            records[i] = (
                0,
                call.enter,
                max(left, call.enter) if left else 0,
                call.bytes,
                comms.get(call.group, format.NO_COMM),
                call.op,
                call.flags,
                call.peer,
                call.tag,
                requests.get(call.request, 0) if call.request else 0,
                call.seq,
            )
        return records
