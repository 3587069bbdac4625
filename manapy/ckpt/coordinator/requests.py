"""Requests for checkpoints, and how several requests share one.

A request that arrives before the ranks are told (while ranks start, or are being checked) joins the checkpoint that is
being prepared. A later request waits for the next checkpoint, and shares it with all others that wait. If one of
several requests asks for exit, the job exits. If one asks for hold, the ranks stay stopped until they are killed. A
request may also accept a checkpoint that is in progress, or that was published a short time ago. A request of `manapy
stop --next` waits until others ask for a checkpoint, and makes the job exit after that one.

Invariants
 1. Every request is answered exactly once: with the path, or with one line that says why there is none.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from ...core.errors import CheckpointError
from .flow import Published

TICKET_SECONDS = 5.0  # how long the first rank's request waits for the others'
STRENGTH = ("continue", "exit", "hold")  # if requests differ, the last of these words wins


@dataclass(eq=False)
class Batch:
    """Requests that share a checkpoint."""

    then: str = "continue"
    grace_ms: int = -1
    futures: list[asyncio.Future[Published]] = field(default_factory=list)
    tickets: list[tuple[int, int]] = field(default_factory=list)  # (rank, ticket) of the program's own requests


class Requests:
    """The batch in progress, and the batch that collects new requests."""

    def __init__(self) -> None:
        self.current: Batch | None = None
        self.open = False  # may `current` still be joined?
        self.next: Batch | None = None
        self.arrived = asyncio.Event()
        self._riders: list[asyncio.Future[Published]] = []
        self._published: tuple[float, Published] | None = None  # the last checkpoint, and when (monotonic)

    def _batch(self, then: str, grace_ms: int) -> Batch:
        if self.current is not None and self.open:
            batch = self.current
        else:
            if self.next is None:
                self.next = Batch()
                self.arrived.set()
            batch = self.next
        batch.then = max(batch.then, then, key=STRENGTH.index)
        batch.grace_ms = max(batch.grace_ms, grace_ms)
        return batch

    def ask(self, then: str = "continue", grace_ms: int = -1) -> asyncio.Future[Published]:
        """Resolves to the published checkpoint or raises CheckpointError."""
        future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        self._batch(then, grace_ms).futures.append(future)
        return future

    def ride(self) -> asyncio.Future[Published]:
        """Exit with the next checkpoint that others ask for."""
        future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        self._riders.append(future)
        return future

    def get_off(self, rider: asyncio.Future[Published]) -> bool:
        """Withdraw the request of ride(). False: its checkpoint has begun, or is over."""
        waits = rider in self._riders
        if waits:
            self._riders.remove(rider)
        return waits

    def ask_recent(self, within: float) -> asyncio.Future[Published]:
        """The same, but accepts a checkpoint that is in progress or was published within that many seconds."""
        future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        if self._published is not None and time.monotonic() - self._published[0] < within:
            future.set_result(self._published[1])
        else:
            (self.current or self._batch("continue", -1)).futures.append(future)
        return future

    def ask_for_program(self, tickets: list[tuple[int, int]]) -> None:
        """manapy.checkpoint() of these ranks."""
        self._batch("continue", -1).tickets.extend(tickets)

    async def take(self) -> Batch:
        """The next batch. From now on it is in progress, and open for further requests."""
        await self.arrived.wait()
        assert self.next is not None
        self.arrived.clear()
        self.current, self.next, self.open = self.next, None, True
        if self._riders:
            self.current.then = max(self.current.then, "exit", key=STRENGTH.index)
            self.current.futures += self._riders
            self._riders = []
        return self.current

    def close(self) -> None:
        """The ranks are being told: no further request may join."""
        self.open = False

    def published(self, last: Published) -> list[tuple[int, int]]:
        """Answer the batch in work; returns the tickets to be answered."""
        batch = self._end()
        self._published = time.monotonic(), last
        for future in batch.futures:
            if not future.done():
                future.set_result(last)
        return batch.tickets

    def failed(self, reason: str) -> list[tuple[int, int]]:
        """The same, without a checkpoint."""
        batch = self._end()
        for future in batch.futures:
            if not future.done():
                future.set_exception(CheckpointError(reason))
                future.exception()  # fetch it: asyncio would warn if nobody waits for it
        return batch.tickets

    def fail_all(self, reason: str) -> None:
        """The job ends: all requests fail."""
        if self._riders:
            self.next = self.next or Batch()
            self.next.futures += self._riders
            self._riders = []
        while self.current is not None or self.next is not None:
            if self.current is None:
                self.current, self.next = self.next, None
            self.failed(reason)

    def _end(self) -> Batch:
        batch = self.current if self.current is not None else Batch()
        self.current, self.open = None, False
        return batch


class CheckpointCalls:
    """Calls of manapy.checkpoint(), which is collective.

    They become one request, once all ranks have called it, or TICKET_SECONDS after the first call.
    """

    def __init__(self, size: int, requests: Requests) -> None:
        self.called: dict[int, int] = {}  # rank: ticket, of those that wait for the others
        self._size = size
        self._requests = requests
        self._patience: asyncio.TimerHandle

    def add(self, rank: int, ticket: int) -> None:
        """A rank has called it."""
        if not self.called:
            self._patience = asyncio.get_running_loop().call_later(TICKET_SECONDS, self._ask)
        self.called[rank] = ticket
        if len(self.called) == self._size:
            self._ask()

    def _ask(self) -> None:
        self._patience.cancel()
        self._requests.ask_for_program(list(self.called.items()))
        self.called = {}
