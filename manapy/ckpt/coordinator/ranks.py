"""The ranks of a job, as seen through their connections to the coordinator: which ranks are connected, which have ended
or died, and whether the job is over.

Invariants
 1. The job is over when no rank is connected and none can connect any more.
 2. A rank whose connection ends without DONE has died. If mpirun has not ended the other ranks after GRACE_SECONDS,
    they get KILL, so that none waits for ever for the dead rank.
 3. A process that execs (a script that ends in `exec python ...`) loses its connection and comes back as the same rank.
    The same is true of a rank of several processes, when another of its processes begins to speak for it
    (lowerhalf/tree). The rank is dead when its process is dead, when the agent of its host is lost, or when it has not
    returned within EXEC_SECONDS. A process that it has forked before the exec may hold that connection open: then the
    next HELLO of the same process ends it.
 4. Failures (the loss of a connection, or DONE with an error) are ordered by the time at which the rank's own host
    noticed them, converted to the clock of this host (peer_time.py). The coordinator learns of failures on other hosts
    later. By then mpirun may have killed a rank of this host.
 5. The handling of an event that occurs once per rank does not scan all ranks; it uses counters.
 6. Restarted ranks connect after their MPI_Init, which waits for ranks that are lost. Then rank 0 is told through a
    pipe (lowerhalf/mpi/slow_init.c). It ends, and mpirun ends the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...core import processes
from .. import protocol
from ..peer_time import UNSURE, now
from .channel import Channel
from .nodes import Node, NodeChannel

log = logging.getLogger(__name__)

GRACE_SECONDS = 1.0  # between the death of a rank, or of an agent, and KILL to the others
# A rank whose process lives comes back within this time. It has exec'ed another program, which may take long to start
# on a slow file system. Or another process is about to speak for it (MPY_BACK_MS of control/control.h is shorter).
EXEC_SECONDS = 60.0
LOOK_SECONDS = 3.0  # between looks whether it lives, where the kernel does not report the end of a process
END_SECONDS = 20.0  # between KILL and giving up on ranks that stay
LAST_WORDS_SECONDS = 0.2  # after the end of a process, to read the last lines that it has sent
LATE_SECONDS = 2.0  # after rank 0 and all connected ranks have ended; other ranks will not connect any more
NEVER = 1 << 63  # later than any time of now()


@dataclass(eq=False, slots=True)
class Rank:
    """One rank's connection. ``code``: the exit code, if the rank is done; ``gone``: it will not return."""

    number: int
    host: str
    pid: int
    generation: int
    channel: Channel | NodeChannel
    mpi: str = "none"  # as in PROGRAM
    init_since: float = 0.0  # (monotonic) if mpi is "init"
    program: str = ""
    done: bool = False
    code: int = 0
    ready: bool = False
    connected: bool = True
    gone: bool = False

    @property
    def here(self) -> bool:
        """Whether the rank is on this host."""
        return self.host == socket.gethostname()

    def is_process(self, host: str, pid: int, channel: Channel | NodeChannel) -> bool:
        """Whether it is this process of this host, which has connected in the same way: an agent speaks only for its
        own ranks."""
        mine, other = (getattr(each, "node", None) for each in (self.channel, channel))
        return (self.host, self.pid) == (host, pid) and mine is other


class _Failure(NamedTuple):
    """``code``: the exit code; None: the connection was lost. ``noticed``: when, as now() says it (invariant 4)."""

    code: int | None
    noticed: int


