"""Two-phase commit in the model, to compare it with the clock: MANA's first algorithm (section 2.2 of the collective
clock paper, bench/calls/apps.py).

A barrier precedes each collective. It is made of messages (dissemination: in round k each member sends to the member
2^k after it). The clock has no such barrier. A rank may be stopped while it waits in the barrier, but not inside the
collective. A checkpoint:

    INTENT to all -> each answers with its position; from now on it stops after a barrier, before the collective
    -> if a member is inside a collective already, GO to the others; each of them answers when it has left it
    -> no rank is inside: FREEZE to all, all answer

Programs are those of programs.py that consist of Compute, Coll, Split, Send and Recv: 2PC has no nonblocking
collectives. Sends are eager.

Invariants
 1. A member is inside a collective only if all members have entered its barrier, so all of them arrive without help.
 2. At a safe state no rank is inside, and no collective was entered only by some members (checked).
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .programs import Coll, Compute, Op, Program, Recv, Send, Split

__all__ = ["Cost", "TwoPhase"]


@dataclass(slots=True)
class Cost:
    """``barrier_messages``: those of the inserted barriers that ranks have passed. ``collectives``: number of these
    barriers, all ranks together."""

    control: int = 0  # messages of the checkpoint between coordinator and ranks
    rounds: int = 0  # there and back
    barrier_messages: int = 0
    collectives: int = 0


@dataclass(slots=True)
class _Rank:
    ops: Sequence[Op]
    comms: dict[str, tuple[int, int]]  # number of the group, and this rank's number in it
    pc: int = 0
    left: int = 0
    round: int = -1  # round of the barrier; -1: not in one
    inside: bool = False
    calls: Counter[int] = field(default_factory=Counter)  # by group: congruent communicators count together here
    stopping: bool = False  # INTENT has arrived ...
    go: bool = False  # ... and GO for one collective
    owes: bool = False  # it must answer when it has left the collective


class TwoPhase:
    """Runs one program to the end of the checkpoint that is requested at step ``request``, or when ranks have entered
    ``after`` collectives, all counted together. Without a request it runs to the program's end."""

    def __init__(
        self, program: Program, *, seed: int = 0, request: int | None = None, after: int | None = None
    ) -> None:
        self.rng = random.Random(seed)
        world = tuple(range(len(program)))
        self.groups: list[tuple[int, ...]] = [world]
        self.ranks = [_Rank(ops, {"world": (0, r)}) for r, ops in enumerate(program)]
        self.cost = Cost()
        self.request = request
        self.after = after
        self.steps = 0
        self._ready = list(world)
        self._queued = set(world)
        self._group = {world: 0}
        # in flight: barrier rounds and messages
        self._letters: defaultdict[tuple[object, ...], int] = defaultdict(int)
        self._begun: Counter[tuple[int, int]] = Counter()  # (group, number) -> members inside or through, unless all
        self._down: deque[tuple[int, str]] = deque()
        self._answers = 0
        self._asked = False
        self._stage = ""
        self._waiting_for = 0

    def run(self) -> Cost:
        """Raises RuntimeError if no rank can continue, or if the safe state isn't safe."""
        while True:
            if not self._asked and self._is_time():
                self._ask("INTENT", range(len(self.ranks)))
            if self._stage == "done":
                return self.cost
            if self._down and (not self._ready or self.rng.random() < 0.3):
                self._receive(*self._down.popleft())
            elif self._ready:
                i = int(self.rng.random() * len(self._ready))
                self._ready[i], self._ready[-1] = self._ready[-1], self._ready[i]
                r = self._ready.pop()
                self._queued.discard(r)
                if self._advance(r, self.ranks[r]):
                    self._wake(r)
                self.steps += 1
            elif all(x.pc == len(x.ops) for x in self.ranks):
                return self.cost
            else:
                raise RuntimeError(f"nobody can go on, stage {self._stage!r}")

    def _is_time(self) -> bool:
        return (self.request is not None and self.steps >= self.request) or (
            self.after is not None and self.cost.collectives >= self.after
        )

    def _wake(self, r: int) -> None:
        if r not in self._queued:
            self._queued.add(r)
            self._ready.append(r)

    # ---- the coordinator

    def _ask(self, kind: str, ranks: Sequence[int] | range) -> None:
        self._asked, self._stage, self._waiting_for = True, kind, len(ranks)
        self.cost.control += 2 * len(ranks)
        self.cost.rounds += 1
        self._down.extend((r, kind) for r in ranks)

    def _receive(self, r: int, kind: str) -> None:
        """An order arrives. It is answered at once, except GO, which is answered when the collective is finished (in
        _leave)."""
        rank = self.ranks[r]
        if kind == "GO":
            rank.go = rank.owes = True
            self._wake(r)
            return
        rank.stopping = True
        self._answered()

    def _answered(self) -> None:
        self._waiting_for -= 1
        if self._waiting_for:
            return
        if self._stage == "FREEZE":
            if any(x.inside for x in self.ranks):
                raise RuntimeError("a rank is inside a collective")
            if self._begun:
                raise RuntimeError(f"entered by some members only: {list(self._begun)[:3]}")
            self._stage = "done"
            return
        late = [m for group, number in self._begun for m in self.groups[group] if self.ranks[m].calls[group] < number]
        inside = [x for x in self.ranks if x.inside]
        if late:
            self._ask("GO", late)
        elif inside:  # all are inside: they leave by themselves, and report this
            self._stage, self._waiting_for = "LEAVING", len(inside)
            self.cost.control += len(inside)
            for x in inside:
                x.owes = True
        else:
            self._ask("FREEZE", range(len(self.ranks)))

    # ---- ranks: each function makes one step; can the rank continue at once?

    def _advance(self, r: int, rank: _Rank) -> bool:
        if rank.pc == len(rank.ops):
            return False
        op = rank.ops[rank.pc]
        if isinstance(op, Compute):
            rank.left = (rank.left or op.steps) - 1
            return rank.left > 0 or self._next(rank)
        if isinstance(op, Send):
            self._letters["message", r, op.dest, op.comm, op.tag] += 1
            self._wake(op.dest)
            return self._next(rank)
        if isinstance(op, Recv):
            return self._take("message", op.source, r, op.comm, op.tag) and self._next(rank)
        if not isinstance(op, (Coll, Split)):
            raise TypeError(f"two-phase commit has no {type(op).__name__}")
        group, me = rank.comms[op.parent if isinstance(op, Split) else op.comm]
        return self._leave(r, rank, op, group) if rank.inside else self._enter(rank, group, me)

    def _next(self, rank: _Rank) -> bool:
        rank.pc += 1
        return True

    def _take(self, *letter: object) -> bool:
        if letter not in self._letters:
            return False
        self._letters[letter] -= 1
        if not self._letters[letter]:
            del self._letters[letter]
        return True

    def _enter(self, rank: _Rank, group: int, me: int) -> bool:
        """The barrier, round by round, then the collective."""
        n, number = len(self.groups[group]), rank.calls[group] + 1
        if rank.round < 0:
            rank.round = 0
            self._signal(rank, group, me, number)
        while 1 << rank.round < n:
            if not self._take("barrier", group, number, rank.round, me):
                return False
            rank.round += 1
            self._signal(rank, group, me, number)
        if rank.stopping and not rank.go:
            return False
        self.cost.collectives += 1
        self.cost.barrier_messages += rank.round
        rank.round, rank.inside, rank.go = -1, True, False
        rank.calls[group] = number
        self._begun[group, number] += 1
        if self._begun[group, number] == n:
            del self._begun[group, number]
            for m in self.groups[group]:
                self._wake(m)
        return True

    def _signal(self, rank: _Rank, group: int, me: int, number: int) -> None:
        """The message of this round of the barrier."""
        members = self.groups[group]
        if 1 << rank.round < len(members):
            to = (me + (1 << rank.round)) % len(members)
            self._letters["barrier", group, number, rank.round, to] += 1
            self._wake(members[to])

    def _leave(self, r: int, rank: _Rank, op: Coll | Split, group: int) -> bool:
        if (group, rank.calls[group]) in self._begun:
            return False
        rank.inside = False
        if isinstance(op, Split):
            if op.members not in self._group:
                self._group[op.members] = len(self.groups)
                self.groups.append(op.members)
            rank.comms[op.comm] = self._group[op.members], op.members.index(r)
        if rank.owes:
            rank.owes = False
            self._answered()
        return self._next(rank)
