"""Keys in the coordinator of a job of manapy-launch: no store has to be set up for a job on several hosts.

The coordinator has all keys in its memory (CentralStore). The service of its own host uses them directly. That of
another host (RemoteStore, in the agent of the node) asks by lines over the connection that the agent has anyway, and
KeyService answers them:

    KEYS number LEASE                          OK lease
    KEYS number REVOKE lease                   OK
    KEYS number PUT lease key value ...        OK, or LOST: the lease has ended
    KEYS number GET key ...                    OK value ..., a "-" for each key that does not exist
    KEYS number DEL lease key ...              OK

An answer is KEYED, the number, and what stands here. Values are hexadecimal.

Invariants
 1. A lease ends when it is revoked, or when the connection with the agent that has it ends: then the node is lost. It
    does not expire, so nothing is sent to keep it alive.
 2. An agent changes only keys under its own leases.
 3. A service has at most `threads` requests on their way, of KEYS_MAX keys each: a line of a checkpoint waits behind no
    more than these.
 4. When the coordinator is lost, each request fails at once.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from ..core.errors import LeaseLostError, StoreError
from .store import PATIENCE_SECONDS, Lease, Store

log = logging.getLogger(__name__)


class CentralStore(Store):
    """The keys of one job, in this process. Several threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = map(str, itertools.count(1))
        self._keys: dict[Lease, set[str]] = {}  # those that belong to each lease
        self._pairs: dict[str, tuple[bytes, Lease]] = {}

    def lease(self) -> Lease:
        with self._lock:
            made = next(self._numbers)
            self._keys[made] = set()
            return made

    def keep(self, leases: Sequence[Lease]) -> set[Lease]:
        with self._lock:
            return {lease for lease in leases if lease not in self._keys}

    def revoke(self, lease: Lease) -> None:
        with self._lock:
            for key in self._keys.pop(lease, ()):
                del self._pairs[key]

    def put_all(self, lease: Lease, pairs: Mapping[str, bytes]) -> None:
        with self._lock:
            if lease not in self._keys:
                raise LeaseLostError("the coordinator has ended the lease")
            for key, value in pairs.items():
                if key in self._pairs:
                    self._keys[self._pairs[key][1]].discard(key)
                self._keys[lease].add(key)
                self._pairs[key] = value, lease

    def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        with self._lock:
            return [self._pairs[key][0] if key in self._pairs else None for key in keys]

    def delete_all(self, lease: Lease, keys: Sequence[str]) -> None:
        with self._lock:
            for key in self._keys.get(lease, set()).intersection(keys):
                self._keys[lease].discard(key)
                del self._pairs[key]

    def close(self) -> None:
        """Nothing is open."""


class KeyService:
    """Answers the lines of agents about the keys of a job."""

    def __init__(self, store: CentralStore) -> None:
        self._store = store
        self._leases: dict[object, set[Lease]] = {}

    def answer(self, agent: object, line: str) -> str:
        """The answer to a KEYS line of an agent. Raises ValueError if it is malformed."""
        _, number, kind, *fields = line.split(" ")
        try:
            return " ".join(("KEYED", number, "OK", *self._do(agent, kind, fields)))
        except LeaseLostError:
            return f"KEYED {number} LOST"

    def _do(self, agent: object, kind: str, fields: list[str]) -> list[str]:
        if kind == "GET":
            return ["-" if value is None else value.hex() for value in self._store.get_all(fields)]
        mine = self._leases.setdefault(agent, set())
        if kind == "LEASE":
            mine.add(lease := self._store.lease())
            return [lease]
        lease, *rest = fields
        if lease not in mine:  # invariant 2
            raise LeaseLostError("not a lease of this agent")
        if kind == "PUT":
            pairs = {key: bytes.fromhex(value) for key, value in zip(rest[::2], rest[1::2], strict=True)}
            self._store.put_all(lease, pairs)
        elif kind == "DEL":
            self._store.delete_all(lease, rest)
        elif kind == "REVOKE":
            mine.discard(lease)
            self._store.revoke(lease)
        else:
            raise ValueError(f"no request {kind[:32]!a}")
        return []

    def leave(self, agent: object) -> None:
        """The connection with an agent has ended (invariant 1)."""
        for lease in self._leases.pop(agent, ()):
            self._store.revoke(lease)


class RemoteStore(Store):
    """The keys of a job, from another host. ``send`` sends a line to the coordinator; any thread may call it."""

    threads = 4

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[list[str]]] = {}
        self._leases: set[Lease] = set()
        self._lost = False

    def lease(self) -> Lease:
        (made,) = self._ask("LEASE")
        self._leases.add(made)
        return made

    def keep(self, leases: Sequence[Lease]) -> set[Lease]:
        """Nothing has to be sent (invariant 1)."""
        if self._lost:
            raise _lost()
        return set(leases) - self._leases

    def revoke(self, lease: Lease) -> None:
        if lease in self._leases and not self._lost:  # after a loss it has ended
            self._leases.discard(lease)
            self._ask("REVOKE", lease)

    def put_all(self, lease: Lease, pairs: Mapping[str, bytes]) -> None:
        self._ask("PUT", lease, *(field for key, value in pairs.items() for field in (key, value.hex())))

    def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        return [None if value == "-" else bytes.fromhex(value) for value in self._ask("GET", *keys)]

    def delete_all(self, lease: Lease, keys: Sequence[str]) -> None:
        if lease in self._leases:
            self._ask("DEL", lease, *keys)

    def close(self) -> None:
        """The connection is the agent's."""

    def take(self, line: str) -> None:
        """An answer has come (KEYED)."""
        _, number, *answer = line.split(" ")
        with self._lock:
            waiting = self._waiting.pop(int(number), None)
        if waiting is not None:  # else it comes too late
            waiting.set_result(answer)

    def lose(self) -> None:
        """The coordinator is lost (invariant 4)."""
        with self._lock:
            self._lost = True
            waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            one.set_exception(_lost())

    def _ask(self, kind: str, *fields: str) -> list[str]:
        waiting: Future[list[str]] = Future()
        with self._lock:
            if self._lost:
                raise _lost()
            number = next(self._numbers)
            self._waiting[number] = waiting
        self._send(" ".join(("KEYS", str(number), kind, *fields)))
        try:
            outcome, *answer = waiting.result(PATIENCE_SECONDS)
        except TimeoutError as error:
            with self._lock:
                self._waiting.pop(number, None)
            raise StoreError("the coordinator does not answer") from error
        if outcome == "LOST":
            raise LeaseLostError("the coordinator has ended the lease")
        return answer


def _lost() -> StoreError:
    return StoreError("the coordinator is lost: it has the keys of all hosts")
