"""The MPI library of the model: point-to-point matching, collectives, and what a checkpoint does with messages in
flight.

Strong progress is assumed: the library completes everything that it can complete without further calls. (A real MPI
must be polled from time to time. Parked and frozen ranks must do that, because a peer inside a collective may wait for
a buffered send.)

Invariants
 1. Messages from one rank to another arrive in the order sent. A receive matches the earliest message that it can
    match, and a message the earliest posted receive (MPI-4 section 3.5).
 2. A synchronous send completes when its message is matched, an eager one at once.
 3. A collective is complete when every member has started it. Calls are matched per communicator in the order of their
    starts. This order is counted here and not taken from the clock, so that the network can detect errors of the clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

ANY = -1  # MPI_ANY_SOURCE, MPI_ANY_TAG


@dataclass(slots=True, eq=False)
class Collective:
    """One collective operation on one communicator."""

    size: int
    started: list[int] = field(default_factory=list)
    # what each member had freed when it arrived (blocking collectives)
    left: dict[int, frozenset[int]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.started) == self.size


@dataclass(slots=True, eq=False)
class Request:
    """A send, a receive or a nonblocking collective. ``peer`` is ANY for a wildcard receive, meaningless for a
    collective."""

    owner: int
    kind: str  # "send", "recv", "coll"
    comm: int = 0
    peer: int = 0
    tag: int = 0
    value: int | None = None
    matched: bool = False
    collective: Collective | None = None
    number: int = 0  # number of the receive, in the order of the owner's starts
    wild: bool = False
    loose: bool = False  # for a collective: complete here before the others have started it (like a root's Ibcast)

    @property
    def done(self) -> bool:
        return self.matched if self.collective is None else self.loose or self.collective.complete


class Network:
    """``wake(rank)``: something that the rank waits for may have completed. ``arrive(channel)``: a channel is no longer
    empty."""

    def __init__(self, size: int, wake: Callable[[int], None], arrive: Callable[[tuple[int, int]], None]) -> None:
        self._wake = wake
        self._arrive = arrive
        self.channels: dict[tuple[int, int], deque[Request]] = {}
        self.unexpected: list[list[Request]] = [[] for _ in range(size)]  # sends that have arrived
        self.posted: list[list[Request]] = [[] for _ in range(size)]
        self.collectives: dict[tuple[int, int], Collective] = {}  # those that are not complete: (communicator, number)

    # ---- point to point

    def send(self, src: int, dst: int, comm: int, tag: int, value: int, *, sync: bool) -> Request:
        envelope = Request(src, "send", comm, dst, tag, value, matched=not sync)
        channel = self.channels.setdefault((src, dst), deque())
        channel.append(envelope)
        if len(channel) == 1:
            self._arrive((src, dst))
        return envelope

    def receive(self, dst: int, src: int, comm: int, tag: int, number: int = 0) -> Request:
        request = Request(dst, "recv", comm, src, tag, number=number, wild=src == ANY)
        for i, envelope in enumerate(self.unexpected[dst]):
            if _match(request, envelope):
                del self.unexpected[dst][i]
                self._complete(request, envelope)
                return request
        self.posted[dst].append(request)
        return request

    def probe(self, request: Request) -> bool:
        """Has a message arrived that the receive would match?"""
        return any(_match(request, envelope) for envelope in self.unexpected[request.owner])

    def deliver(self, key: tuple[int, int]) -> bool:
        """The first message of a channel arrives. False if the channel is empty afterwards."""
        channel = self.channels.get(key)
        if channel is None:  # drained meanwhile
            return False
        envelope = channel.popleft()
        posted = self.posted[key[1]]
        for i, request in enumerate(posted):
            if _match(request, envelope):
                del posted[i]
                self._complete(request, envelope)
                break
        else:
            self.unexpected[key[1]].append(envelope)
            self._wake(key[1])
        if not channel:
            del self.channels[key]
        return bool(channel)

    def drain(self) -> int:
        """At a safe state: all messages in flight arrive (posted receives first, the rest into the store). Returns
        their number."""
        moved = 0
        for key in sorted(self.channels):
            while key in self.channels:
                self.deliver(key)
                moved += 1
        return moved

    def _complete(self, request: Request, envelope: Request) -> None:
        request.value, request.peer, request.tag, request.matched = envelope.value, envelope.owner, envelope.tag, True
        self._wake(request.owner)
        if not envelope.matched:
            envelope.matched = True
            self._wake(envelope.owner)

    # ---- collectives

    def start(self, comm: int, number: int, rank: int, size: int) -> Collective:
        """``rank`` starts the ``number``-th collective of the communicator."""
        key = (comm, number)
        collective = self.collectives.get(key)
        if collective is None:
            collective = self.collectives[key] = Collective(size)
        assert rank not in collective.started[-1:], "a rank starts a collective once"
        collective.started.append(rank)
        if collective.complete:
            del self.collectives[key]
            for member in collective.started:
                self._wake(member)
        return collective


def _match(request: Request, envelope: Request) -> bool:
    return (
        request.comm == envelope.comm and request.peer in (ANY, envelope.owner) and request.tag in (ANY, envelope.tag)
    )
