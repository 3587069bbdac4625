"""Simulator: abstract MPI programs on RankClock and Controller, under a seeded random scheduler.

Actors are the threads of every rank (machine.py), both directions of every control connection, and every nonempty
network channel. One actor makes one step at a time, in an order that the seed determines. Nothing has a duration, so
time-outs can't hide errors here: a job that can't continue is a Deadlock, a job that continues for ever is a Livelock.

Invariants (checked at every safe state; Violation says which)
 1. Every rank is frozen, none is inside a collective, and SEQ is equal on all members of every communicator.
 2. Every collective that a rank has started has been started by all members (otherwise step 6 of the design spins for
    ever).
 3. No control message is on its way.
 4. No thread has forbidden checkpoints.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from .. import messages
from .._state import ClockPhase
from ..controller import Counters
from ..messages import Done, FromRank, ToRank
from . import mutants
from .coalescing import coalesce
from .machine import Machine, Received
from .programs import Op, Parallel, Program

__all__ = ["Checkpoint", "Deadlock", "Livelock", "Received", "Simulator", "Violation"]

T = TypeVar("T")


class Deadlock(Exception):
    """No actor can continue."""


class Livelock(Exception):
    """More steps than any run of this size needs."""


class Violation(Exception):
    """A safe state that isn't safe."""


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


@dataclass(slots=True)
class Checkpoint:
    """The cost of one request. ``rounds``: half the longest causal chain of control messages."""

    converged: bool
    reason: str
    steps: int
    rounds: int
    drained: int
    counters: Counters


