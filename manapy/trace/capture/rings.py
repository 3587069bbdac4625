"""Reads trace files into a Trace: rings of running programs (polled), of ended programs, and saved ones.

    reader = Reader(locate.find("my-job-directory").folder)
    while True:
        reader.poll()              # copies what is new; every few ms to few s, before a ring is overwritten
        trace = reader.trace()

How a ring is read while its thread writes: lowerhalf/include/manapy/trace.h, invariant 3.

Invariants
 1. A record is taken only if `seq` was right before and after it was copied, and it is of a known kind; `exit` is read
    before the fields that it makes valid.
 2. Rank.lost counts records that were overwritten before they were read, torn, or not kept. Rank.first_ns is after
    the last of them.
 3. A damaged file affects only its rank. It leaves one line in `problems`.
 4. A trace of several hosts ends at one moment: the earliest time up to which any of them was read. Later events of one
    host would have no counterparts on the others.
 5. Calls that a restart has undone are not in the trace. A call that was open when its generation ended is in the next
    generation, or has ended with it (STOPPED).
 6. Rank.pauses has the pauses of the recording. Rank.first_ns is after the last one, because a pause is a loss of
    unknown extent.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ...core.errors import ManapyError, why
from ..model.events import ANY, EVENT, NEVER, NO_PEER, OPEN, PROC_NULL, Communicator, Flag, Op, Rank, Refusal, Trace
from . import clocks, format
from .ring_file import KEEP, Device, RingFile
from .tracefile import UnfinishedError

# A job of many ranks has more records than an analysis can hold. Then it takes the newest ones of each file (but FEWEST
# of each thread):
TOTAL = 1 << 22  # records of all files together; a record takes some 0.5 kB in an analysis


class NoTraceError(ManapyError):
    """There is no valid trace file. The message is the reason."""


@dataclass(frozen=True)
class Mirror:
    """The trace files of one other host, copied here.

    monotonic: the moment up to which they were read, ns on that host's clock.
    alive: whether a process that writes them still runs.
    ranks: what was seen there of the ranks' processes, as fields of Rank, by rank and generation.
    waits: waits for a processor, if they were sampled there: moments on that host's clock, and the sum of all waits up
        to each (runqueue.py).
    """

    folder: Path
    host: str
    monotonic: int
    alive: bool
    ranks: dict[tuple[int, int], dict[str, Any]]
    waits: Mapping[tuple[int, int], Sequence[tuple[int, int]]] = field(default_factory=dict)


class OtherHosts(Protocol):
    """The job's other hosts (collect.py)."""

    @property
    def mirrors(self) -> Sequence[Mirror]:
        """The mirrors of the hosts that could be reached at the last look."""

    @property
    def meetings(self) -> Sequence[clocks.Meeting]:
        """The meetings with these hosts and with this host."""

    @property
    def problems(self) -> Sequence[str]:
        """Hosts that could not be reached, one line each."""

    def poll(self) -> None:
        """Look at all of them."""

    def gone(self) -> frozenset[int]:
        """Return ranks whose processes there are dead."""


def trace_files(*folders: Path, others: OtherHosts | None = None) -> list[Path]:
    """Return the files of each rank's generations, each once. If hosts share a folder, the file here is used: it is
    newer than any copy of it."""
    found: dict[str, Path] = {}
    for folder in (*folders, *(mirror.folder for mirror in (others.mirrors if others else ()))):
        for path in format.files_in(folder):
            found.setdefault(path.name, path)
    return [found[name] for name in sorted(found)]


