"""One process at a time, on whichever host: a lock that holds also where the file system's locks are missing or those of one host (Lustre's localflock).

    NAME          flock: enough where it works for all hosts, and at once between processes of one
    NAME.holder   who holds it: host, boot, process and its start, made by O_EXCL, touched every BEAT seconds

Invariants
 1. Who holds it has made NAME.holder, and finds its own words in it. It is told when that isn't so any more (it was stopped for long, and taken for dead).
 2. A holder of this host is dead when its process is; of another host when its file hasn't been touched for STALE seconds of ours, whatever its clock says.
 3. Only the file of a dead one is taken away: what was moved aside in a race, and is another's, is put back.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..ckpt.errors import ManapyError

BEAT = 3.0
STALE = 20.0
LOOK = 0.1  # seconds between looks


def _start_of(pid: int) -> int | None:
    """When a process of this host has begun, in ticks; None: it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _read(file: Path) -> tuple[bytes, int]:
    """Its words, and when they were touched last. Opening it makes NFS ask the server."""
    try:
        with file.open("rb") as stream:
            return stream.read(), os.fstat(stream.fileno()).st_mtime_ns
    except OSError:
        return b"", 0


def _beat(file: Path, words: bytes, released: threading.Event, lost: threading.Event) -> None:
    while not released.wait(BEAT):
        try:
            found = file.read_bytes()
        except FileNotFoundError:
            found = b""
        except OSError:  # a server that is away for a moment has taken nothing from us
            continue
        if found != words:
            if not released.is_set():
                lost.set()
            return
        with contextlib.suppress(OSError):
            os.utime(file)


def _release(file: Path, words: bytes, released: threading.Event, flock: Any) -> None:
    released.set()
    if _read(file)[0] == words:
        file.unlink(missing_ok=True)
    flock.close()


class Lock:
    """Held from acquire() to close(), or as long as there is this object."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.with_name(f"{path.name}.holder")
        self._words = b""
        self._flock: Any = None
        self._lost = threading.Event()
        self._seen: tuple[bytes, int, float] = (b"", 0, 0.0)  # a foreign holder's words, when it touched them, when we saw that
        self._release: weakref.finalize[Any, Lock] | None = None

    @property
    def lost(self) -> bool:
        """Invariant 1."""
        return self._lost.is_set()

    def acquire(self, patience: float) -> None:
        """Within so many seconds. Raises ManapyError, which says who holds it."""
        deadline = time.monotonic() + patience
        self._flock = self._path.open("a")
        while not (self._take_flock() and self._take_file()):
            if time.monotonic() > deadline:
                self._flock.close()
                raise ManapyError(f"{self._path.parent}: another manapy is at work on this chain{self._holder()}")
            time.sleep(LOOK)
        released = threading.Event()
        threading.Thread(target=_beat, args=(self._file, self._words, released, self._lost), daemon=True).start()
        self._release = weakref.finalize(self, _release, self._file, self._words, released, self._flock)

    def close(self) -> None:
        """Any number of times."""
        if self._release is not None:
            self._release()

    @contextlib.contextmanager
    def held(self, patience: float) -> Iterator[None]:
        """For a while."""
        self.acquire(patience)
        try:
            yield
        finally:
            self.close()

    # ---- this host

    def _take_flock(self) -> bool:
        try:
            fcntl.flock(self._flock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass  # no locks on this file system
        return True

    # ---- all hosts

    def _take_file(self) -> bool:
        here = {"host": socket.gethostname(), "boot": _boot(), "pid": os.getpid(), "start": _start_of(os.getpid()), "since": int(time.time()), "token": os.urandom(8).hex()}
        words = json.dumps(here).encode()
        try:
            fd = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            if self._is_dead():
                self._take_away()
            return False
        try:
            with open(fd, "wb") as stream:
                stream.write(words)
        except OSError as error:  # the disk is full
            self._file.unlink(missing_ok=True)
            raise ManapyError(f"{self._file}: {error.strerror}") from error
        self._words = words
        return True

    def _is_dead(self) -> bool:
        """Invariant 2."""
        words, touched = _read(self._file)
        if self._seen[:2] != (words, touched):
            self._seen = words, touched, time.monotonic()
        with contextlib.suppress(ValueError, KeyError, TypeError):
            holder = json.loads(words)
            if (holder["host"], holder["boot"]) == (socket.gethostname(), _boot()):
                return _start_of(int(holder["pid"])) != holder["start"]
        return time.monotonic() - self._seen[2] > STALE

    def _take_away(self) -> None:
        """Invariant 3."""
        aside = self._file.with_name(f"{self._file.name}.{os.urandom(4).hex()}")
        with contextlib.suppress(OSError):
            os.rename(self._file, aside)
            if aside.read_bytes() != self._seen[0]:
                with contextlib.suppress(FileExistsError):
                    os.link(aside, self._file)
            aside.unlink()

    def _holder(self) -> str:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            holder = json.loads(_read(self._file)[0])
            return f" (process {holder['pid']} on {holder['host']}, since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(holder['since']))})"
        return ""
