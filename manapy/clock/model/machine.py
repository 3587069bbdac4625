"""Machine: the ranks of an abstract MPI program with their threads, and the network between them. This module has the
operations of the program, one step at a time. The simulator (model.py) decides which thread makes a step, and handles
the reports.

Invariants
 1. A step never waits: a thread that can't continue reports this, and tries again when its rank is woken.
 2. A thread whose clock has stopped it starts no MPI call. But it continues a call that it is inside of (a collective,
    a flush) to its end.
 3. A collective reaches the network only after the clock has let it pass. A collective that fails on its arguments
    never reaches it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .._state import WORLD, ClockPhase, Decision, Mode, State, Thread, child_identity, ggid, group_identity
from ..messages import Retract
from ..rank import RankClock
from .network import ANY, Collective, Network, Request
from .programs import (
    AwaitFlag,
    Coll,
    Compute,
    CreateGroup,
    Disable,
    Drop,
    Enable,
    Fail,
    Finalize,
    Flush,
    Free,
    Icoll,
    Lock,
    Op,
    Parallel,
    Probe,
    Program,
    Recv,
    Send,
    SetFlag,
    Split,
    Unlock,
    Wait,
    WaitAny,
)

THREAD = 1_000_000  # receives are numbered thread * THREAD + n


@dataclass(frozen=True, slots=True, order=True)
class Received:
    """The message of a receive; ``number`` counts the rank's receives in the order of their starts."""

    number: int
    wild: bool
    source: int
    tag: int
    value: int


@dataclass(slots=True)
class _Comm:
    """A communicator on one rank. ``key``: its row in the clock (the identity, unless the test keys by group)."""

    identity: int
    key: int
    members: tuple[int, ...]
    calls: int = 0


@dataclass(slots=True)
class _Rank:
    """State that the threads of a rank share."""

    clock: RankClock
    comms: dict[str, _Comm]
    threads: list[int] = field(default_factory=list)  # indices into Machine.threads
    groups: dict[tuple[int, int], int] = field(default_factory=dict)
    # keys and members of rows whose communicator was freed here
    left: dict[int, tuple[int, ...]] = field(default_factory=dict)
    woken: int = 0  # clock.wake at the last check


@dataclass(slots=True)
class _Thread:
    """A thread of the program; ``number`` is its number within its rank."""

    rank: int
    number: int
    ops: Sequence[Op]
    pc: int = 0
    left: int = 0  # remaining compute steps
    fails: int = 0  # failed tests of the current wait
    inside: Collective | None = None  # blocking collective entered
    flushing: bool = False  # in the lower half, in a call that it can't leave
    failing: bool = False  # inside a collective with wrong arguments
    parked: int = -1  # clock.wake when it parked; -1: it hasn't parked
    waiting: Request | None = None  # of a blocking Send or Recv
    joins: list[int] = field(default_factory=list)  # threads started by the Parallel that it is in
    requests: dict[str, Request] = field(default_factory=dict)
    posted: int = 0  # receives started
    log: list[Received] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.pc == len(self.ops)