class Simulator:
    """Runs one program once.

    ``requests``: steps at which a checkpoint is requested (delayed while one is pending). ``patience``: failed tests
    before a rank reports that it is blocked. ``wire``: send every control message as text. ``stall``: if no actor can
    continue, use the coordinator's stall time-out (only for dependencies outside MPI; without it such a job is a
    Deadlock). ``lazy``: the control thread is an actor of its own, which reports what has changed since its last turn
    (as the C one does). ``promises``: the probability that it sees a call which isn't decided yet. ``broken``: the part
    of the protocol to remove (mutants.py).
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
        self.wire = wire
        self.stall = stall
        self.lazy = lazy
        self.max_steps = max_steps or 20_000 + 400 * sum(_length(p) + 4 for p in program) * (2 + len(requests))
        self.controller = mutants.controller(broken, size)
        self._ready: _Pool[int] = _Pool()
        self._arriving: _Pool[tuple[int, int]] = _Pool()
        self._reporting: _Pool[int] = _Pool()
        self._rising: _Pool[int] = _Pool()
        self._falling: _Pool[int] = _Pool()
        self.up: list[deque[tuple[int, FromRank]]] = [deque() for _ in range(size)]
        self.down: list[deque[tuple[int, ToRank]]] = [deque() for _ in range(size)]
        self.machine = Machine(
            program,
            mutants.clock(broken),
            self.rng,
            self._ready.add,
            self._arriving.add,
            patience=patience,
            promises=promises,
            broken=broken,
        )
        self.clocks = [rank.clock for rank in self.machine.ranks]
        self._requests = deque(sorted(requests))
        self._depth = 0  # number of control messages in the longest causal chain up to the coordinator
        self._depths = [0] * size  # and up to each rank
        self._began = 0
        self.steps = 0
        self.checkpoints: list[Checkpoint] = []

    def run(self, *, until_checkpoint: bool = False) -> list[list[Received]]:
        """Run to the end (or to the end of the first checkpoint). Returns what each rank has received, one thread after
        another. Raises Deadlock, Livelock or Violation."""
        pools: list[_Pool[int] | _Pool[tuple[int, int]]] = [
            self._ready,
            self._arriving,
            self._reporting,
            self._rising,
            self._falling,
        ]
        while True:
            if self._requests and self.steps >= self._requests[0] and not self.controller.pending:
                self._requests.popleft()
                self._request()
            live = [(p, w) for p, w in zip(pools, self.weights, strict=True) if len(p)]
            if not live:
                if all(t.ended for t in self.machine.threads):
                    return self.machine.received()
                self._stuck()
                continue
            pool = live[0][0] if len(live) == 1 else self.rng.choices([p for p, _ in live], [w for _, w in live])[0]
            self._step(pool)
            self.steps += 1
            if until_checkpoint and self.checkpoints:
                return self.machine.received()
            if self.steps > self.max_steps:
                raise Livelock(self._describe())

    def _step(self, pool: _Pool[int] | _Pool[tuple[int, int]]) -> None:
        if pool is self._ready:
            r = self.machine.act(self._ready.take(self.rng))
            if not self.lazy:
                self._flush(r)
            elif self.clocks[r].outbox:
                self._reporting.add(r)
        elif pool is self._reporting:
            self._flush(self._reporting.take(self.rng))
        elif pool is self._arriving:
            channel = self._arriving.take(self.rng)
            if self.machine.network.deliver(channel):
                self._arriving.add(channel)
        elif pool is self._rising:
            self._rise(self._rising.take(self.rng))
        else:
            self._fall(self._falling.take(self.rng))

    # ---- control connections and the coordinator

    def _request(self) -> None:
        if self.controller.finishing:
            self.checkpoints.append(Checkpoint(False, "the job is finishing", 0, 0, 0, Counters()))
            return
        self._depth, self._began = 0, self.steps
        self._depths = [0] * len(self._depths)
        self._lower(self.controller.begin(self.controller.epoch + 1))

    def _flush(self, r: int) -> None:
        outbox = self.clocks[r].outbox
        if outbox:
            depth = self._depths[r] + 1
            for m in coalesce(outbox) if self.lazy else outbox:
                self.up[r].append((depth, _through_wire(m) if self.wire else m))  # type: ignore[arg-type]
            outbox.clear()
            self._rising.add(r)

    def _lower(self, out: Sequence[tuple[int, ToRank]]) -> None:
        for r, msg in out:
            self.down[r].append((self._depth + 1, _through_wire(msg) if self.wire else msg))  # type: ignore[arg-type]
            self._falling.add(r)

    def _fall(self, r: int) -> None:
        depth, msg = self.down[r].popleft()
        if self.down[r]:
            self._falling.add(r)
        self._depths[r] = max(self._depths[r], depth)
        self.clocks[r].receive(msg)
        self.machine.wake(r)
        self._flush(r)

    def _rise(self, r: int) -> None:
        depth, msg = self.up[r].popleft()
        if self.up[r]:
            self._rising.add(r)
        self._depth = max(self._depth, depth)
        self._hear((r,), msg)

    def _hear(self, ranks: Sequence[int], msg: FromRank) -> None:
        """The coordinator gets a message of these ranks."""
        was_pending = self.controller.pending
        self._lower(self.controller.on_messages(ranks, msg))
        if self.controller.converged:
            self._check_safe()
            self._record(True, "", self.machine.network.drain())
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
        if self.machine.network.collectives:
            (comm, number), c = next(iter(self.machine.network.collectives.items()))
            raise Violation(f"collective {number} on {comm:016x} was started only by {c.started}")
        seqs: dict[int, int] = {}
        for t in self.machine.threads:
            if t.inside is not None or t.flushing or t.failing:
                raise Violation(f"rank {t.rank}: thread {t.number} is inside {t.ops[t.pc]}")
        for r, clock in enumerate(self.clocks):
            if clock.disabled:
                raise Violation(f"rank {r} forbids checkpoints")
            if clock.phase is not ClockPhase.FROZEN or clock.below:
                raise Violation(f"rank {r}: {clock.phase}, {clock.threads}")
            if self.up[r] or self.down[r]:
                raise Violation(f"rank {r}: control messages on their way")
            for row in clock.rows.values():
                if seqs.setdefault(row.cid, row.seq) != row.seq:
                    raise Violation(f"rank {r}: SEQ {row.seq} on {row.cid:016x}, not {seqs[row.cid]}")

    def _stuck(self) -> None:
        out = self.controller.stall() if self.stall else []
        if not out:
            raise Deadlock(self._describe())
        self._lower(out)

    def _describe(self) -> str:
        at = []
        for t in self.machine.threads:
            if not t.ended:
                clock = self.clocks[t.rank]
                at.append(
                    f"rank {t.rank} thread {t.number} at {t.ops[t.pc]}: {clock.phase.name} {clock.state(t.number).name}"
                )
        return "\n".join(
            [f"after {self.steps} steps, stage {self.controller.stage}", *at[:20], *self.controller.status()[:20]]
        )


def _length(ops: Sequence[Op]) -> int:
    return sum(sum(map(_length, op.bodies)) if isinstance(op, Parallel) else 1 for op in ops)


def _through_wire(msg: messages.Message) -> messages.Message:
    again = messages.from_wire(msg.to_wire())
    assert again == msg
    return again
