"""Simulator: abstract MPI programs on RankClock and Controller, under a seeded random scheduler.

Actors are the threads of every rank, both directions of every control connection, and every nonempty network channel; one step
of one actor at a time, in any order the seed gives. Nothing has a duration, so time-outs cannot hide in here: a job that can't go
on is a Deadlock, one that goes on for ever is a Livelock.

Invariants (checked at every safe state; Violation says which)
 1. Every rank is frozen, none is inside a collective, and SEQ is equal on all members of every communicator.
 2. Every collective that somebody started has been started by all members (else step 6 of the design spins for ever).
 3. No control message is on its way.
 4. No thread has forbidden checkpoints.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from . import messages
from ._network import ANY, Collective, Network, Request
from ._state import WORLD, Mode, Phase, State, Thread, Verdict, child_identity, ggid, group_identity
from .controller import Controller, Counters, RankView
from .messages import Done, FromRank, Frozen, NotFrozen, Raise, Retract, Rows, StateReport, ToRank
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
from .rank import RankClock

__all__ = ["Checkpoint", "Deadlock", "Livelock", "Received", "Simulator", "Violation"]


class Deadlock(Exception):
    """Nobody can go on."""


class Livelock(Exception):
    """More steps than any run of this size needs."""


class Violation(Exception):
    """A safe state that isn't safe."""


# ---- the machine

T = TypeVar("T")
THREAD = 1_000_000  # receives are numbered thread * THREAD + n


class _Pool(Generic[T]):
    """Actors that may be able to act; O(1) add and random removal."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._known: set[T] = set()

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: T) -> None:
        if item not in self._known:
            self._known.add(item)
            self._items.append(item)

    def take(self, rng: random.Random) -> T:
        i = int(rng.random() * len(self._items))
        self._items[i], self._items[-1] = self._items[-1], self._items[i]
        item = self._items.pop()
        self._known.discard(item)
        return item


@dataclass(frozen=True, slots=True, order=True)
class Received:
    """What a receive brought; ``number`` counts the rank's receives in the order of their starts."""

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
    dropped: list[int] = field(default_factory=list)  # keys of rows that go when it is freed


@dataclass(slots=True)
class _Rank:
    """What the threads of a rank share."""

    clock: RankClock
    comms: dict[str, _Comm]
    threads: list[int] = field(default_factory=list)  # indices into Simulator.threads
    groups: dict[tuple[int, int], int] = field(default_factory=dict)
    posted: int = 0  # receives started
    woken: int = 0  # clock.wake as of the last look
    depth: int = 0  # control messages in the longest causal chain up to here


@dataclass(slots=True)
class _Thread:
    """A thread of the program; ``number`` within its rank."""

    rank: int
    number: int
    ops: Sequence[Op]
    pc: int = 0
    left: int = 0  # compute steps to go
    fails: int = 0  # tests of the current wait that failed
    inside: Collective | None = None  # blocking collective entered
    flushing: bool = False  # in the lower half, in a call that can't be left
    failing: bool = False  # inside a collective with wrong arguments
    parked: int = -1  # clock.wake when it parked; -1: it hasn't
    waiting: Request | None = None  # of a blocking Send or Recv
    joins: list[int] = field(default_factory=list)  # threads started by the Parallel it is in
    requests: dict[str, Request] = field(default_factory=dict)
    posted: int = 0  # receives started
    log: list[Received] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.pc == len(self.ops)


@dataclass(slots=True)
class Checkpoint:
    """What one request cost. ``rounds``: half the longest causal chain of control messages."""

    converged: bool
    reason: str
    steps: int
    rounds: int
    drained: int
    counters: Counters


