"""The job's other hosts: copies their recordings to this host, and asks what their processes do. There is one small
process per host, `manapy _collect`.

    others = Hosts(["node2", "node3"], "my-job-directory-0a1b2c3d")
    reader = rings.Reader(found.folder, others=others)      # polls them with its own files

reach.py connects this process: through the agents of the job, or through a remote shell. The process answers requests
on its standard input. A request is a line of JSON. An answer is a line of JSON, too; its `bytes` is the number of bytes
that follow it, compressed.

Invariants
 1. Copies have the layout of their originals (lowerhalf/include/manapy/trace.h). They change only between two polls of
    their reader.
 2. A host that does not answer within PATIENCE seconds affects only its own ranks. Its copies are removed, because the
    state of its ranks is no longer known. It is tried again after RETRY seconds.
 3. The remote process ends with its standard input, whatever has happened to this process. It only reads: it changes
    nothing of the job, and the job never waits for it.
 4. One answer contains at most as many records as a reader keeps: each rank's newest records, an equal share of `total`
    for each rank.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import socket
import tempfile
import time
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import numpy as np

from ...ckpt.store.job import Job
from ...core.errors import JobError
from ..host import activity, process_state, runqueue, stacks
from ..model.events import Rank, Trace
from . import clocks, format, tsc_clock
from .reach import CollectorChannel, LostError, ThroughAgent, ThroughShell, remote_shell
from .ring_file import FEWEST, KEEP
from .rings import TOTAL, Mirror
from .tail import Tail, runs

PATIENCE = 30.0  # seconds for an answer; a remote shell may start slowly
RETRY = 30.0  # seconds
ASK_AGAIN = 10.0  # seconds after which a host is asked for the time again
PINGS = 16  # the fastest of so many counts
PACKED = 1  # zlib's level: records shrink to a quarter or less, and the network is the coordinator's, too
AT_ONCE = 64  # number of hosts that are asked at the same time
FORMAT = 4  # version of requests and answers
SEEN = ("process", "cpu_share")  # fields of Rank that come from /proc


# ---- on the other host: `manapy _collect`


class Tails:
    """The trace files that processes of this host write, or have written."""

    def __init__(self, folder: Path, keep: int, total: int | None, sampler: runqueue.Sampler) -> None:
        self.folder, self.keep, self.total, self.sampler = folder, keep, total, sampler
        self._sampled = 0  # moment up to which samples were sent
        # by name and inode: a restart from an earlier checkpoint replaces files
        self._tails: dict[tuple[str, int], Tail] = {}
        self._sent: dict[tuple[str, int], dict[int, bytes]] = {}  # heads, by offset
        self._tables: dict[tuple[str, int], list[int]] = {}  # number of entries of both tables sent so far
        self._sight: process_state.ProcessSample | None = None

    def news(self) -> tuple[dict[str, Any], list[bytes]]:
        """Return the new data: for each file its size, and the offsets of the bytes that follow; and what its processes
        do. Waits until the last look is at least process_state.INTERVAL seconds ago, if a process is alive."""
        self._look_for_files()
        ranks = self._ranks()
        monotonic = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        files, data = [], []
        for (name, inode), tail in self._tails.items():
            patches = list(self._patches((name, inode), tail))
            files.append(
                {
                    "name": name,
                    "inode": inode,
                    "size": tail.size,
                    "patches": [(offset, len(part)) for offset, part in patches],
                }
            )
            data += [part for _, part in patches]
        alive = any(known["process"] != process_state.DEAD for known in ranks)
        return {"monotonic": monotonic, "alive": alive, "ranks": ranks, "files": files}, data

    def _look_for_files(self) -> None:
        own = socket.gethostname()
        for path in format.files_in(self.folder):
            with contextlib.suppress(OSError, ValueError):  # it is gone, being created, or no trace file
                key = path.name, path.stat().st_ino
                if key in self._tails:
                    continue
                tail = Tail(path)
                if tail.host == own:  # hosts may share the folder
                    self._tails = {k: t for k, t in self._tails.items() if k[0] != path.name} | {key: tail}
                    self._sent[key], self._tables[key] = {}, [0, 0]

    def _ranks(self) -> list[dict[str, Any]]:
        """Return what was seen of each process that has not ended by itself, as process_state.examine does, but over
        the time since the last look."""
        ranks: dict[int, Rank] = {}
        for tail in self._tails.values():
            head = tail.head
            if head.end == format.RUNNING and head.generation >= (
                ranks[head.rank].generation if head.rank in ranks else 0
            ):
                ranks[head.rank] = Rank(head.rank, tail.host, head.pid, head.pid_start, head.generation)
        trace = Trace(np.empty(0), [], 0, ranks, 0)
        before = self._sight
        if (
            before is not None
            and (left := before.at + process_state.INTERVAL - time.monotonic()) > 0
            and any(seen.state != process_state.DEAD for seen in before.seen.values())
        ):
            time.sleep(left)
        self._sight = process_state.sight(trace)
        self.sampler.watch(trace)
        self.sampler.sample()
        after, self._sampled = self._sampled, time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        seen = process_state.described(trace, before or self._sight, self._sight).ranks
        return [
            {
                "rank": rank,
                "generation": known.generation,
                "waits": self.sampler.between(rank, after, self._sampled),
                **{name: getattr(known, name) for name in SEEN},
            }
            for rank, known in seen.items()
        ]

    def _patches(self, key: tuple[str, int], tail: Tail) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, bytes). Their order makes a copy valid even if only the first of them were applied."""
        head = tail.head
        used, keep = min(head.rings, head.rings_capacity), self.keep
        if self.total is not None:  # invariant 4
            keep = min(keep, max(self.total // max(head.size * used, 1), FEWEST))
        for i in range(used):
            ring, start = tail.ring(i), head.rings_offset + i * head.ring_stride
            if ring.first:
                yield from runs(tail.new(i, ring, keep), tail.capacity, start + format.PAGE)
            yield from self._changed(key, start, bytes(ring))
        head = tail.head  # read again: new records may refer to new entries of the tables
        yield from tail.entered(head, self._tables[key])
        yield from self._changed(key, 0, bytes(head))

    def _changed(self, key: tuple[str, int], offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield these bytes if they differ from those that were sent for this offset before."""
        if self._sent[key].get(offset) != data:
            self._sent[key][offset] = data
            yield offset, data


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until there are no more."""
    with contextlib.ExitStack() as stack:
        _serve(requests, answers, stack)


def _serve(requests: IO[bytes], answers: IO[bytes], sampling: contextlib.ExitStack) -> None:
    tails: Tails | None = None
    looks = activity.Activity()
    for line in requests:
        request, data = json.loads(line), list[bytes]()
        if request["do"] == "open":
            sampler = runqueue.Sampler()
            if request["sample"]:
                sampling.enter_context(sampler)
            folder = format.root(below=request["root"]) / request["job"]
            tails = Tails(folder, request["keep"], request["total"], sampler)
            said: dict[str, Any] = {"format": FORMAT, "version": format.VERSION, "host": socket.gethostname()}
        elif request["do"] == "stack":
            said = {"stack": stacks.of(request["pid"], request["start"])}
        elif request["do"] == "activity":
            asked = {
                rank: activity.Suspect(pid, start, frozenset(inside))
                for rank, pid, start, inside in request["suspects"]
            }
            said = {"doing": [[rank, doing.what, doing.still] for rank, doing in looks.look(asked).items()]}
        elif request["do"] == "clocks":
            sample = tsc_clock.now()
            said = {"clocks": None if sample is None else [sample.ticks, sample.realtime, sample.monotonic]}
        else:
            assert tails is not None
            said, data = tails.news()
        # srun passes on only complete lines (srun(1), --unbuffered)
        packed = zlib.compress(b"".join(data), PACKED) + b"\n" if data else b""
        answers.write(json.dumps(said | {"bytes": len(packed)}).encode() + b"\n" + packed)
        answers.flush()


# ---- on this host


class _Host:
    """One other host. mirror: None until it has answered."""

    def __init__(self, name: str, where: Path) -> None:
        self.name = self.host = name  # host: its own name for itself
        self.meetings: list[clocks.Meeting] = []
        self.mirror: Mirror | None = None
        self.folder = Path(tempfile.mkdtemp(dir=where))
        self._inodes: dict[str, int] = {}
        self._waits: dict[tuple[int, int], deque[tuple[int, int]]] = {}
        self._way: CollectorChannel | None = None

    def open(
        self, way: Callable[[str], CollectorChannel], job: str, keep: int, total: int | None, sample: bool
    ) -> None:
        """Start the process there that answers. Raises LostError."""
        self._way = way(self.name)
        root = os.environ.get("MANAPY_TRACE_ROOT")
        said, _ = self.ask(
            {"do": "open", "job": job, "root": root, "keep": keep, "total": total, "sample": sample}, "format"
        )
        if (said["format"], said.get("version")) != (FORMAT, format.VERSION):
            raise LostError("another version of manapy is installed there")
        self.host = said["host"]

    @property
    def by_agent(self) -> bool:
        """Is it reached through its agent?"""
        return isinstance(self._way, ThroughAgent)

    def poll(self) -> None:
        """Copy the new data. Raises LostError."""
        said, data = self.ask({"do": "news"}, "files")
        at = 0
        for file in said["files"]:
            with self._copy(file["name"], file["inode"], file["size"]) as copy:
                for offset, size in file["patches"]:
                    os.pwrite(copy.fileno(), data[at : at + size], offset)
                    at += size
        ranks = {(known["rank"], known["generation"]): {name: known[name] for name in SEEN} for known in said["ranks"]}
        for known in said["ranks"]:
            self._waits.setdefault((known["rank"], known["generation"]), deque(maxlen=runqueue.KEEP)).extend(
                known["waits"]
            )
        self.mirror = Mirror(self.folder, self.name, said["monotonic"], said["alive"], ranks, self._waits)

    def meet(self) -> None:
        """Ask the host for the time, unless that was done less than ASK_AGAIN seconds ago. Raises LostError."""
        if (
            self.meetings
            and time.clock_gettime_ns(time.CLOCK_MONOTONIC) < self.meetings[-1].at + ASK_AGAIN * clocks.SECOND
        ):
            return
        found = [meeting for _ in range(PINGS) if (meeting := self._ping()) is not None]
        if found:
            newest = min(found, key=lambda meeting: meeting.uncertainty)
            self.meetings = clocks.kept([*self.meetings, newest])

    def _ping(self) -> clocks.Meeting | None:
        """Ask the host for the time once. Returns None if it has no recorder."""
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        said = self.ask({"do": "clocks"}, "clocks")[0]["clocks"]
        took = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - before
        return (
            clocks.Meeting(self.host, clocks.Sample(*said), before + took // 2, took // 2 + 1)
            if said is not None
            else None
        )

    def _copy(self, name: str, inode: int, size: int) -> IO[bytes]:
        """Open the copy of a file. It is made anew if the host's file was replaced."""
        path = self.folder / name
        if format.rank_and_generation(path) is None or path.parent != self.folder:
            raise LostError(f"it sends something other than a trace file: {name!r}")
        if self._inodes.get(name) != inode:
            path.unlink(missing_ok=True)
            self._inodes[name] = inode
            path.touch(0o600)
            os.truncate(path, size)
        return path.open("r+b", buffering=0)

    def ask(self, request: dict[str, Any], wanted: str) -> tuple[dict[str, Any], bytes]:
        """Return the answer, which has the key `wanted`, and the bytes that follow it. Raises LostError."""
        deadline = time.monotonic() + PATIENCE
        assert self._way is not None
        try:
            self._way.write(json.dumps(request).encode() + b"\n")
            got = bytearray()
            while (end := got.find(b"\n")) < 0:
                got += self._way.read(deadline)
            said, data = json.loads(got[:end]), got[end + 1 :]
            while len(data) < said["bytes"]:
                data += self._way.read(deadline)
            if wanted not in said:
                raise ValueError(f"an answer without '{wanted}'")
            return said, zlib.decompressobj().decompress(data) if data else b""
        except TimeoutError as error:
            raise LostError(f"no answer within {PATIENCE:.0f} s") from error
        except (OSError, ValueError, KeyError, TypeError, zlib.error) as error:
            raise LostError(self._way.reason(str(error))) from error

    def close(self) -> None:
        """End the remote process, and remove the copies."""
        if self._way is not None:
            self._way.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Hosts:
    """The other hosts of the job whose trace is called `job`. Implements rings.Elsewhere.

    Nothing happens before the first poll. When this object or this process ends, the remote processes are ended and the
    copies are removed.

    shell: command before a host's name; None: remote_shell().
    keep: number of records of each thread that are copied at most.
    agents: the job of manapy-launch whose agents reach its hosts. Without one, after its end, and for hosts without an
    agent, the remote shell does.
    total: number of records of all threads of the job together that are copied at once; None: any.
    sample: whether waits for a processor are sampled there continuously. Set both before the first poll.
    """

    def __init__(
        self,
        names: Iterable[str],
        job: str,
        shell: Sequence[str] | None = None,
        keep: int = KEEP,
        agents: Job | None = None,
    ) -> None:
        self.names, self.job, self.shell, self.keep = tuple(names), job, tuple(shell or remote_shell()), keep
        self.agents = agents
        self.mirrors: list[Mirror] = []
        self.total: int | None = TOTAL
        self.sample = False
        self._hosts: dict[str, _Host] = {}
        self._lost: dict[str, tuple[float, str]] = {}  # when, and why
        self._own: list[clocks.Meeting] = []
        self._where = Path(tempfile.mkdtemp(prefix="manapy-hosts-"))
        self._end = weakref.finalize(self, _close, self._hosts, self._where)

    @property
    def meetings(self) -> list[clocks.Meeting]:
        """Meetings with all hosts that can be reached, and with this host."""
        return [*self._own, *(meeting for host in self._hosts.values() for meeting in host.meetings)]

    @property
    def lost(self) -> dict[str, str]:
        """Hosts that could not be reached, with the reason."""
        return {name: why for name, (_, why) in self._lost.items()}

    @property
    def problems(self) -> list[str]:
        """Hosts that could not be reached, one line each."""
        return [f"{name} cannot be reached; nothing is known of its ranks: {why}" for name, why in self.lost.items()]

    def poll(self) -> None:
        """Poll all hosts.

        New hosts are asked twice: first for all their data, then, with the others, for new data. The moment of the
        trace is the one up to which all hosts are known. It is the newer the faster they all answer.
        """
        now = time.monotonic()
        due = [
            name
            for name in self.names
            if name not in self._hosts and (name not in self._lost or now >= self._lost[name][0] + RETRY)
        ]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self._begin, due))
            list(pool.map(self._look, list(self._hosts)))
        if (sample := tsc_clock.now()) is not None and (
            not self._own or sample.monotonic >= self._own[-1].at + ASK_AGAIN * clocks.SECOND
        ):
            own = clocks.Meeting(socket.gethostname(), sample, sample.monotonic, 0)
            self._own = clocks.kept([*self._own, own])
        self.mirrors = [host.mirror for host in self._hosts.values() if host.mirror is not None]

    def gone(self) -> frozenset[int]:
        """Return ranks whose processes there are dead although they did not end by themselves."""
        return frozenset(
            rank
            for mirror in self.mirrors
            for (rank, _), seen in mirror.ranks.items()
            if seen["process"] == process_state.DEAD
        )

    def stack(self, rank: Rank) -> list[str]:
        """Return evidence on where a rank of another host is: stacks.of, asked there. Empty if it can't be learned."""
        host = next(
            (
                host
                for host in self._hosts.values()
                if host.mirror and (rank.rank, rank.generation) in host.mirror.ranks
            ),
            None,
        )
        try:
            return (
                list(host.ask({"do": "stack", "pid": rank.pid, "start": rank.pid_start}, "stack")[0]["stack"])
                if host is not None
                else []
            )
        except LostError:
            return []

    def activity(self, suspects: dict[int, activity.Suspect]) -> dict[int, activity.ObservedActivity]:
        """Return what the processes of ranks of other hosts do: activity.Activity, asked there, on all hosts at once.
        Ranks for which it can't be learned are left out."""
        asked: dict[str, list[list[Any]]] = {}
        for rank, suspect in suspects.items():
            name = next(
                (
                    name
                    for name, host in self._hosts.items()
                    if host.mirror and any(seen == rank for seen, _ in host.mirror.ranks)
                ),
                None,
            )
            if name is not None:
                asked.setdefault(name, []).append([rank, suspect.pid, suspect.start, sorted(suspect.inside)])

        def ask(name: str) -> list[Any]:
            try:
                return list(self._hosts[name].ask({"do": "activity", "suspects": asked[name]}, "doing")[0]["doing"])
            except LostError:
                return []

        with ThreadPoolExecutor(AT_ONCE) as pool:
            return {
                rank: activity.ObservedActivity(what, still)
                for answer in pool.map(ask, asked)
                for rank, what, still in answer
            }

    def _running(self) -> Job | None:
        """Return the job with agents as it is now (a restart has another coordinator), or None if it has ended."""
        try:
            job = self.agents.again() if self.agents is not None else None
        except JobError:  # its directory was removed
            return None
        return job if job is not None and job.end() is None else None

    def _ways(self) -> list[Callable[[str], CollectorChannel]]:
        """Return the ways to a host, the best first."""
        shell = functools.partial(ThroughShell, self.shell)
        job = self._running()
        return [functools.partial(ThroughAgent, job), shell] if job is not None else [shell]

    def _begin(self, name: str) -> None:
        self._lost.pop(name, None)
        reasons = []
        for way in self._ways():
            host = _Host(name, self._where)
            try:
                host.open(way, self.job, self.keep, self.total, self.sample)
            except LostError as error:
                reasons.append(str(error))
                host.close()
            else:
                self._hosts[name] = host
                self._look(name)
                return
        self._lost[name] = time.monotonic(), "; ".join(reasons)

    def _look(self, name: str) -> None:
        try:
            self._hosts[name].meet()
            self._hosts[name].poll()
        except LostError as error:
            host = self._hosts.pop(name)
            host.close()
            self._lost[name] = time.monotonic(), str(error)
            if host.by_agent and self._running() is None:  # a remote shell may still read what the job has left
                self._begin(name)


def _close(hosts: dict[str, _Host], where: Path) -> None:
    """Close all hosts and remove the folder of copies."""
    for host in hosts.values():
        host.close()
    shutil.rmtree(where, ignore_errors=True)
