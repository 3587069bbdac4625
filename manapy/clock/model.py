"""Simulator: abstract MPI programs on RankClock and Controller, under a seeded random scheduler.

Actors are the rank threads, both directions of every control connection, and every nonempty network channel; one step of one
actor at a time, in any order the seed gives. Nothing has a duration, so time-outs cannot hide in here: a job that can't go
on is a Deadlock, one that goes on for ever is a Livelock.

Invariants (checked at every safe state; Violation says which)
 1. Every rank is frozen, none is inside a collective, and SEQ is equal on all members of every communicator.
 2. Every collective that somebody started has been started by all members (else step 6 of the design spins for ever).
 3. No control message is on its way.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from . import messages
from ._network import ANY, Collective, Network, Request
from ._state import WORLD, Mode, Phase, State, Verdict, child_identity, ggid, group_identity
from .controller import Controller, Counters
from .messages import Done, FromRank, Raise, Rows, StateReport, ToRank
from .programs import (
    AwaitFlag,
    Coll,
    Compute,
    CreateGroup,
    Finalize,
    Free,
    Icoll,
    Op,
    Program,
    Recv,
    Send,
    SetFlag,
    Split,
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


@dataclass(slots=True)
class _Thread:
    clock: RankClock
    ops: Sequence[Op]
    comms: dict[str, _Comm]
    pc: int = 0
    left: int = 0  # compute steps to go
    fails: int = 0  # tests of the current wait that failed
    inside: Collective | None = None  # blocking collective entered
    waiting: Request | None = None  # of a blocking Send or Recv
    new_identity: int = 0
    requests: dict[str, Request] = field(default_factory=dict)
    groups: dict[tuple[int, int], int] = field(default_factory=dict)
    posted: int = 0  # receives started
    log: list[Received] = field(default_factory=list)
    depth: int = 0  # control messages in the longest causal chain up to here


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
    ``by_group`` and ``transitive=False`` break the protocol on purpose, for the tests of the tests.
    """

    def __init__(
        self,
        program: Program,
        *,
        seed: int = 0,
        requests: Sequence[int] = (),
        patience: int = 2,
        wire: bool = False,
        by_group: bool = False,
        transitive: bool = True,
        stall: bool = False,
        lazy: bool = False,
        max_steps: int = 0,
    ) -> None:
        size = len(program)
        self.rng = random.Random(seed)
        self.weights = [self.rng.choice((0.05, 1.0, 5.0)) for _ in range(5)]
        self.patience = patience
        self.wire = wire
        self.by_group = by_group
        self.stall = stall
        self.lazy = lazy
        self.max_steps = max_steps or 20_000 + 400 * sum(len(p) + 4 for p in program) * (2 + len(requests))
        self.controller = Controller(size, transitive=transitive)
        self.network = Network(size, lambda r: self._ready.add(r), lambda c: self._arriving.add(c))
        self._ready: _Pool[int] = _Pool()
        self._arriving: _Pool[tuple[int, int]] = _Pool()
        self._reporting: _Pool[int] = _Pool()
        self._rising: _Pool[int] = _Pool()
        self._falling: _Pool[int] = _Pool()
        self.up: list[deque[tuple[int, FromRank]]] = [deque() for _ in range(size)]
        self.down: list[deque[tuple[int, ToRank]]] = [deque() for _ in range(size)]
        world, group = tuple(range(size)), ggid(range(size))
        self.threads = [
            _Thread(RankClock(r, world, world_ggid=group), [*ops, Finalize()], {"world": _Comm(WORLD, WORLD, world)})
            for r, ops in enumerate(program)
        ]
        self._groups = {world: group}
        for r in world:
            self._ready.add(r)
        self._requests = deque(sorted(requests))
        self._depth = 0
        self._began = 0
        self.flags: set[str] = set()
        self.steps = 0
        self.epochs = 0
        self.checkpoints: list[Checkpoint] = []

    def run(self) -> list[list[Received]]:
        """Run to the end; returns what each rank received. Raises Deadlock, Livelock or Violation."""
        pools: list[_Pool[int] | _Pool[tuple[int, int]]] = [
            self._ready, self._arriving, self._reporting, self._rising, self._falling
        ]  # fmt: skip
        while True:
            if self._requests and self.steps >= self._requests[0] and not self.controller.pending:
                self._requests.popleft()
                self._request()
            live = [(p, w) for p, w in zip(pools, self.weights, strict=True) if len(p)]
            if not live:
                if all(t.pc == len(t.ops) for t in self.threads):
                    return [t.log for t in self.threads]
                self._stuck()
                continue
            pool = live[0][0] if len(live) == 1 else self.rng.choices([p for p, _ in live], [w for _, w in live])[0]
            self._step(pool)
            self.steps += 1
            if self.steps > self.max_steps:
                raise Livelock(self._describe())

    def _step(self, pool: _Pool[int] | _Pool[tuple[int, int]]) -> None:
        if pool is self._ready:
            r = self._ready.take(self.rng)
            if self._advance(r, self.threads[r]):
                self._ready.add(r)
            if not self.lazy:
                self._flush(r)
            elif self.threads[r].clock.outbox:
                self._reporting.add(r)
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
            self.threads[r].depth = max(self.threads[r].depth, depth)
            self.threads[r].clock.receive(msg)
            self._ready.add(r)
            self._flush(r)

    # ---- control connections and the coordinator

    def _request(self) -> None:
        self.epochs += 1
        if self.controller.finishing:
            self.checkpoints.append(Checkpoint(False, "the job is finishing", 0, 0, 0, Counters()))
            return
        self._depth, self._began = 0, self.steps
        for t in self.threads:
            t.depth = 0
        self._lower(self.controller.begin(self.epochs))

    def _flush(self, r: int) -> None:
        outbox = self.threads[r].clock.outbox
        if outbox:
            depth = self.threads[r].depth + 1
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
        for r, t in enumerate(self.threads):
            if t.clock.phase is not Phase.FROZEN or t.inside is not None or t.clock.below:
                raise Violation(f"rank {r}: {t.clock.phase}, {t.clock.state}, inside {t.inside}")
            if self.up[r] or self.down[r]:
                raise Violation(f"rank {r}: control messages on their way")
            for row in t.clock.rows.values():
                if seqs.setdefault(row.cid, row.seq) != row.seq:
                    raise Violation(f"rank {r}: SEQ {row.seq} on {row.cid:016x}, not {seqs[row.cid]}")

    def _stuck(self) -> None:
        out = self.controller.stall() if self.stall else []
        if not out:
            raise Deadlock(self._describe())
        self._lower(out)

    def _describe(self) -> str:
        at = [f"rank {r} at {t.ops[t.pc]}: {t.clock.phase.name} {t.clock.state.name}" for r, t in enumerate(self.threads) if t.pc < len(t.ops)]
        return "\n".join([f"after {self.steps} steps, stage {self.controller.stage}", *at[:20], *self.controller.status()[:20]])

    # ---- rank threads: each function does one step and says whether the rank can go on at once

    def _advance(self, r: int, t: _Thread) -> bool:
        if t.pc == len(t.ops):
            return False
        op = t.ops[t.pc]
        if isinstance(op, Compute):
            t.left = (t.left or op.steps) - 1
            return self._next(t) if t.left <= 0 else True
        if isinstance(op, (SetFlag, AwaitFlag)):
            return self._flag(t, op)
        if t.clock.stopped and t.inside is None:
            return False
        if isinstance(op, (Coll, Icoll, Split, CreateGroup, Free, Finalize)):
            return self._collective(r, t, op) if t.inside is None else self._leave(r, t, op)
        if isinstance(op, (Send, Recv)):
            return self._message(r, t, op)
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
        t.clock.unblock()
        return self._next(t)

    def _next(self, t: _Thread) -> bool:
        t.pc += 1
        t.left = t.fails = 0
        return t.pc < len(t.ops)

    def _flag(self, t: _Thread, op: SetFlag | AwaitFlag) -> bool:
        if isinstance(op, SetFlag):
            self.flags.add(op.name)
            for r, other in enumerate(self.threads):
                if other.pc < len(other.ops) and other.ops[other.pc] == AwaitFlag(op.name):
                    self._ready.add(r)
        elif op.name not in self.flags:
            return False
        return self._next(t)

    def _collective(self, r: int, t: _Thread, op: Coll | Icoll | Split | CreateGroup | Free | Finalize) -> bool:
        name = op.parent if isinstance(op, Split) else "world" if isinstance(op, Finalize) else op.comm
        if isinstance(op, CreateGroup) and name not in t.comms:
            group = self._ggid(op.members)
            count = t.groups[group, op.tag] = t.groups.get((group, op.tag), 0) + 1
            self._add(t, op.comm, group_identity(group, op.tag, count), op.members, handle=0)
        comm = t.comms[name]
        if t.clock.enter_collective(comm.key, blocking=not isinstance(op, Icoll)) is Verdict.PARK:
            return False
        comm.calls += 1
        collective = self.network.start(comm.identity, comm.calls, r, len(comm.members))
        if isinstance(op, Icoll):
            t.requests[op.req] = Request(r, "coll", collective=collective)
            return self._next(t)
        t.inside = collective
        if isinstance(op, Finalize):
            t.clock.finish()
        return True

    def _leave(self, r: int, t: _Thread, op: Coll | Icoll | Split | CreateGroup | Free | Finalize) -> bool:
        if not (t.inside is not None and t.inside.complete) and not (isinstance(op, Coll) and op.loose):
            return False
        t.inside = None
        if isinstance(op, Split) and r in op.members:
            parent = t.comms[op.parent]
            self._add(t, op.comm, child_identity(parent.identity, parent.calls, min(op.members)), op.members)
        elif isinstance(op, CreateGroup):
            t.clock.add_row(t.comms[op.comm].key, op.members, handle=1)
        if not isinstance(op, Finalize):
            t.clock.exit_collective()
        if isinstance(op, Free):
            comm = t.comms.pop(op.comm)
            if not self.by_group:
                t.clock.remove_row(comm.key)
        return self._next(t)

    def _add(self, t: _Thread, name: str, identity: int, members: tuple[int, ...], *, handle: int = 1) -> None:
        group = self._ggid(members)
        key = group if self.by_group else identity
        t.comms[name] = _Comm(identity, key, members)
        t.clock.add_row(key, members, handle=handle, name=name, group=group)

    def _ggid(self, members: tuple[int, ...]) -> int:
        group = self._groups.get(members)
        if group is None:
            group = self._groups[members] = ggid(members)
        return group

    def _message(self, r: int, t: _Thread, op: Send | Recv) -> bool:
        if t.waiting is None:
            comm = t.comms[op.comm].identity
            if isinstance(op, Send):
                request = self.network.send(r, op.dest, comm, op.tag, op.value, sync=op.sync)
            else:
                request = self.network.receive(r, op.source, comm, op.tag, t.posted)
                t.posted += 1
            if op.req:
                t.requests[op.req] = request
                return self._next(t)
            t.waiting = request
        if not t.waiting.done:
            return self._blocked(t, [t.waiting], Mode.ALL, poll=False)
        self._receive(t, t.waiting)
        t.waiting = None
        t.clock.unblock()
        return self._next(t)

    def _receive(self, t: _Thread, request: Request) -> None:
        if request.kind == "recv" and request.value is not None:
            t.log.append(Received(request.number, request.wild, request.peer, request.tag, request.value))

    def _blocked(self, t: _Thread, reqs: list[Request], mode: Mode, poll: bool) -> bool:
        """Not complete. While a checkpoint is pending say whom the rank waits for, after some patience.

        Waiting for all: the named peers first, wildcards (one at a time) when nothing else is missing. A nonblocking
        collective needs no help but the targets: it asks nobody, and in a wait for any of several nobody needs to be asked.
        """
        if t.clock.phase is Phase.NONE:
            return poll
        t.fails += 1
        if t.fails <= self.patience:
            return True
        wild = [q for q in reqs if q.kind == "recv" and q.peer == ANY]
        named = tuple(sorted({q.peer for q in reqs if q.kind != "coll" and q.peer != ANY}))
        if mode is Mode.ANY and any(q.kind == "coll" for q in reqs):
            t.clock.block((), mode)
        elif wild and (mode is Mode.ANY or not named):
            cid = next(c.key for c in t.comms.values() if c.identity == wild[0].comm)
            same = mode is Mode.ALL or all(q.comm == wild[0].comm for q in reqs)
            t.clock.block((), Mode.ANY, cid if same else WORLD)
        elif named:
            t.clock.block(named, mode)
        else:
            t.clock.block((), mode)
        return poll


def _coalesce(outbox: Sequence[FromRank]) -> list[FromRank]:
    """What a control thread sends that looks only now: last state, highest SEQ, all under the present version."""
    version = max((m.version for m in outbox if not isinstance(m, Done)), default=0)
    rows = tuple(row for m in outbox if isinstance(m, Rows) for row in m.rows)
    raises = {m.cid: m.seq for m in outbox if isinstance(m, Raise)}
    states = [m for m in outbox if isinstance(m, StateReport)]
    epoch = next((m.epoch for m in outbox if not isinstance(m, Done)), 0)
    state = [replace(states[-1], version=version)] if states else []
    risen = [Raise(epoch, version, cid, seq) for cid, seq in raises.items()]
    sent: list[FromRank] = [Rows(epoch, version, rows)] if any(isinstance(m, Rows) for m in outbox) else []
    if state and state[0].state is State.IN_COLLECTIVE:
        sent += [*state, *risen]
    else:
        sent += [*risen, *state]
    return sent + [m for m in outbox if not isinstance(m, (Rows, Raise, StateReport))]


def _through_wire(msg: messages.Message) -> messages.Message:
    again = messages.from_wire(msg.to_wire())
    assert again == msg
    return again
