"""Opens the store that a URL names."""

from __future__ import annotations

from ..core.errors import UsageError
from .store import TTL_SECONDS, Store, Url


def open_store(url: str, job: str, ttl: float = TTL_SECONDS) -> Store:
    """Open the store of a URL, without connecting yet. ttl in seconds.

    Raises UsageError for a bad URL, StoreError if a package is missing.
    """
    parts = Url(url)
    if parts.scheme == "sqlite":
        from .sqlite import SqliteStore

        return SqliteStore(parts, job, ttl)
    if parts.scheme == "etcd":
        from .etcd import EtcdStore

        return EtcdStore(parts, job, ttl)
    raise UsageError(f"{url}: not a store (sqlite:///path/file.db, or etcd://host:port[,host:port...])")