class Simulator:
    """Runs one program once.

    ``requests``: steps at which a checkpoint is asked for (put off while one is pending). ``patience``: failed tests before a
    rank says that it's blocked. ``wire``: send every control message as text. ``stall``: when nobody can go on, use the
    coordinator's stall time-out (only for dependencies outside MPI; without it such a job is a Deadlock). ``lazy``: the
    control thread is an actor of its own, which reports what has changed since its last turn (as the C one does).
    ``promises``: how likely that one sees a call which isn't decided yet.
    ``broken`` names a part of the protocol to take out, for the tests of the tests:

        by group       one SEQ for congruent communicators (the paper's clock)
        not transitive a needed rank that is blocked asks nobody
        one state      a rank reports one thread only, as if it had no others
        any row        a rank below target lets all its threads go
        deaf           frozen ranks make no progress for others
        flush inside   a flush is reported as a collective that isn't counted is
        early drop     a persistent collective's row goes with its request
        counted error  a collective that fails on its arguments stays counted
        silent error   it is taken back, but nobody is told
        unrooted       who forbids checkpoints at its target isn't needed
    """

    def __init__(
        self,
        program: Program,
        *,
        seed: int = 0,
        requests: Sequence[int] = (),
        patience: int = 2,
        wire: bool = False,
        broken: str = "",
        stall: bool = False,
        lazy: bool = False,
        promises: float = 0.0,
        max_steps: int = 0,
    ) -> None:
        size = len(program)
        self.rng = random.Random(seed)
        self.weights = [self.rng.choice((0.05, 1.0, 5.0)) for _ in range(5)]
        self.patience = patience
        self.wire = wire
        self.broken = broken
        self.stall = stall
        self.lazy = lazy
        self.promises = promises
        self.max_steps = max_steps or 20_000 + 400 * sum(_length(p) + 4 for p in program) * (2 + len(requests))
        self.controller = _Unrooted(size) if broken == "unrooted" else Controller(size, transitive=broken != "not transitive")
        self.network = Network(size, self._wake, lambda c: self._arriving.add(c))
        self._ready: _Pool[int] = _Pool()
        self._arriving: _Pool[tuple[int, int]] = _Pool()
        self._reporting: _Pool[int] = _Pool()
        self._rising: _Pool[int] = _Pool()
        self._falling: _Pool[int] = _Pool()
        self.up: list[deque[tuple[int, FromRank]]] = [deque() for _ in range(size)]
        self.down: list[deque[tuple[int, ToRank]]] = [deque() for _ in range(size)]
        world, group = tuple(range(size)), ggid(range(size))
        kind = _BROKEN.get(broken, RankClock)
        self.ranks = [_Rank(kind(r, world, world_ggid=group), {"world": _Comm(WORLD, WORLD, world)}, [r]) for r in world]
        self.threads = [_Thread(r, 0, [*ops, Finalize()]) for r, ops in enumerate(program)]
        self._groups = {world: group}
        for r in world:
            self._ready.add(r)
        self._requests = deque(sorted(requests))
        self._depth = 0
        self._began = 0
        self.flags: set[str] = set()
        self.locks: dict[tuple[int, int], dict[int, bool]] = {}  # (window, target): holders, and whether they share
        self.steps = 0
        self.checkpoints: list[Checkpoint] = []

    def run(self, *, until_checkpoint: bool = False) -> list[list[Received]]:
        """Run to the end (or to that of the first checkpoint); returns what each rank has received, thread after thread. Raises
        Deadlock, Livelock or Violation."""
        pools: list[_Pool[int] | _Pool[tuple[int, int]]] = [
            self._ready, self._arriving, self._reporting, self._rising, self._falling
        ]  # fmt: skip
        while True:
            if self._requests and self.steps >= self._requests[0] and not self.controller.pending:
                self._requests.popleft()
                self._request()
            live = [(p, w) for p, w in zip(pools, self.weights, strict=True) if len(p)]
            if not live:
                if all(t.ended for t in self.threads):
                    return self._logs()
                self._stuck()
                continue
            pool = live[0][0] if len(live) == 1 else self.rng.choices([p for p, _ in live], [w for _, w in live])[0]
            self._step(pool)
            self.steps += 1
            if until_checkpoint and self.checkpoints:
                return self._logs()
            if self.steps > self.max_steps:
                raise Livelock(self._describe())

    def _logs(self) -> list[list[Received]]:
        return [[x for i in rank.threads for x in self.threads[i].log] for rank in self.ranks]

    def _step(self, pool: _Pool[int] | _Pool[tuple[int, int]]) -> None:
        if pool is self._ready:
            i = self._ready.take(self.rng)
            thread = self.threads[i]
            if self._advance(thread):
                self._ready.add(i)
            if self.ranks[thread.rank].clock.wake != self.ranks[thread.rank].woken:
                self._wake(thread.rank)
            if not self.lazy:
                self._flush(thread.rank)
            elif self.ranks[thread.rank].clock.outbox:
                self._reporting.add(thread.rank)
        elif pool is self._reporting:
            self._flush(self._reporting.take(self.rng))
        elif pool is self._arriving:
            channel = self._arriving.take(self.rng)
            if self.network.deliver(channel):
                self._arriving.add(channel)
        elif pool is self._rising:
            self._rise(self._rising.take(self.rng))
        else:
            r = self._falling.take(self.rng)
            depth, msg = self.down[r].popleft()
            if self.down[r]:
                self._falling.add(r)
            rank = self.ranks[r]
            rank.depth = max(rank.depth, depth)
            rank.clock.receive(msg)
            self._wake(r)
            self._flush(r)

    def _wake(self, r: int) -> None:
        """All threads of a rank look again."""
        rank = self.ranks[r]
        rank.woken = rank.clock.wake
        for i in rank.threads:
            if not self.threads[i].ended:
                self._ready.add(i)

    # ---- control connections and the coordinator

    def _request(self) -> None:
        if self.controller.finishing:
            self.checkpoints.append(Checkpoint(False, "the job is finishing", 0, 0, 0, Counters()))
            return
        self._depth, self._began = 0, self.steps
        for rank in self.ranks:
            rank.depth = 0
        self._lower(self.controller.begin(self.controller.epoch + 1))

    def _flush(self, r: int) -> None:
        outbox = self.ranks[r].clock.outbox
        if outbox:
            depth = self.ranks[r].depth + 1
            for m in _coalesce(outbox) if self.lazy else outbox:
                self.up[r].append((depth, _through_wire(m) if self.wire else m))  # type: ignore[arg-type]
            outbox.clear()
            self._rising.add(r)

    def _lower(self, out: Sequence[tuple[int, ToRank]]) -> None:
        for r, msg in out:
            self.down[r].append((self._depth + 1, _through_wire(msg) if self.wire else msg))  # type: ignore[arg-type]
            self._falling.add(r)

    def _rise(self, r: int) -> None:
        depth, msg = self.up[r].popleft()
        if self.up[r]:
            self._rising.add(r)
        self._depth = max(self._depth, depth)
        was_pending = self.controller.pending
        self._lower(self.controller.on_message(r, msg))
        if self.controller.converged:
            self._check_safe()
            self._record(True, "", self.network.drain())
            self._lower(self.controller.resume())
        elif was_pending and not self.controller.pending:
            if not isinstance(msg, Done):
                raise Violation(self.controller.failure)
            self._record(False, self.controller.failure or "", 0)

    def _record(self, converged: bool, reason: str, drained: int) -> None:
        counters = self.controller.counters
        self.checkpoints.append(
            Checkpoint(converged, reason, self.steps - self._began, (self._depth + 1) // 2, drained, counters)
        )

    def _check_safe(self) -> None:
        if self.network.collectives:
            (comm, number), c = next(iter(self.network.collectives.items()))
            raise Violation(f"collective {number} on {comm:016x} was started only by {c.started}")
        seqs: dict[int, int] = {}
        for t in self.threads:
            if t.inside is not None or t.flushing or t.failing:
                raise Violation(f"rank {t.rank}: thread {t.number} is inside {t.ops[t.pc]}")
        for r, rank in enumerate(self.ranks):
            if rank.clock.disabled:
                raise Violation(f"rank {r} forbids checkpoints")
            if rank.clock.phase is not Phase.FROZEN or rank.clock.below:
                raise Violation(f"rank {r}: {rank.clock.phase}, {rank.clock.threads}")
            if self.up[r] or self.down[r]:
                raise Violation(f"rank {r}: control messages on their way")
            for row in rank.clock.rows.values():
                if seqs.setdefault(row.cid, row.seq) != row.seq:
                    raise Violation(f"rank {r}: SEQ {row.seq} on {row.cid:016x}, not {seqs[row.cid]}")

    def _stuck(self) -> None:
        out = self.controller.stall() if self.stall else []
        if not out:
            raise Deadlock(self._describe())
        self._lower(out)

    def _describe(self) -> str:
        at = []
        for t in self.threads:
            if not t.ended:
                clock = self.ranks[t.rank].clock
                at.append(f"rank {t.rank} thread {t.number} at {t.ops[t.pc]}: {clock.phase.name} {clock.state(t.number).name}")
        return "\n".join([f"after {self.steps} steps, stage {self.controller.stage}", *at[:20], *self.controller.status()[:20]])

    # ---- threads: each function does one step and says whether the thread can go on at once

    def _advance(self, t: _Thread) -> bool:
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
        if isinstance(op, (Coll, Icoll, Fail, Split, CreateGroup, Free, Finalize)):
            return self._collective(t, op) if t.inside is None else self._leave(t, op)
        if isinstance(op, Drop):
            return self._drop(t, op)
        if isinstance(op, Lock):
            return self._lock(t, op)
        if isinstance(op, Unlock):
            del self.locks[self.ranks[t.rank].comms[op.win].identity, op.target][t.rank]
            for member in self.ranks[t.rank].comms[op.win].members:
                self._wake(member)
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
        if t.ended:  # somebody may join it
            self._wake(t.rank)
        return not t.ended

    def _go_on(self, t: _Thread) -> bool:
        self.ranks[t.rank].clock.unblock(thread=t.number)
        return self._next(t)

    def _flag(self, t: _Thread, op: SetFlag | AwaitFlag) -> bool:
        if isinstance(op, SetFlag):
            self.flags.add(op.name)
            for i, other in enumerate(self.threads):
                if not other.ended and other.ops[other.pc] == AwaitFlag(op.name):
                    self._ready.add(i)
        elif op.name not in self.flags:
            return False
        return self._next(t)

    def _fork(self, t: _Thread, op: Parallel) -> bool:
        """The first body is put in front of what follows, with the Parallel behind it as the join."""
        if not t.joins:
            rank = self.ranks[t.rank]
            for body in op.bodies[1:]:
                t.joins.append(len(self.threads))
                self.threads.append(_Thread(t.rank, len(rank.threads), list(body)))
                rank.threads.append(t.joins[-1])
            t.ops = [*t.ops[: t.pc], *op.bodies[0], *t.ops[t.pc :]]
            self._wake(t.rank)
            return True
        if not all(self.threads[i].ended for i in t.joins):
            return False
        t.joins = []
        return self._next(t)

    def _collective(self, t: _Thread, op: Coll | Icoll | Fail | Split | CreateGroup | Free | Finalize) -> bool:
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
        if rank.clock.enter_collective(comm.key, blocking=not isinstance(op, Icoll), thread=t.number) is Verdict.PARK:
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
        if isinstance(op, Finalize):
            rank.clock.finish()
        return True

    def _leave(self, t: _Thread, op: Coll | Icoll | Split | CreateGroup | Free | Finalize) -> bool:
        if not (t.inside is not None and t.inside.complete) and not (isinstance(op, Coll) and op.loose):
            return False
        rank = self.ranks[t.rank]
        t.inside = None
        if isinstance(op, Split) and t.rank in op.members:
            parent = rank.comms[op.parent]
            self._add(rank, op.comm, child_identity(parent.identity, parent.calls, min(op.members)), op.members)
        elif isinstance(op, CreateGroup):
            rank.clock.add_row(rank.comms[op.comm].key, op.members, handle=1)
        if not isinstance(op, Finalize):
            rank.clock.exit_collective(thread=t.number)
        if isinstance(op, Free):
            comm = rank.comms.pop(op.comm)
            if self.broken != "by group":
                for key in (comm.key, *comm.dropped):
                    rank.clock.remove_row(key)
        return self._next(t)

    def _fail(self, t: _Thread) -> bool:
        """To the network and the other members the call has not been made."""
        clock = self.ranks[t.rank].clock
        t.failing = False
        if self.broken != "counted error":
            clock.fail_collective(thread=t.number)
        if self.broken == "silent error":
            clock.outbox = [m for m in clock.outbox if not isinstance(m, Retract)]
        clock.exit_collective(thread=t.number)
        return self._next(t)

    def _drop(self, t: _Thread, op: Drop) -> bool:
        rank = self.ranks[t.rank]
        comm = rank.comms.pop(op.comm)
        if self.broken == "early drop":
            rank.clock.remove_row(comm.key)
        elif self.broken != "by group":
            rank.comms[op.parent].dropped += [comm.key, *comm.dropped]
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
        """The holder may be any member: nobody but the library of the target knows."""
        comm = self.ranks[t.rank].comms[op.win]
        holders = self.locks.setdefault((comm.identity, op.target), {})
        if holders and not (op.shared and all(holders.values())):
            return self._report_blocked(t, (), Mode.ANY, comm.key, poll=False)
        holders[t.rank] = op.shared
        return self._go_on(t)

    def _flush_target(self, t: _Thread, op: Flush) -> bool:
        """In the lower half and not to be left; ranks that are frozen go on making progress until all are."""
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
        """Not complete: say whom the thread waits for.

        Waiting for all: the named peers first, wildcards (one at a time) when nothing else is missing. A nonblocking
        collective needs no help but the targets: it asks nobody, and in a wait for any of several nobody needs to be asked.
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
        """While a checkpoint is pending, after some patience."""
        clock = self.ranks[t.rank].clock
        if clock.phase is Phase.NONE:
            return poll
        t.fails += 1
        if t.fails <= self.patience:
            return True
        clock.block(peers, mode, cid, thread=t.number)
        return poll


def _coalesce(outbox: Sequence[FromRank]) -> list[FromRank]:
    """What a control thread sends that looks only now. Its answers to FREEZE it sends at once, each behind what came before it."""
    sent: list[FromRank] = []
    reports: list[FromRank] = []
    for m in outbox:
        if isinstance(m, (Frozen, NotFrozen)):
            sent += [*_summary(reports), m]
            reports = []
        else:
            reports.append(m)
    return sent + _summary(reports)


def _summary(outbox: Sequence[FromRank]) -> list[FromRank]:
    """Last state, highest SEQ, all under the last version."""
    version = max((m.version for m in outbox if not isinstance(m, Done)), default=0)
    rows = tuple(row for m in outbox if isinstance(m, Rows) for row in m.rows)
    raises = {m.cid: m.seq for m in outbox if isinstance(m, Raise)}
    states = [m for m in outbox if isinstance(m, StateReport)]
    epoch = next((m.epoch for m in outbox if not isinstance(m, Done)), 0)
    state = [replace(states[-1], version=version)] if states else []
    risen = [Raise(epoch, version, cid, seq) for cid, seq in raises.items()]
    sent: list[FromRank] = [Retract(epoch, version)] if any(isinstance(m, Retract) for m in outbox) else []
    sent += [Rows(epoch, version, rows)] if any(isinstance(m, Rows) for m in outbox) else []
    if state and any(t.state is State.IN_COLLECTIVE for t in state[0].threads):
        sent += [*state, *risen]
    else:
        sent += [*risen, *state]
    return sent + [m for m in outbox if isinstance(m, Done)]


def _length(ops: Sequence[Op]) -> int:
    return sum(sum(map(_length, op.bodies)) if isinstance(op, Parallel) else 1 for op in ops)


class _OneState(RankClock):
    """One thread stands for all: inside a collective before parked before blocked."""

    __slots__ = ()

    def _report_state(self) -> None:
        order = (State.IN_COLLECTIVE, State.PARKED, State.BLOCKED_P2P, State.FINISHED)
        first = sorted(self.threads.values(), key=lambda t: order.index(t.state))[:1]
        self.outbox.append(StateReport(self.epoch, self.version, self.applied, tuple(first)))


class _AnyRow(RankClock):
    """Below target somewhere: all threads go."""

    __slots__ = ()

    def _may_go(self, cid: int, thread: int) -> bool:
        return self.phase is Phase.NONE or (self.phase is Phase.RUN and (self.below > 0 or self.needed))


class _Unrooted(Controller):
    """A rank that forbids checkpoints is waited for, but its being held up is nobody's business."""

    def _on_state(self, rank: int, view: RankView, msg: StateReport) -> None:
        super()._on_state(rank, view, msg)
        self._needs.set_root(rank, view.below > 0)


_BROKEN: dict[str, type[RankClock]] = {"one state": _OneState, "any row": _AnyRow}


def _through_wire(msg: messages.Message) -> messages.Message:
    again = messages.from_wire(msg.to_wire())
    assert again == msg
    return again