class Machine:
    """One program and the clocks it runs on. It calls ``ready(thread)`` and ``arriving(channel)`` for threads and
    channels that may be able to act. ``patience``, ``promises`` and ``broken`` are as for the Simulator, whose random
    numbers it shares."""

    def __init__(
        self,
        program: Program,
        clock: type[RankClock],
        rng: random.Random,
        ready: Callable[[int], None],
        arriving: Callable[[tuple[int, int]], None],
        *,
        patience: int,
        promises: float,
        broken: str,
    ) -> None:
        size = len(program)
        self.rng = rng
        self.patience = patience
        self.promises = promises
        self.broken = broken
        self._ready = ready
        self.network = Network(size, self.wake, arriving)
        world, group = tuple(range(size)), ggid(range(size))
        self.ranks = [
            _Rank(clock(r, world, world_ggid=group), {"world": _Comm(WORLD, WORLD, world)}, [r]) for r in world
        ]
        self.threads = [_Thread(r, 0, [*ops, Finalize()]) for r, ops in enumerate(program)]
        self._groups = {world: group}
        self.flags: set[str] = set()
        self.locks: dict[tuple[int, int], dict[int, bool]] = {}  # (window, target): holders, and whether they share
        for r in world:
            ready(r)

    def act(self, i: int) -> int:
        """Make one step of a thread; returns its rank."""
        t = self.threads[i]
        if self._step(t):
            self._ready(i)
        rank = self.ranks[t.rank]
        if rank.clock.wake != rank.woken:
            self.wake(t.rank)
        return t.rank

    def wake(self, r: int) -> None:
        """All threads of a rank try again."""
        rank = self.ranks[r]
        rank.woken = rank.clock.wake
        for i in rank.threads:
            if not self.threads[i].ended:
                self._ready(i)

    def received(self) -> list[list[Received]]:
        """Return the messages that each rank has received, one thread after another."""
        return [[x for i in rank.threads for x in self.threads[i].log] for rank in self.ranks]

    # ---- each function makes one step and returns whether the thread can continue at once

    def _step(self, t: _Thread) -> bool:
        if t.ended:
            return False
        op, clock = t.ops[t.pc], self.ranks[t.rank].clock
        if isinstance(op, Compute):
            t.left = (t.left or op.steps) - 1
            return self._next(t) if t.left <= 0 else True
        if isinstance(op, (SetFlag, AwaitFlag)):
            return self._flag(t, op)
        if isinstance(op, Parallel):
            return self._fork(t, op)
        if isinstance(op, Disable):
            return clock.disable() and self._next(t)
        if isinstance(op, Enable):
            clock.enable()
            return self._next(t)
        if clock.stopped and t.inside is None and not t.flushing and not t.failing:
            return False
        if t.failing:
            return self._fail(t)
        if isinstance(op, (Coll, Icoll, Fail, Split, CreateGroup, Finalize)):
            return self._collective(t, op) if t.inside is None else self._leave(t, op)
        if isinstance(op, (Free, Drop)):
            return self._free(t, op)
        if isinstance(op, Lock):
            return self._lock(t, op)
        if isinstance(op, Unlock):
            del self.locks[self.ranks[t.rank].comms[op.win].identity, op.target][t.rank]
            for member in self.ranks[t.rank].comms[op.win].members:
                self.wake(member)
            return self._next(t)
        if isinstance(op, Flush):
            return self._flush_target(t, op)
        if isinstance(op, (Send, Recv)):
            return self._message(t, op)
        if isinstance(op, Probe):
            request = Request(t.rank, "recv", self.ranks[t.rank].comms[op.comm].identity, op.source, op.tag)
            return self._go_on(t) if self.network.probe(request) else self._blocked(t, [request], Mode.ALL, op.poll)
        return self._wait(t, op)

    def _next(self, t: _Thread) -> bool:
        t.pc += 1
        t.left = t.fails = 0
        if t.ended:  # another thread may wait for its end
            self.wake(t.rank)
        return not t.ended

    def _go_on(self, t: _Thread) -> bool:
        self.ranks[t.rank].clock.unblock(thread=t.number)
        return self._next(t)

    def _flag(self, t: _Thread, op: SetFlag | AwaitFlag) -> bool:
        if isinstance(op, SetFlag):
            self.flags.add(op.name)
            for i, other in enumerate(self.threads):
                if not other.ended and other.ops[other.pc] == AwaitFlag(op.name):
                    self._ready(i)
        elif op.name not in self.flags:
            return False
        return self._next(t)

    def _fork(self, t: _Thread, op: Parallel) -> bool:
        """Insert the first body before the following operations, with the Parallel after it as the join."""
        if not t.joins:
            rank = self.ranks[t.rank]
            for body in op.bodies[1:]:
                t.joins.append(len(self.threads))
                self.threads.append(_Thread(t.rank, len(rank.threads), list(body)))
                rank.threads.append(t.joins[-1])
            t.ops = [*t.ops[: t.pc], *op.bodies[0], *t.ops[t.pc :]]
            self.wake(t.rank)
            return True
        if not all(self.threads[i].ended for i in t.joins):
            return False
        t.joins = []
        return self._next(t)

    def _collective(self, t: _Thread, op: Coll | Icoll | Fail | Split | CreateGroup | Finalize) -> bool:
        rank = self.ranks[t.rank]
        if t.parked == rank.clock.wake:
            return False
        name = op.parent if isinstance(op, Split) else "world" if isinstance(op, Finalize) else op.comm
        if isinstance(op, CreateGroup) and name not in rank.comms:
            group = self._ggid(op.members)
            count = rank.groups[group, op.tag] = rank.groups.get((group, op.tag), 0) + 1
            self._add(rank, op.comm, group_identity(group, op.tag, count), op.members, handle=0)
        comm = rank.comms[name]
        if self.promises and t.parked < 0 and self.rng.random() < self.promises:
            rank.clock.promise(comm.key)
        if rank.clock.enter_collective(comm.key, blocking=not isinstance(op, Icoll), thread=t.number) is Decision.PARK:
            t.parked = rank.clock.wake
            return False
        t.parked = -1
        if isinstance(op, Fail):
            t.failing = True
            return True
        comm.calls += 1
        collective = self.network.start(comm.identity, comm.calls, t.rank, len(comm.members))
        if isinstance(op, Icoll):
            t.requests[op.req] = Request(t.rank, "coll", comm.identity, collective=collective, loose=op.loose)
            return self._next(t)
        t.inside = collective
        collective.left[t.rank] = frozenset(rank.left)
        if isinstance(op, Finalize):
            rank.clock.finish()
        return True

    def _leave(self, t: _Thread, op: Coll | Icoll | Fail | Split | CreateGroup | Finalize) -> bool:
        assert t.inside is not None
        if not t.inside.complete and not (isinstance(op, Coll) and op.loose):
            return False
        rank = self.ranks[t.rank]
        if isinstance(op, Split):
            self._agree(rank, t.inside)
        t.inside = None
        if isinstance(op, Split) and t.rank in op.members:
            parent = rank.comms[op.parent]
            self._add(rank, op.comm, child_identity(parent.identity, parent.calls, min(op.members)), op.members)
        elif isinstance(op, CreateGroup):
            rank.clock.add_row(rank.comms[op.comm].key, op.members, handle=1)
        if not isinstance(op, Finalize):
            rank.clock.exit_collective(thread=t.number)
        return self._next(t)

    def _agree(self, rank: _Rank, constructor: Collective) -> None:
        """Remove rows that all members had left when they arrived. (C: in some constructors.)"""
        for key, members in list(rank.left.items()):
            if all(key in constructor.left.get(member, ()) for member in members):
                del rank.left[key]
                rank.clock.remove_row(key)

    def _fail(self, t: _Thread) -> bool:
        """End a call that has failed on its arguments. The network and the other members do not see it."""
        clock = self.ranks[t.rank].clock
        t.failing = False
        if self.broken != "counted error":
            clock.fail_collective(thread=t.number)
        if self.broken == "silent error":
            clock.outbox = [m for m in clock.outbox if not isinstance(m, Retract)]
        clock.exit_collective(thread=t.number)
        return self._next(t)

    def _free(self, t: _Thread, op: Free | Drop) -> bool:
        rank = self.ranks[t.rank]
        comm = rank.comms.pop(op.comm)
        if self.broken == "early drop":
            rank.clock.remove_row(comm.key)
        elif self.broken != "by group":
            rank.left[comm.key] = comm.members
        return self._next(t)

    def _add(self, rank: _Rank, name: str, identity: int, members: tuple[int, ...], *, handle: int = 1) -> None:
        group = self._ggid(members)
        key = group if self.broken == "by group" else identity
        rank.comms[name] = _Comm(identity, key, members)
        rank.clock.add_row(key, members, handle=handle, name=name, group=group)

    def _ggid(self, members: tuple[int, ...]) -> int:
        group = self._groups.get(members)
        if group is None:
            group = self._groups[members] = ggid(members)
        return group

    def _message(self, t: _Thread, op: Send | Recv) -> bool:
        if t.waiting is None:
            comm = self.ranks[t.rank].comms[op.comm].identity
            if isinstance(op, Send):
                request = self.network.send(t.rank, op.dest, comm, op.tag, op.value, sync=op.sync)
            else:
                request = self.network.receive(t.rank, op.source, comm, op.tag, t.number * THREAD + t.posted)
                t.posted += 1
            if op.req:
                t.requests[op.req] = request
                return self._next(t)
            t.waiting = request
        if not t.waiting.done:
            return self._blocked(t, [t.waiting], Mode.ALL, poll=False)
        self._receive(t, t.waiting)
        t.waiting = None
        return self._go_on(t)

    def _wait(self, t: _Thread, op: Wait | WaitAny) -> bool:
        reqs = [t.requests[q] for q in op.reqs if q in t.requests]
        if isinstance(op, WaitAny):
            done = next((q for q in op.reqs if q in t.requests and t.requests[q].done), None)
            if done is None and reqs:
                return self._blocked(t, reqs, Mode.ANY, op.poll)
            if done is not None:
                self._receive(t, t.requests.pop(done))
        else:
            if not all(q.done for q in reqs):
                return self._blocked(t, [q for q in reqs if not q.done], Mode.ALL, op.poll)
            for q in op.reqs:
                if q in t.requests:
                    self._receive(t, t.requests.pop(q))
        return self._go_on(t)

    def _receive(self, t: _Thread, request: Request) -> None:
        if request.kind == "recv" and request.value is not None:
            t.log.append(Received(request.number, request.wild, request.peer, request.tag, request.value))

    # ---- windows

    def _lock(self, t: _Thread, op: Lock) -> bool:
        """The holder may be any member: only the library of the target knows it."""
        comm = self.ranks[t.rank].comms[op.win]
        holders = self.locks.setdefault((comm.identity, op.target), {})
        if holders and not (op.shared and all(holders.values())):
            return self._report_blocked(t, (), Mode.ANY, comm.key, poll=False)
        holders[t.rank] = op.shared
        return self._go_on(t)

    def _flush_target(self, t: _Thread, op: Flush) -> bool:
        """In the lower half, without a way to leave. Frozen ranks continue to make progress until all are frozen."""
        rank, target = self.ranks[t.rank], self.ranks[op.target]
        if not t.flushing:
            t.flushing = True
            if self.broken == "flush inside":
                rank.clock._become(t.number, Thread(State.IN_COLLECTIVE, WORLD))
            else:
                rank.clock.enter_lower()
            return True
        if target.clock.stopped and self.broken == "deaf":
            return True
        t.flushing = False
        if self.broken == "flush inside":
            rank.clock.exit_collective(thread=t.number)
        else:
            rank.clock.leave_lower()
        return self._next(t)

    # ---- waiting

    def _blocked(self, t: _Thread, reqs: list[Request], mode: Mode, poll: bool) -> bool:
        """Not complete: report the ranks that the thread waits for.

        Waiting for all: first the named peers, then wildcards (one at a time) when nothing else is missing. A
        nonblocking collective needs no help except the targets. So it asks nobody, and if it is one of several in a
        wait for any, nobody needs to be asked.
        """
        wild = [q for q in reqs if q.kind == "recv" and q.peer == ANY]
        named = tuple(sorted({q.peer for q in reqs if q.kind != "coll" and q.peer != ANY}))
        if mode is Mode.ANY and any(q.kind == "coll" for q in reqs):
            return self._report_blocked(t, (), mode, 0, poll=poll)
        if wild and (mode is Mode.ANY or not named):
            cid = next((c.key for c in self.ranks[t.rank].comms.values() if c.identity == wild[0].comm), WORLD)
            same = mode is Mode.ALL or all(q.comm == wild[0].comm for q in reqs)
            return self._report_blocked(t, (), Mode.ANY, cid if same else WORLD, poll=poll)
        return self._report_blocked(t, named, mode, 0, poll=poll)

    def _report_blocked(self, t: _Thread, peers: tuple[int, ...], mode: Mode, cid: int, *, poll: bool) -> bool:
        """Only while a checkpoint is pending, and after some failed tests (patience)."""
        clock = self.ranks[t.rank].clock
        if clock.phase is ClockPhase.NONE:
            return poll
        t.fails += 1
        if t.fails <= self.patience:
            return True
        clock.block(peers, mode, cid, thread=t.number)
        return poll