class Reader:
    """Reads the trace files of a job. They are in one folder, or in several (saved files of several hosts).

    keep: number of records of each thread that are kept at least. total: of all threads, each file has an equal share.
    others: the job's other hosts.
    """

    def __init__(self, *folders: Path, keep: int = KEEP, total: int = TOTAL, others: OtherHosts | None = None) -> None:
        self.folders, self.keep, self.total, self.others = folders, keep, total, others
        self.problems: list[str] = []
        self._files: dict[Path, RingFile] = {}
        # CLOCK_MONOTONIC of the last look at the rings: the moment that a trace of a running job shows
        self._moment = 0
        self._bad: dict[Path, int] = {}  # path to inode: a bad file may be replaced by a good one

    def poll(self) -> None:
        """Look for new files, and copy what is new in all files. Files of a host that can't be reached any more are
        dropped, because the state of its ranks is no longer known."""
        if self.others is not None:
            self.others.poll()
        self._moment = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        found = trace_files(*self.folders, others=self.others)
        if self.others is not None:
            self._files = {path: file for path, file in self._files.items() if path in found}
        for path in found:
            if path not in self._files:
                self._open(path)
        for file in self._files.values():
            file.poll(self.keep, self.total // len(self._files))

    def _open(self, path: Path) -> None:
        try:
            found = path.stat()
            if self._bad.get(path) == found.st_ino:
                return
            self._bad[path] = found.st_ino
            file = RingFile(path)
        except FileNotFoundError:
            return
        except UnfinishedError as error:
            if time.time() - found.st_mtime < 5:  # it is being created
                del self._bad[path]
            else:
                self.problems.append(str(error))
        except ValueError as error:
            self.problems.append(str(error))
        except OSError as error:
            self.problems.append(why(error, path))
        else:
            del self._bad[path]
            self._files[path] = file
            if file.problem:
                self.problems.append(file.problem)

    def _of_one_job(self) -> tuple[list[RingFile], list[str]]:
        """Return the job's files by rank and generation, and complaints about files of another job in the folder. The
        job with the most files is used; of equal ones, the newest."""
        files = sorted(self._files.values(), key=lambda f: (f.head.rank, f.head.generation))
        groups: dict[int, list[RingFile]] = {}
        for file in files:
            groups.setdefault(file.head.size, []).append(file)
        if len(groups) < 2:
            return files, []
        ours = max(
            groups.values(),
            key=lambda group: (
                len(group),
                max(sample.realtime for file in group for sample in [*file.samples(), clocks.Sample(0, 0, 0)]),
            ),
        )
        others = [file for file in files if file not in ours]
        return ours, [
            f"{file.path}: belongs to another job ({format.text(file.head.job)}, {file.head.size} ranks) and is ignored"
            for file in others
        ]

    def trace(self, newest: int | None = None) -> Trace:
        """Return all kept records, or the newest `newest` records of each thread; earlier ones count as lost. Raises
        NoTraceError."""
        files, foreign = self._of_one_job()
        if not files:
            raise NoTraceError("; ".join(self._problems()) or f"{self.folders[0]}: no trace files")
        heads = [f.head for f in files]
        found, on = clocks.lines(
            [
                (format.text(h.host), f.samples(), h.ticks_per_second, bool(h.invariant_ticks))
                for f, h in zip(files, heads, strict=True)
            ]
        )
        clocks.meet(found, [*self._saved_meetings(), *(self.others.meetings if self.others is not None else ())])
        table: dict[int, int] = {}
        comms: list[Communicator] = []
        devices: list[str] = []
        parts = [self._events(files, heads, i, found[on[i]], table, comms, devices, newest) for i in range(len(files))]
        events = np.concatenate(parts)
        lined = np.repeat(np.array(on), [len(p) for p in parts])
        base = on[0]
        clocks.align(found, base, lined, events)
        ranks: dict[int, Rank] = {}
        for i, (file, head) in enumerate(zip(files, heads, strict=True)):
            _shift(parts[i], found[on[i]])
            self._note(ranks, file, head, found[on[i]], parts[i], newest)
        self._seen_elsewhere(ranks)
        events = np.concatenate(parts)
        events = events[np.lexsort((events["seq"], events["thread"], events["rank"]))]
        job = format.text(heads[0].job)
        moments = self._moments(files, [found[i] for i in on])
        now, events = self._until(moments, found[base], events, ranks)
        here = moments.get(socket.gethostname())
        monotonic = self._moment + now - here if here is not None else 0
        events = _without_refusals(_without_pauses(events, ranks), ranks)
        rdma = events["op"] == Op.RDMA_QP
        waits = self._waits(files, [found[i] for i in on])
        return Trace(
            events[~rdma],
            comms,
            max(h.size for h in heads),
            ranks,
            now,
            job,
            [*self._problems(), *foreign],
            monotonic,
            events[rdma],
            devices,
            waits,
            timed=all(format.text(h.producer) != format.UNTIMED for h in heads),
        )

    def _saved_meetings(self) -> list[clocks.Meeting]:
        """Return the meetings that are saved in a recording of several hosts (disk_copy.py). Reading stops at a line
        that is invalid, as the last line of an interrupted recording may be."""
        found = []
        for folder in self.folders:
            if not (path := folder / format.CLOCKS).is_file():  # a pipe would block
                continue
            with contextlib.suppress(FileNotFoundError, ValueError):
                for line in path.read_text().splitlines():
                    found.append(clocks.from_line(line))
        return found

    def _problems(self) -> list[str]:
        return [*self.problems, *(self.others.problems if self.others is not None else ())]

    def _seen_elsewhere(self, ranks: dict[int, Rank]) -> None:
        """Note what was seen of the ranks' processes on other hosts."""
        for mirror in self.others.mirrors if self.others is not None else ():
            for (rank, generation), seen in mirror.ranks.items():
                if rank in ranks and ranks[rank].generation == generation:
                    ranks[rank] = replace(ranks[rank], **seen)

    def _events(
        self,
        files: list[RingFile],
        heads: list[format.FileStruct],
        which: int,
        line: clocks.Line,
        table: dict[int, int],
        comms: list[Communicator],
        devices: list[str],
        newest: int | None,
    ) -> np.ndarray:
        """Return the events of one file, on its host's clock."""
        file, head = files[which], heads[which]
        later = [h for h in heads if h.rank == head.rank and h.generation > head.generation]
        own = file.comms()
        for comm in own:
            if comm.cid in table:
                continue
            if isinstance(comm, Device):
                table[comm.cid] = len(devices)
                devices.append(comm.name)
            else:
                table[comm.cid] = len(comms)
                comms.append(comm)
        parts = []
        for thread, ring in enumerate(file.rings):
            if not ring.count:
                continue
            records = ring.all() if newest is None else ring.all()[-newest:]
            if later:
                records = records[records["seq"] <= min(h.past[thread] for h in later if thread < format.RINGS)]
            parts.append(_convert(records, head, thread, line, own, table))
        events = np.concatenate(parts) if parts else np.empty(0, EVENT)
        if later:
            ends = line.own(np.array([s.ticks for s in file.samples()] or [0], np.uint64)).max()
            cut = events["exit"] == OPEN
            begins = events["enter"][cut]
            events["exit"][cut] = np.maximum(ends, begins)
            events["flags"][cut] |= np.uint16(Flag.STOPPED)
        return events

    def _note(
        self,
        ranks: dict[int, Rank],
        file: RingFile,
        head: format.FileStruct,
        line: clocks.Line,
        events: np.ndarray,
        newest: int | None,
    ) -> None:
        """Note the information on a rank besides its calls. Files of later generations come later, and add to it."""
        before = ranks.get(head.rank)
        rank = Rank(
            head.rank,
            line.host,
            head.pid,
            head.pid_start,
            head.generation,
            head.end == format.FINALIZED,
            uncertainty_ns=line.uncertainty,
        )
        if format.text(head.producer) == format.UNTIMED:
            rank.place = format.text(head.program)
        rank.problems = [*line.problems, *([file.problem] if file.problem else [])]
        rank.lost = before.lost if before else 0
        rank.first_ns = before.first_ns if before else 0
        for i, ring in enumerate(file.rings[: head.rings]):
            head_now = file.ring(i)
            older = 0 if newest is None else max(ring.count - newest, 0)
            rank.lost += ring.lost + older
            mine = events[(events["thread"] == i) & (events["seq"] >= ring.whole_from)]
            # SHIFT's worker records too, and makes no MPI call for which others could wait
            if head_now.used and not (len(mine) and (mine["op"] == Op.RDMA_QP).all()):
                rank.threads[i] = int(head_now.tid)
            if ring.lost or older or (ring.count and not before and head_now.first > 1):
                rank.first_ns = max(
                    rank.first_ns,
                    int(mine["enter"][0])
                    if len(mine)
                    else int(line.shifted(line.own(np.array([_last(file)], np.uint64)))[0]),
                )
            if head_now.polls:
                rank.polls += int(head_now.polls)
                polled = int(line.shifted(line.own(np.array([head_now.polled], np.uint64)))[0])
                if polled > rank.polled_ns:
                    rank.polled_ns, rank.polled_request = polled, int(head_now.polled_request)
        if head.unrecorded:
            rank.problems.append(
                f"rank {head.rank}: {head.unrecorded} calls or threads were not recorded: more than "
                f"{head.rings_capacity} threads, or no room"
            )
        ranks[head.rank] = rank

    def _waits(self, files: list[RingFile], on: list[clocks.Line]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Return what other hosts have sampled, on the job's clock."""
        lines = {file.path.parent: line for file, line in zip(files, on, strict=True)}
        found = {}
        for mirror in self.others.mirrors if self.others is not None else ():
            line = lines.get(mirror.folder)
            for (rank, _), samples in sorted(mirror.waits.items()):
                if line is not None and len(samples):
                    moments, sums = np.array(samples, np.int64).T
                    found[rank] = line.shifted(line.anchor.realtime + moments - line.anchor.monotonic), sums
        return found

    def _moments(self, files: list[RingFile], on: list[clocks.Line]) -> dict[str, int]:
        """Return for each host on which the job runs the moment up to which it was read, ns."""
        mirrors = {mirror.folder: mirror for mirror in (self.others.mirrors if self.others is not None else ())}
        read: dict[str, int] = {}
        for file, line in zip(files, on, strict=True):
            mirror = mirrors.get(file.path.parent)
            if line.host not in read and (mirror.alive if mirror else file.alive):
                monotonic = mirror.monotonic if mirror else self._moment
                read[line.host] = int(
                    line.shifted(np.array([line.anchor.realtime + monotonic - line.anchor.monotonic]))[0]
                )
        return read

    @staticmethod
    def _until(
        moments: dict[str, int], base: clocks.Line, events: np.ndarray, ranks: dict[int, Rank]
    ) -> tuple[int, np.ndarray]:
        """Return the moment of the trace, and the events up to then (invariant 4). If the job runs, it is the moment of
        the last look, else that of the last known event. Rings are copied one after the other, and the reader may be
        halted between two of them. Without this limit, a rank that was copied early would seem idle."""
        if not moments:
            last = max(int(events["enter"].max(initial=0)), int(events["exit"].max(initial=0)))
            return max(last, base.samples[-1].realtime if base.samples else 0), events
        now = min(moments.values())
        later = (events["enter"] > now) | (events["exit"] > now)
        for rank in set(events["rank"][later].tolist()):
            ranks[rank].ended = False
        events["exit"][later] = OPEN
        return now, events[events["enter"] <= now]


def _without_pauses(events: np.ndarray, ranks: dict[int, Rank]) -> np.ndarray:
    """Return the events without pauses. Pauses are noted in their ranks (invariant 6)."""
    pauses = events["op"] == Op.PAUSE
    for rank in np.unique(events["rank"][pauses]).tolist():
        mine = events[pauses & (events["rank"] == rank)]
        ends = np.where(mine["exit"] == OPEN, NEVER, mine["exit"])
        mine = mine[np.argsort(ends, kind="stable")]
        ranks[rank].pauses = tuple(zip(mine["enter"].tolist(), mine["exit"].tolist(), strict=True))
        ranks[rank].first_ns = max(ranks[rank].first_ns, int(ends.max()))
    return events[~pauses]


def _without_refusals(events: np.ndarray, ranks: dict[int, Rank]) -> np.ndarray:
    """Return the events without refusals. The first refusal of each rank is noted in the rank. Its name may continue in
    the records after it (MORE)."""
    refusals = np.flatnonzero(events["op"] == Op.REFUSED)
    found: dict[int, Refusal] = {}
    name = b""
    for event in events[refusals]:
        name += b"".join(int(event[part]).to_bytes(8, "little") for part in ("bytes", "request", "context")).rstrip(
            b"\0"
        )
        if event["flags"] & Flag.MORE:
            continue
        one = Refusal(name.decode(errors="replace"), int(event["tag"]), int(event["enter"]))
        before = found.setdefault(int(event["rank"]), one)
        found[int(event["rank"])] = min(before, one, key=lambda refusal: refusal.at)
        name = b""
    for rank, refusal in found.items():
        ranks[rank].refused = refusal
    return np.delete(events, refusals)


def _last(file: RingFile) -> int:
    """Return the ticks of the newest clock sample of a file."""
    return max((s.ticks for s in file.samples()), default=0)


def _shift(events: np.ndarray, line: clocks.Line) -> None:
    """Move events from their host's clock to the job's clock."""
    returned = events["exit"] != OPEN
    events["enter"] = line.shifted(events["enter"])
    events["exit"][returned] = line.shifted(events["exit"][returned])


def _convert(
    records: np.ndarray,
    head: format.FileStruct,
    thread: int,
    line: clocks.Line,
    own: list[Communicator],
    table: dict[int, int],
) -> np.ndarray:
    """Return the records of one ring as events, on their host's clock."""
    events = np.zeros(len(records), EVENT)
    for name in ("op", "flags", "tag", "seq", "bytes", "request", "context"):
        events[name] = records[name]
    events["rank"], events["thread"], events["generation"] = head.rank, thread, head.generation
    events["enter"] = line.own(records["enter"])
    events["exit"] = np.where(records["exit"] == 0, OPEN, line.own(np.maximum(records["exit"], 1)))
    rdma = records["op"] == Op.RDMA_QP
    places = np.array([*(table[c.cid] for c in own), -1], np.int32)
    comm = np.where(records["comm"] < len(own), records["comm"], len(own)).astype(np.int64)
    events["comm"] = places[comm]
    events["peer"] = _peers(records["peer"], comm, own)
    events["comm"][rdma] = records["comm"][rdma].astype(np.int32)
    events["peer"][rdma] = records["peer"][rdma]
    device = records["tag"][rdma].astype(np.int64)
    events["tag"][rdma] = places[np.where((device >= 0) & (device < len(own)), device, len(own))]
    return events


def _peers(peer: np.ndarray, comm: np.ndarray, own: list[Communicator]) -> np.ndarray:
    """Return the world ranks of ranks in communicators. In an inter-communicator they are ranks of the remote group."""
    reached = [c.members[len(c.members) - c.remote :] if c.remote else c.members for c in own]
    count = np.array([*map(len, reached), 0], np.int64)[comm]
    start = np.concatenate(([0], np.cumsum([len(r) for r in reached]))).astype(np.int64)[comm]
    world = np.concatenate([*reached, np.zeros(1, np.int32)])
    known = (peer >= 0) & (peer < count)
    named = np.isin(peer, (ANY, PROC_NULL))
    return np.where(known, world[np.where(known, start + peer, 0)], np.where(named, peer, NO_PEER)).astype(np.int32)


def read(*folders: Path, others: OtherHosts | None = None) -> Trace:
    """Look once at the trace files in these folders, and at the job's other hosts."""
    reader = Reader(*folders, others=others)
    reader.poll()
    return reader.trace()
