"""Random correct MPI programs for the clock's tests.

A program is a global sequence of events (a collective on a communicator, a message a -> b, ...) projected on the ranks, then
perturbed legally. The projection is correct even if every collective synchronizes and every send waits for its receive: the
members of the first event that isn't complete are never held up by another event.

Legal perturbations
 1. An event becomes nonblocking (a collective on all members): its start stays, its completion moves anywhere behind it.
 2. A nonblocking start moves forward past operations that it isn't ordered with. So Ibarriers on two communicators cross.
 3. Completions are merged (all at once), taken by WaitAny, or by a polling loop.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from manapy.clock.programs import (
    ANY,
    Coll,
    Compute,
    CreateGroup,
    Free,
    Icoll,
    Op,
    Recv,
    Send,
    Split,
    Wait,
    WaitAny,
)


@dataclass
class _Builder:
    rng: random.Random
    size: int
    comms: dict[str, tuple[int, ...]] = field(default_factory=dict)
    ops: list[list[Op]] = field(default_factory=list)
    open: list[dict[str, str]] = field(default_factory=list)  # rank -> outstanding request -> communicator
    serial: int = 0

    def name(self, prefix: str) -> str:
        self.serial += 1
        return f"{prefix}{self.serial}"

    def some(self, ranks: tuple[int, ...], least: int) -> tuple[int, ...]:
        return tuple(sorted(self.rng.sample(ranks, self.rng.randint(least, len(ranks)))))


def build(rng: random.Random, size: int, events: int) -> list[list[Op]]:
    """A correct program of ``size`` ranks (at least 2) with about ``events`` events."""
    b = _Builder(rng, size, {"world": tuple(range(size))}, [[] for _ in range(size)], [{} for _ in range(size)])
    kinds = [_collective, _icollective, _message, _message, _gather, _split, _group, _free, _compute]
    weights = [rng.choice((0, 1, 4)) for _ in kinds]
    if not any(weights):
        weights = [1] * len(kinds)
    for _ in range(events):
        rng.choices(kinds, weights)[0](b)
        for r in range(size):
            if b.open[r] and rng.random() < 0.3:
                _complete(b, r, b.some(tuple(range(len(b.open[r]))), 1))
    for r in range(size):
        _complete(b, r, tuple(range(len(b.open[r]))))
    for ops in b.ops:
        _advance_starts(rng, ops)
    return b.ops


def _complete(b: _Builder, r: int, which: tuple[int, ...]) -> None:
    names = list(b.open[r])
    reqs = tuple(names[i] for i in which)
    if not reqs:
        return
    poll = b.rng.random() < 0.3
    if b.rng.random() < 0.4:
        b.ops[r] += [WaitAny(reqs, poll=poll)] * len(reqs)
    else:
        b.ops[r].append(Wait(reqs, poll=poll))
    for q in reqs:
        del b.open[r][q]


def _collective(b: _Builder) -> None:
    comm = b.rng.choice(list(b.comms))
    loose = b.rng.random() < 0.3
    for r in b.comms[comm]:
        b.ops[r].append(Coll(comm, loose=loose))


def _icollective(b: _Builder) -> None:
    comm = b.rng.choice(list(b.comms))
    for r in b.comms[comm]:
        req = b.name("i")
        b.ops[r].append(Icoll(req, comm))
        b.open[r][req] = comm


def _pair(b: _Builder) -> tuple[str, int, int]:
    comm = b.rng.choice([c for c, m in b.comms.items() if len(m) > 1])
    src, dst = b.rng.sample(b.comms[comm], 2)
    return comm, src, dst


def _send(b: _Builder, src: int, dst: int, comm: str, tag: int) -> None:
    req = b.name("s") if b.rng.random() < 0.5 else ""
    b.serial += 1
    b.ops[src].append(Send(dst, b.serial, tag, comm, sync=b.rng.random() < 0.6, req=req))
    if req:
        b.open[src][req] = comm


def _recv(b: _Builder, dst: int, src: int, comm: str, tag: int, nonblocking: bool) -> None:
    req = b.name("r") if nonblocking else ""
    b.ops[dst].append(Recv(src, tag, comm, req=req))
    if req:
        b.open[dst][req] = comm


def _message(b: _Builder) -> None:
    comm, src, dst = _pair(b)
    tag = b.rng.randint(0, 2)
    _send(b, src, dst, comm, tag)
    _recv(b, dst, src, comm, tag, b.rng.random() < 0.5)


def _gather(b: _Builder) -> None:
    """Several ranks send to one, which receives from MPI_ANY_SOURCE; the tag is its own, so nothing else matches."""
    comm, _, dst = _pair(b)
    b.serial += 1
    tag = 100 + b.serial
    senders = b.some(tuple(r for r in b.comms[comm] if r != dst), 1) * b.rng.randint(1, 2)
    for src in senders:
        _send(b, src, dst, comm, tag)
    nonblocking = b.rng.random() < 0.4
    for _ in senders:
        _recv(b, dst, ANY, comm, tag, nonblocking)


def _split(b: _Builder) -> None:
    parent = b.rng.choice(list(b.comms))
    name = b.name("c")
    first = b.comms[parent] if b.rng.random() < 0.4 else b.some(b.comms[parent], 1)
    rest = tuple(r for r in b.comms[parent] if r not in first)
    for i, part in enumerate((first, rest)):
        for r in part:
            b.ops[r].append(Split(parent, f"{name}.{i}", part))
        if part:
            b.comms[f"{name}.{i}"] = part


def _group(b: _Builder) -> None:
    members = b.some(tuple(range(b.size)), 1)
    name, tag = b.name("g"), b.rng.randint(0, 1)
    for r in members:
        b.ops[r].append(CreateGroup(name, members, tag))
    b.comms[name] = members


def _free(b: _Builder) -> None:
    if len(b.comms) == 1:
        return
    comm = b.rng.choice([c for c in b.comms if c != "world"])
    for r in b.comms.pop(comm):
        _complete(b, r, tuple(i for i, c in enumerate(b.open[r].values()) if c == comm))
        b.ops[r].append(Free(comm))


def _compute(b: _Builder) -> None:
    b.ops[b.rng.randrange(b.size)].append(Compute(b.rng.choice((1, 5, 60))))


def _comm(op: Op) -> str:
    return op.parent if isinstance(op, Split) else getattr(op, "comm", "")


def _ordered(start: Op, before: Op) -> bool:
    """Whether the nonblocking start may not move before ``before``."""
    if isinstance(before, (Split, CreateGroup, Free)) and (before.comm == _comm(start) or _comm(before) == _comm(start)):
        return True
    if isinstance(start, Icoll):
        return isinstance(before, (Coll, Icoll)) and before.comm == start.comm
    if isinstance(start, Send):
        return isinstance(before, Send) and before.dest == start.dest
    return isinstance(start, Recv) and isinstance(before, Recv)


def _advance_starts(rng: random.Random, ops: list[Op]) -> None:
    for i in range(1, len(ops)):
        j, op = i, ops[i]
        if not (isinstance(op, Icoll) or (isinstance(op, (Send, Recv)) and op.req)) or rng.random() < 0.4:
            continue
        reach = rng.choice((1, 2, 8))
        while j > 0 and reach > 0 and not _ordered(op, ops[j - 1]):
            ops[j], ops[j - 1] = ops[j - 1], ops[j]
            j, reach = j - 1, reach - 1


def results(logs: list[list], size: int) -> list[tuple]:  # type: ignore[type-arg]
    """What a run received, in a form that is equal for every correct run of one program.

    Receives from a named source must have got exactly the same; wildcards the same messages, per source in the order sent.
    """
    out = []
    for log in logs:
        log = sorted(log)
        named = [(x.number, x.source, x.tag, x.value) for x in log if not x.wild]
        wild = sorted((x.tag, x.source) for x in log if x.wild)
        streams = {(x.tag, x.source): [y.value for y in log if y.wild and (y.tag, y.source) == (x.tag, x.source)] for x in log if x.wild}
        out.append((named, wild, streams))
    return out
