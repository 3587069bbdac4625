"""Random correct MPI programs for the clock's tests.

A program is a global sequence of events (a collective on a communicator, a message a -> b, ...). It is projected on the
ranks, and in each rank on one of its threads. Then it is perturbed legally. The projection is correct even if every
collective synchronizes and every send waits for its receive: no other event blocks the members of the first event that
isn't complete.

Legal perturbations
 1. An event becomes nonblocking (a collective on all members): its start stays, and its completion moves to any later
    place.
 2. A nonblocking start moves forward past operations with which it isn't ordered. So Ibarriers on two communicators
    cross, and so do starts of persistent collectives.
 3. Some members make calls with wrong arguments in between. These count nowhere.
 4. A thread forbids checkpoints for any part of its operations.
 5. Completions are merged (all at once), taken by WaitAny, or taken by a polling loop.

Threads: before a thread uses a communicator that another thread has used, it waits for a flag (a variable of the
program, a dependency outside MPI). So the collectives of one communicator are ordered, as MPI requires.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from manapy.clock.model.programs import (
    ANY,
    AwaitFlag,
    Coll,
    Compute,
    CreateGroup,
    Disable,
    Drop,
    Enable,
    Fail,
    Flush,
    Free,
    Icoll,
    Lock,
    Op,
    Parallel,
    Probe,
    Recv,
    Send,
    SetFlag,
    Split,
    Unlock,
    Wait,
    WaitAny,
)


@dataclass
class Stream:
    """One thread of a rank. ``open``: outstanding request -> communicator; ``knows``: the communicators that it may use
    without a flag."""

    ops: list[Op] = field(default_factory=list)
    open: dict[str, str] = field(default_factory=dict)
    knows: set[str] = field(default_factory=set)


@dataclass
class _Builder:
    rng: random.Random
    size: int
    streams: list[list[Stream]]
    comms: dict[str, tuple[int, ...]] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)  # of persistent collectives
    # (communicator, rank) -> the thread that makes its collectives
    owner: dict[tuple[str, int], Stream] = field(default_factory=dict)
    serial: int = 0

    def name(self, prefix: str) -> str:
        self.serial += 1
        return f"{prefix}{self.serial}"

    def some(self, ranks: tuple[int, ...], least: int) -> tuple[int, ...]:
        return tuple(sorted(self.rng.sample(ranks, self.rng.randint(least, len(ranks)))))

    def own(self, comm: str, r: int) -> Stream:
        """The thread that makes the next collective of ``r`` on ``comm``. Sometimes another thread takes over."""
        owner = self.owner[comm, r]
        if len(self.streams[r]) > 1 and self.rng.random() < 0.2:
            heir = self.rng.choice(self.streams[r])
            if heir is not owner:
                self.order(owner, heir)
                owner = self.owner[comm, r] = heir
                owner.knows.add(comm)
        return owner

    def user(self, comm: str, r: int) -> Stream:
        """Any thread of ``r``, for an operation with ``comm`` that is no collective."""
        stream = self.rng.choice(self.streams[r])
        if comm not in stream.knows:
            self.order(self.owner[comm, r], stream)
            stream.knows.add(comm)
        return stream

    def order(self, first: Stream, then: Stream) -> None:
        if first is not then:
            flag = self.name("f")
            first.ops.append(SetFlag(flag))
            then.ops.append(AwaitFlag(flag))

    def made(self, comm: str, members: tuple[int, ...], makers: Sequence[Stream]) -> None:
        self.comms[comm] = members
        for r, stream in zip(members, makers, strict=True):
            self.owner[comm, r] = stream
            stream.knows.add(comm)

    def plain(self) -> list[str]:
        return [c for c in self.comms if c not in self.parents]


def build(rng: random.Random, size: int, events: int, threads: int = 1) -> list[list[Op]]:
    """A correct program of ``size`` ranks (at least 2) with at most ``threads`` threads each and about ``events``
    events."""
    world = tuple(range(size))
    b = _Builder(rng, size, [[Stream() for _ in range(rng.randint(1, threads))] for _ in world])
    b.made("world", world, [s[0] for s in b.streams])
    for streams in b.streams:
        for stream in streams:
            stream.knows.add("world")
    kinds = [
        _collective,
        _icollective,
        _message,
        _message,
        _gather,
        _probed,
        _split,
        _group,
        _free,
        _compute,
        _persist,
        _locked,
        _flush,
        _fail,
    ]
    weights = [rng.choice((0, 1, 4)) for _ in kinds]
    if not any(weights):
        weights = [1] * len(kinds)
    for _ in range(events):
        rng.choices(kinds, weights)[0](b)
        for streams in b.streams:
            for stream in streams:
                if stream.open and rng.random() < 0.3:
                    _complete(b, stream, b.some(tuple(range(len(stream.open))), 1))
    for streams in b.streams:
        for stream in streams:
            _complete(b, stream, tuple(range(len(stream.open))))
            _advance_starts(rng, stream.ops)
            if rng.random() < 0.3:
                _disable(rng, stream.ops)
    return [
        [Parallel(tuple(tuple(s.ops) for s in streams))] if len(streams) > 1 else streams[0].ops
        for streams in b.streams
    ]


def _complete(b: _Builder, stream: Stream, which: tuple[int, ...]) -> None:
    names = list(stream.open)
    reqs = tuple(names[i] for i in which)
    if not reqs:
        return
    poll = b.rng.random() < 0.3
    if b.rng.random() < 0.4:
        stream.ops += [WaitAny(reqs, poll=poll)] * len(reqs)
    else:
        stream.ops.append(Wait(reqs, poll=poll))
    for q in reqs:
        del stream.open[q]


def _collective(b: _Builder) -> None:
    comm = b.rng.choice(b.plain())
    loose = b.rng.random() < 0.3
    for r in b.comms[comm]:
        b.own(comm, r).ops.append(Coll(comm, loose=loose))


def _fail(b: _Builder) -> None:
    """Some members make a call with wrong arguments, once or in a row."""
    comm = b.rng.choice(list(b.comms))
    for r in b.some(b.comms[comm], 1):
        b.own(comm, r).ops.extend([Fail(comm)] * b.rng.choice((1, 1, 4)))


def _icollective(b: _Builder) -> None:
    """On a persistent collective this is a start."""
    comm = b.rng.choice(list(b.comms))
    for r in b.comms[comm]:
        req, stream = b.name("i"), b.own(comm, r)
        if comm in b.parents:  # only an inactive request may be started again
            _complete(b, stream, tuple(i for i, c in enumerate(stream.open.values()) if c == comm))
        stream.ops.append(Icoll(req, comm, loose=b.rng.random() < 0.2))
        stream.open[req] = comm


def _pair(b: _Builder) -> tuple[str, int, int]:
    comm = b.rng.choice([c for c in b.plain() if len(b.comms[c]) > 1])
    src, dst = b.rng.sample(b.comms[comm], 2)
    return comm, src, dst


def _send(b: _Builder, stream: Stream, dst: int, comm: str, tag: int) -> None:
    req = b.name("s") if b.rng.random() < 0.5 else ""
    b.serial += 1
    stream.ops.append(Send(dst, b.serial, tag, comm, sync=b.rng.random() < 0.6, req=req))
    if req:
        stream.open[req] = comm


def _recv(b: _Builder, stream: Stream, src: int, comm: str, tag: int, nonblocking: bool) -> None:
    req = b.name("r") if nonblocking else ""
    stream.ops.append(Recv(src, tag, comm, req=req))
    if req:
        stream.open[req] = comm


def _tag(b: _Builder, src: int, sender: Stream, dst: int, receiver: Stream) -> int:
    """Messages between two threads have their own tags; otherwise their order would be undefined."""
    return b.rng.randint(0, 2) + 10 * (_index(b, src, sender) * 8 + _index(b, dst, receiver))


def _index(b: _Builder, r: int, stream: Stream) -> int:
    return next(i for i, s in enumerate(b.streams[r]) if s is stream)


def _message(b: _Builder) -> None:
    comm, src, dst = _pair(b)
    sender, receiver = b.user(comm, src), b.user(comm, dst)
    tag = _tag(b, src, sender, dst, receiver)
    _send(b, sender, dst, comm, tag)
    _recv(b, receiver, src, comm, tag, b.rng.random() < 0.5)


def _probed(b: _Builder) -> None:
    """The receiver probes first. The message must not depend on another receive, so it has its own tag."""
    comm, src, dst = _pair(b)
    sender, receiver = b.user(comm, src), b.user(comm, dst)
    b.serial += 1
    source = b.rng.choice((src, ANY))
    tag = 100_000 + b.serial
    _send(b, sender, dst, comm, tag)
    receiver.ops.append(Probe(source, tag, comm, poll=b.rng.random() < 0.5))
    _recv(b, receiver, source, comm, tag, False)


def _gather(b: _Builder) -> None:
    """Several ranks send to one, which receives from MPI_ANY_SOURCE. The tag is used only here, so nothing else
    matches."""
    comm, _, dst = _pair(b)
    b.serial += 1
    tag = 1000 + b.serial
    chosen = b.some(tuple(r for r in b.comms[comm] if r != dst), 1)
    senders = {src: b.user(comm, src) for src in chosen}
    for src in chosen * b.rng.randint(1, 2):
        _send(b, senders[src], dst, comm, tag)
    nonblocking, receiver = b.rng.random() < 0.4, b.user(comm, dst)
    for _ in range(sum(isinstance(op, Send) and op.tag == tag for s in senders.values() for op in s.ops)):
        _recv(b, receiver, ANY, comm, tag, nonblocking)


def _split(b: _Builder) -> None:
    parent = b.rng.choice(b.plain())
    name = b.name("c")
    first = b.comms[parent] if b.rng.random() < 0.4 else b.some(b.comms[parent], 1)
    rest = tuple(r for r in b.comms[parent] if r not in first)
    for i, part in enumerate((first, rest)):
        makers = [b.own(parent, r) for r in part]
        for stream in makers:
            stream.ops.append(Split(parent, f"{name}.{i}", part))
        if part:
            b.made(f"{name}.{i}", part, makers)


def _persist(b: _Builder) -> None:
    """Barrier_init: it is collective on its communicator. The persistent collective that it makes has its own row."""
    parent = b.rng.choice(b.plain())
    name = b.name("p")
    makers = [b.own(parent, r) for r in b.comms[parent]]
    for stream in makers:
        stream.ops.append(Split(parent, name, b.comms[parent]))
    b.made(name, b.comms[parent], makers)
    b.parents[name] = parent


def _group(b: _Builder) -> None:
    members = b.some(tuple(range(b.size)), 1)
    name, tag = b.name("g"), b.rng.randint(0, 1)
    makers = [b.streams[r][0] for r in members]
    for stream in makers:
        stream.ops.append(CreateGroup(name, members, tag))
    b.made(name, members, makers)


def _free(b: _Builder) -> None:
    """Free a communicator together with its persistent collectives, or free one of these. Freeing is local, and
    sometimes a member never does it."""
    if len(b.comms) == 1:
        return
    comm = b.rng.choice([c for c in b.comms if c != "world"])
    if comm in b.parents:
        _drop(b, comm)
        return
    for child in [p for p, parent in b.parents.items() if parent == comm]:
        _drop(b, child)
    for r in b.comms[comm]:
        stream = b.own(comm, r)
        for other in b.streams[r]:
            if comm in other.knows:
                _complete(b, other, tuple(i for i, c in enumerate(other.open.values()) if c == comm))
                b.order(other, stream)
        if b.rng.random() < 0.9:
            stream.ops.append(Free(comm))
    _forget(b, comm)


def _drop(b: _Builder, comm: str) -> None:
    parent = b.parents.pop(comm)
    for r in b.comms[comm]:
        stream = b.own(comm, r)
        for other in b.streams[r]:
            _complete(b, other, tuple(i for i, c in enumerate(other.open.values()) if c == comm))
            b.order(other, stream)
        stream.ops.append(Drop(comm, parent))
        b.order(stream, b.owner[parent, r])  # which may free it afterwards
    _forget(b, comm)


def _forget(b: _Builder, comm: str) -> None:
    for r in b.comms.pop(comm):
        del b.owner[comm, r]


def _locked(b: _Builder) -> None:
    """Some members lock the window at one of them, do something, flush, and unlock, in any order."""
    win = b.rng.choice(b.plain())
    target = b.rng.choice(b.comms[win])
    for r in b.some(b.comms[win], 1):
        stream = b.own(win, r)
        stream.ops += [
            Lock(win, target, shared=b.rng.random() < 0.4),
            Compute(b.rng.choice((1, 4))),
            Flush(target),
            Unlock(win, target),
        ]


def _flush(b: _Builder) -> None:
    r, target = b.rng.randrange(b.size), b.rng.randrange(b.size)
    b.rng.choice(b.streams[r]).ops.extend([Flush(target)] * b.rng.choice((1, 10)))


def _compute(b: _Builder) -> None:
    b.rng.choice(b.streams[b.rng.randrange(b.size)]).ops.append(Compute(b.rng.choice((1, 5, 60))))


def _disable(rng: random.Random, ops: list[Op]) -> None:
    for _ in range(rng.choice((1, 1, 4))):
        first = rng.randint(0, len(ops))
        ops.insert(rng.randint(first, min(len(ops), first + rng.choice((1, 4, 40)))), Enable())
        ops.insert(first, Disable())


def _comm(op: Op) -> str:
    return op.parent if isinstance(op, Split) else getattr(op, "comm", "")


def _ordered(start: Op, before: Op) -> bool:
    """Whether the nonblocking start may not move before ``before``."""
    if isinstance(before, (SetFlag, AwaitFlag, Lock, Unlock)):
        return True
    if isinstance(before, (Split, CreateGroup, Free)) and (
        before.comm == _comm(start) or _comm(before) == _comm(start)
    ):
        return True
    if isinstance(start, Icoll):  # a persistent request may be active until it is waited for
        return (
            isinstance(before, (Coll, Icoll, Fail))
            and before.comm == start.comm
            or (start.comm[0] == "p" and isinstance(before, (Wait, WaitAny)))
        )
    if isinstance(start, Send):
        return isinstance(before, Send) and before.dest == start.dest
    return isinstance(start, Recv) and isinstance(before, (Recv, Probe))


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

    Receives from a named source must get exactly the same messages. Wildcard receives must get the same set of
    messages, in the order sent from each source.
    """
    out = []
    for log in logs:
        log = sorted(log)
        named = [(x.number, x.source, x.tag, x.value) for x in log if not x.wild]
        wild = sorted((x.tag, x.source) for x in log if x.wild)
        streams = {
            (x.tag, x.source): [y.value for y in log if y.wild and (y.tag, y.source) == (x.tag, x.source)]
            for x in log
            if x.wild
        }
        out.append((named, wild, streams))
    return out