class Ranks:
    """All ranks of one job.

    ``on_away(rank)`` is called when its connection is lost and may return, ``on_back(rank)`` when it has returned,
    ``on_gone(rank, done, why)`` when it will not return; done: it had ended its part.
    """

    def __init__(
        self,
        size: int,
        on_away: Callable[[int], None],
        on_back: Callable[[int], None],
        on_gone: Callable[[int, bool, str], None],
    ) -> None:
        self.size = size
        self.known: dict[int, Rank] = {}
        self.killed = ""  # why KILL was or will be sent
        self.over = asyncio.Event()
        self._last_words = -1  # invariant 6
        self._tell_away, self._tell_back = on_away, on_back
        self._tell_gone = on_gone
        self._rank0_gone = False
        self._failures: dict[Rank, _Failure] = {}
        self._lost_hosts: list[tuple[int, str]] = []  # when it was noticed, and the host
        self._done = self._gone = self._ready = 0  # of `known`
        # what _routes says of all ranks; None: not known since a rank has come or gone
        self._to_all: tuple[list[Channel], dict[Node, list[int]]] | None = None

    @property
    def all_came(self) -> bool:
        """Have all ranks connected at some time?"""
        return len(self.known) == self.size

    @property
    def all_ready(self) -> bool:
        """Is every rank that has connected ready for the program to go on, after a restart?"""
        return self._ready == len(self.known)

    @property
    def all_done(self) -> bool:
        """Has every rank ended its part?"""
        return self._done == self.size

    @property
    def dying(self) -> bool:
        """Is the job being ended from outside, or by a death?"""
        return (
            self.over.is_set()
            or bool(self.killed)
            or any(not (rank.connected or rank.done) for rank in self.known.values())
        )

    def hosts(self) -> list[str]:
        """The host of each rank. All must have connected."""
        return [self.known[number].host for number in range(self.size)]

    def missing(self) -> list[int]:
        """The ranks that have not connected yet."""
        return [number for number in range(self.size) if number not in self.known]

    def ending(self) -> dict[str, Any]:
        """How the job has ended, for job.json.

        The exit code is that of the first rank with one. The first failure is the rank that failed first, with its
        exit code, or None if it died. The very first failure, which was noticed at ``failed_at`` (seconds since the
        epoch), may be the loss of ``lost_host``. A host can be lost before its ranks have connected.
        """
        code = next((self.known[number].code for number in sorted(self.known) if self.known[number].code), 0)
        rank, failure = next(iter(self._by_time()), (None, _Failure(None, NEVER)))
        first = None if rank is None else {"rank": rank.number, "host": rank.host, "code": failure.code}
        lost, host = min(self._lost_hosts, default=(NEVER, ""))
        noticed = min(failure.noticed, lost)
        return {
            "code": code,
            "first_failure": first,
            "failed_at": round(time.time() - (now() - noticed) / 1e6, 3) if noticed < NEVER else 0.0,
            "lost_host": host if lost == noticed else "",
        }

    def doubt(self) -> str:
        """Which rank may have failed before the first failure that ending() gives; empty if none on another host."""
        for rank, failure in (failures := self._by_time()):
            first, (_, noticed) = failures[0]
            if rank.host != first.host and failure.noticed - noticed < UNSURE:
                return (
                    f"rank {first.number} on {first.host} counts as the first failure, but perhaps rank {rank.number} "
                    f"on {rank.host} failed before it: the times differ by {(failure.noticed - noticed) / 1000:.1f} ms"
                )
        return ""

    def _by_time(self) -> list[tuple[Rank, _Failure]]:
        """The failures, the first one first. If another object has its number, the rank has returned (invariant 3)."""
        failures = [(rank, failure) for rank, failure in self._failures.items() if self.known[rank.number] is rank]
        return sorted(failures, key=lambda pair: pair[1].noticed)

    def send(self, numbers: Collection[int], line: str) -> None:
        """Send a line to these ranks. Never blocks. Leaves out ranks that are not connected."""
        if len(numbers) < self.size:
            direct, behind = self._routes(numbers)
        else:
            direct, behind = self._to_all = self._to_all or self._routes(numbers)
        for channel in direct:
            channel.send(line)
        for node, ranks in behind.items():
            node.send(ranks, line)

    def _routes(self, numbers: Iterable[int]) -> tuple[list[Channel], dict[Node, list[int]]]:
        """The connections of ranks that have one of their own, and the other ranks of each node."""
        direct: list[Channel] = []
        behind: dict[Node, list[int]] = {}
        for number in numbers:
            rank = self.known.get(number)
            if rank is None or not rank.connected:
                continue
            if isinstance(rank.channel, NodeChannel):
                behind.setdefault(rank.channel.node, []).append(number)
            else:
                direct.append(rank.channel)
        return direct, behind

    # ---- coming and going

    def admit(self, fields: list[str], channel: Channel | NodeChannel) -> Rank | None:
        """The rank that has sent HELLO; None if it does not belong to this job."""
        number, size = int(fields[0]), int(fields[1])
        host, pid = sys.intern(protocol.decode_text(fields[2])), int(fields[3])
        before = self.known.get(number)
        has_execed = before is not None and before.connected and before.is_process(host, pid, channel)
        is_taken = before is not None and (before.done or (before.connected and not has_execed))
        if size != self.size or not 0 <= number < size or is_taken:
            log.error("rank %d of %d does not belong to this job, or is already connected", number, size)
            return None
        if before is not None and has_execed:
            self._disconnect(before, now())  # invariant 3
        self._gone -= before is not None and before.gone
        self._ready -= before is not None and before.ready
        rank = self.known[number] = Rank(number, host, pid, int(fields[4]), channel)
        self._to_all = None
        if rank.here:  # a child of the process may hold its connection open
            self._watch(rank.pid, lambda noticed: self._on_gone(rank, noticed=noticed))
        if self.killed:
            self.send((number,), protocol.join("KILL", 1, self.killed))
        if before is not None:
            self._tell_back(number)
        return rank

    @property
    def leaving(self) -> bool:
        """Rank 0 and all ranks that have connected have ended: unless another rank still connects, the job is over."""
        return self._rank0_gone and self._gone == len(self.known)

    def watch_rank0(self, pid: int, last_words: int = -1) -> None:
        """Watch the process of rank 0 from the beginning, because it starts the job. ``last_words``: its pipe."""
        self._last_words = last_words
        self._watch(pid, self._on_rank0_gone)

    def on_ready(self, rank: Rank) -> None:
        """A rank has sent READY."""
        self._ready += not rank.ready
        rank.ready = True

    def on_done(self, rank: Rank, code: int, noticed: int) -> None:
        """A rank has sent DONE: it has ended its part. ``noticed``, here and below: see invariant 4."""
        if rank.done:
            return
        rank.done, rank.code = True, code
        self._done += 1
        if code:
            self._failures[rank] = _Failure(code, noticed)

    def on_connection_lost(self, rank: Rank, noticed: int) -> None:
        """Invariants 2 and 3."""
        if not rank.connected or rank.done:
            self._on_gone(rank)
            return
        self._disconnect(rank, noticed)
        self._await_return(rank, EXEC_SECONDS)

    def _await_return(self, rank: Rank, seconds: float) -> None:
        if self.killed:  # it has ended because it was told to
            seconds = min(seconds, LOOK_SECONDS)
        if seconds <= 0 or (rank.here and not processes.is_alive(rank.pid)):
            self._on_gone(rank)
        elif not rank.gone and self.known[rank.number] is rank:
            pause = min(LOOK_SECONDS, seconds)
            asyncio.get_running_loop().call_later(pause, self._await_return, rank, seconds - pause)

    def on_process_ended(self, number: int, node: Node) -> None:
        """The process of a rank on a node has ended, after its connection."""
        rank = self.known.get(number)
        if rank is not None and isinstance(rank.channel, NodeChannel) and rank.channel.node is node:
            asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, self._on_gone, rank)

    def lose(self, host: str, numbers: list[int], reason: str, noticed: int) -> None:
        """The connections of these ranks, which are on a host, are lost for good, for one reason."""
        self._lost_hosts.append((noticed, host))
        if not self.killed and not self.all_done:
            self.kill(reason, after=GRACE_SECONDS)
        for number in numbers:
            rank = self.known[number]
            if rank.connected and not rank.done:
                self._disconnect(rank, noticed)
            self._on_gone(rank, reason)

    def on_agents_lost(self, hosts: Collection[str]) -> None:
        """The agents of these hosts are lost: no agent reports any more that processes there have ended, and no rank
        that has lost its connection comes back through them."""
        for rank in list(self.known.values()) if self._gone < len(self.known) else ():
            if not rank.connected and rank.host in hosts:
                self._on_gone(rank)

    def _disconnect(self, rank: Rank, noticed: int) -> None:
        rank.connected = False
        self._to_all = None
        self._failures[rank] = _Failure(None, noticed)
        rank.channel.close()
        self._tell_away(rank.number)

    def kill(self, reason: str, code: int = 1, after: float = 0.0) -> None:
        """End all ranks with this exit code, after that many seconds."""
        self.killed = reason
        asyncio.get_running_loop().call_later(after, self._kill, code)

    def _kill(self, code: int) -> None:
        reason = self.killed  # one rank prints the reason; the others just end
        for number, rank in sorted(self.known.items()):
            if rank.connected:
                self.send((number,), protocol.join("KILL", code, reason))
                reason = ""
        if 0 not in self.known and self._last_words >= 0:
            with contextlib.suppress(OSError):  # it has just connected, and gets KILL, or has ended
                os.write(self._last_words, os.fsencode(self.killed))
        asyncio.get_running_loop().call_later(END_SECONDS, self._give_up)

    def _give_up(self) -> None:
        log.error(
            "ranks that were told to end are still there: %s",
            [rank.number for rank in self.known.values() if rank.connected],
        )
        for rank in list(self.known.values()):
            self._on_gone(rank)
        self.over.set()

    def _watch(self, pid: int, ended: Callable[[int], None]) -> None:
        """Call ``ended`` after the end of a process, with the time when it was noticed."""
        processes.watch(pid, lambda: asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, ended, now()))

    def _on_rank0_gone(self, _: int) -> None:
        self._rank0_gone = True
        self._look_whether_over()
        if not self.over.is_set() and self.leaving:
            asyncio.get_running_loop().call_later(LATE_SECONDS, self._look_whether_over, True)

    def _on_gone(self, rank: Rank, why: str = "", noticed: int | None = None) -> None:
        if rank.gone or self.known[rank.number] is not rank:  # it is back
            return
        rank.gone = True
        self._gone += 1
        rank.connected = False
        self._to_all = None
        rank.channel.close()
        why = why or f"rank {rank.number} died"
        self._tell_gone(rank.number, rank.done, why)
        if not rank.done:
            log.info("rank %d died", rank.number)
            if rank not in self._failures:
                self._failures[rank] = _Failure(None, now() if noticed is None else noticed)
            if not self.killed:
                self.kill(why, after=GRACE_SECONDS)
        self._look_whether_over()

    def _look_whether_over(self, patient: bool = False) -> None:
        if self._gone == len(self.known) and (
            self.all_came or (self._rank0_gone and (patient or self.size == 1)) or (self.killed and self.known)
        ):
            self.over.set()
