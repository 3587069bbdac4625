"""Stores in which agents keep keys for the agents of other hosts: one interface, chosen by URL.

    sqlite:///path/to/file.db            a file, on one host or in a shared directory (sqlite.py)
    etcd://host[:port][,host[:port]...]  an etcd cluster (etcd.py)
    coordinator://host:port              the coordinator of a job of manapy-launch (central.py), which nobody has to
                                         choose

A store contains the keys of one job. Each key belongs to a lease, and each client of an agent has one lease. When the
client ends, its lease is revoked, and all its keys vanish with one request. When the agent or its host dies, nobody
keeps the lease alive any more, and it expires.

Invariants
 1. All methods block, and return within PATIENCE_SECONDS or a little more. They raise StoreError; its text is
    one line that names the store.
 2. A key belongs to the lease under which it was put last. delete_all() with another lease, and the end of another
    lease, do not touch it.
 3. get_all() never returns a key whose lease has ended. It does return keys between the death of their agent and the
    end of the lease.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, urlsplit

from ..core.errors import UsageError

TTL_SECONDS = 10.0  # default life of a lease that nobody keeps alive
PATIENCE_SECONDS = 5.0
KEYS_MAX = 64  # of one call; etcd takes 128 operations in a transaction

Lease = str


def central_url(host: str, port: int) -> str:
    """The URL of the store in a job's coordinator. Each run of a job has another one."""
    return f"coordinator://{host}:{port}"


class Store(ABC):
    """The keys of one job."""

    threads = 1  # number of threads that may call the store at the same time; with 1, always the same thread

    @abstractmethod
    def lease(self) -> Lease:
        """A new lease, which lives for the store's ttl."""

    @abstractmethod
    def keep(self, leases: Sequence[Lease]) -> set[Lease]:
        """Keep these leases alive for another ttl. Returns those that have ended meanwhile."""

    @abstractmethod
    def revoke(self, lease: Lease) -> None:
        """End a lease now; its keys vanish. Does nothing if it has ended."""

    @abstractmethod
    def put_all(self, lease: Lease, pairs: Mapping[str, bytes]) -> None:
        """Write all keys or none, also if others have written them before. At most KEYS_MAX. Raises LeaseLostError."""

    @abstractmethod
    def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values of keys, as the last put_all() of any agent has written them. At most KEYS_MAX."""

    @abstractmethod
    def delete_all(self, lease: Lease, keys: Sequence[str]) -> None:
        """Remove those keys that belong to this lease (invariant 2). At most KEYS_MAX."""

    def put(self, lease: Lease, key: str, value: bytes) -> None:
        """Write one key."""
        self.put_all(lease, {key: value})

    def get(self, key: str) -> bytes | None:
        """Return the value of one key."""
        return self.get_all([key])[0]

    def delete(self, lease: Lease, key: str) -> None:
        """Remove one key, if it belongs to this lease."""
        self.delete_all(lease, [key])

    @abstractmethod
    def close(self) -> None:
        """Close the store without revoking leases."""


class Url:
    """A parsed URL of a store. Each option must be taken once. A URL never contains a password."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            parts = urlsplit(text)
        except ValueError:  # not repeated, because there may be a password in it
            raise UsageError("a store's URL has no valid host: check its brackets and characters") from None
        self.scheme, self.place, self.path = parts.scheme, parts.netloc, parts.path
        if "@" in self.place:
            raise UsageError(
                "a store's URL must not contain a password, because everybody can read it: "
                "etcd://HOST?user=NAME&password-file=FILE"
            )
        self._options: dict[str, str] = {}
        try:
            for name, value in parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)):
                if name in self._options or not value:
                    raise ValueError(name)
                self._options[name] = value
        except ValueError:
            raise UsageError(f"{text}: options must be name=value, each once, separated by '&'") from None
        if parts.fragment:
            raise UsageError(f"{text}: nothing may follow '#'")

    def take(self, name: str) -> str | None:
        """Take the value of an option, if it is given."""
        return self._options.pop(name, None)

    def done(self, known: str) -> None:
        """Check that all options have been taken. Raises UsageError."""
        if self._options:
            raise UsageError(f"{self.text}: no option '{next(iter(self._options))}' ({self.scheme} has {known})")
