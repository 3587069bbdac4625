"""Keys in one SQLite file: `sqlite:///path/file.db[?sync=off]`, the default on one host, or in a directory that the
hosts share.

Several processes and hosts may use a file at the same time if the file system's locks (POSIX fcntl) work: on local file
systems, on NFS with its lock service, on Lustre mounted with `flock`. WAL mode is never used: it keeps its index in
memory shared by mmap, which hosts do not share (sqlite.org/wal.html: "all processes using a database must be on the
same host"). The rollback journal needs only locks.

sync=off leaves out fsync, and is ten times faster on a disk. It is for a file that only one host uses: after a crash of
this host nobody needs the file.

Invariants
 1. A process compares times only with its own clock. A lease has a counter, its beat, which its agent increases.
    Another agent that has seen no change for the lease's ttl, by its own monotonic clock, ends the lease. So the hosts'
    clocks may differ, and an agent that has just started gives every lease a full ttl.
 2. Each method is one transaction, and one that writes takes the write lock at its start (BEGIN IMMEDIATE), so that it
    never fails half-way because the lock is missing.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from ..core.errors import LeaseLostError, StoreError, UsageError
from .store import PATIENCE_SECONDS, Lease, Store, Url

FORMAT = 1  # PRAGMA user_version
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS lease (id TEXT PRIMARY KEY, job TEXT NOT NULL, ttl REAL NOT NULL, \
beat INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS pair (job TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, lease TEXT NOT NULL, \
PRIMARY KEY (job, key)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS pair_lease ON pair (lease);
PRAGMA user_version = {FORMAT};
"""

T = TypeVar("T")


class SqliteStore(Store):
    """One file."""

    def __init__(self, url: Url, job: str, ttl: float) -> None:
        if url.place or not url.path.startswith("/") or url.path.endswith("/"):
            raise UsageError(f"{url.text}: a SQLite store is sqlite:///absolute/path/file.db")
        sync = url.take("sync") or "on"
        url.done("sync")
        if sync not in ("on", "off"):
            raise UsageError(f"{url.text}: sync is on or off, not '{sync}'")
        self.path = Path(url.path)
        self._job, self._ttl, self._sync = job, ttl, sync == "on"
        self._db: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None  # device and inode of what is open
        self._seen: dict[Lease, tuple[int, float]] = {}  # beat, and when it was first seen (monotonic)

    def lease(self) -> Lease:
        def work(db: sqlite3.Connection) -> Lease:
            made = os.urandom(16).hex()
            db.execute("INSERT INTO lease VALUES (?, ?, ?, 0)", (made, self._job, self._ttl))
            return made

        return self._run(work)

    def keep(self, leases: Sequence[Lease]) -> set[Lease]:
        """Keep leases alive, and end those that others no longer keep (invariant 1)."""

        def work(db: sqlite3.Connection) -> set[Lease]:
            lost = {
                lease
                for lease in leases
                if db.execute("UPDATE lease SET beat = beat + 1 WHERE id = ?", (lease,)).rowcount == 0
            }
            self._expire(db)
            return lost

        return self._run(work)

    def _expire(self, db: sqlite3.Connection) -> None:
        now, before = time.monotonic(), self._seen
        self._seen = {}
        for lease, ttl, beat in db.execute("SELECT id, ttl, beat FROM lease").fetchall():
            last, since = before.get(lease, (None, now))
            if beat == last and now - since >= ttl:
                _end(db, lease)
            else:
                self._seen[lease] = (beat, since if beat == last else now)

    def revoke(self, lease: Lease) -> None:
        self._run(lambda db: _end(db, lease))

    def put_all(self, lease: Lease, pairs: Mapping[str, bytes]) -> None:
        def work(db: sqlite3.Connection) -> None:
            if db.execute("SELECT 1 FROM lease WHERE id = ?", (lease,)).fetchone() is None:
                raise LeaseLostError(f"{self.path}: the lease has ended")
            rows = ((self._job, key, value, lease) for key, value in pairs.items())
            db.executemany(
                (
                    "INSERT INTO pair VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value, lease = "
                    "excluded.lease"
                ),
                rows,
            )

        self._run(work)

    def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        def work(db: sqlite3.Connection) -> list[bytes | None]:
            rows = (
                db.execute("SELECT value FROM pair WHERE job = ? AND key = ?", (self._job, key)).fetchone()
                for key in keys
            )
            return [None if row is None else bytes(row[0]) for row in rows]

        return self._run(work, "DEFERRED")

    def delete_all(self, lease: Lease, keys: Sequence[str]) -> None:
        rows = [(self._job, key, lease) for key in keys]
        self._run(lambda db: db.executemany("DELETE FROM pair WHERE job = ? AND key = ? AND lease = ?", rows))

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _run(self, work: Callable[[sqlite3.Connection], T], begin: str = "IMMEDIATE") -> T:
        """Run one transaction. A file that was removed is recreated."""
        try:
            if self._db is not None and self._identity() != self._file:
                self.close()
            if self._db is None:
                self._db = self._open()
            with _transaction(self._db, begin):
                return work(self._db)
        except (sqlite3.Error, OSError) as error:
            with contextlib.suppress(sqlite3.Error):
                self.close()
            raise StoreError(f"{self.path}: {_reason(error)}") from error

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _open(self) -> sqlite3.Connection:
        # other users must not read remote keys of memory
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._file = self._identity()
        db = sqlite3.connect(self.path, timeout=PATIENCE_SECONDS, isolation_level=None)
        try:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version not in (0, FORMAT):
                raise StoreError(f"{self.path}: a store of format {version}, this manapy has format {FORMAT}")
            if (mode := db.execute("PRAGMA journal_mode = DELETE").fetchone()[0]) != "delete":
                raise StoreError(f"{self.path}: its journal mode is {mode}, and another process keeps it so")
            db.execute(f"PRAGMA synchronous = {'NORMAL' if self._sync else 'OFF'}")
            if version == 0:
                with _transaction(db, "IMMEDIATE"):
                    for statement in filter(str.strip, _SCHEMA.split(";")):
                        db.execute(statement)
        except BaseException:
            db.close()
            raise
        return db


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection, begin: str) -> Iterator[None]:
    db.execute(f"BEGIN {begin}")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def _end(db: sqlite3.Connection, lease: Lease) -> None:
    db.execute("DELETE FROM pair WHERE lease = ?", (lease,))
    db.execute("DELETE FROM lease WHERE id = ?", (lease,))


def _reason(error: Exception) -> str:
    text = str(error)
    if "locked" in text:
        return "locked for too long: another process holds it, or locks don't work on this file system"
    if "unable to open" in text:
        return "cannot be opened or created: does its directory exist, and is it writable?"
    return text
