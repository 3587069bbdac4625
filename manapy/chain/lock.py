"""One process at a time, on whichever host: a lock that holds also where the file system's locks are missing or those of one host (Lustre's localflock).

    NAME            flock: enough where it works for all hosts, and at once between processes of one
    NAME.holder.N   who holds it: host, boot, process and its start, made by O_EXCL, touched every BEAT seconds; read-only: it was given back

Invariants
 1. The highest N counts. Whoever finds it given back, or its holder dead, makes N + 1 and holds the lock if there is none higher then. So it doesn't
    matter how long ago somebody has looked: of all that found the same holder dead one makes N + 1.
 2. The highest N never goes down: a file is removed only where a higher one is.
 3. A holder is told when the lock isn't its own any more (it was stopped for long, and taken for dead).
 4. A holder of this host is dead when its process is; of another host when its file hasn't been touched for STALE seconds of ours, whatever its clock says.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import stat
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import ManapyError, why
from ..core.proc import START, stat_fields

BEAT = 3.0
STALE = 20.0
LOOK = 0.1  # seconds between looks


def _start_of(pid: int) -> int | None:
    """When a process of this host has begun, in ticks; None: it is gone."""
    try:
        return int(stat_fields(Path(f"/proc/{pid}"))[START])
    except (OSError, IndexError, ValueError):
        return None


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _words() -> bytes:
    """Of this process, as a holder."""
    return json.dumps(
        {"host": socket.gethostname(), "boot": _boot(), "pid": os.getpid(), "start": _start_of(os.getpid()), "since": int(time.time())}
    ).encode()


class _Seen(NamedTuple):
    """The highest file as it was once. Its words are empty while they are being written; ``free``: it was given back."""

    number: int = 0
    words: bytes = b""
    touched: int = 0  # nanoseconds of the file's server
    free: bool = True  # as if before there was any


class _Files:
    """NAME.holder.N."""

    def __init__(self, path: Path) -> None:
        self._dir = path.parent
        self._prefix = f"{path.name}.holder."

    def __getitem__(self, number: int) -> Path:
        return self._dir / f"{self._prefix}{number}"

    def numbers(self) -> list[int]:
        """Not in order. Raises OSError."""
        names = [name.removeprefix(self._prefix) for name in os.listdir(self._dir) if name.startswith(self._prefix)]
        return [int(name) for name in names if name.isdecimal()]

    def top(self) -> int:
        """The highest number; 0: there is none. Raises OSError."""
        return max(self.numbers(), default=0)

    def highest(self) -> _Seen:
        """Opening it makes NFS ask the server. Raises OSError; FileNotFoundError: there is a higher one by now."""
        number = self.top()
        if number == 0:
            return _Seen()
        with self[number].open("rb") as stream:
            status = os.fstat(stream.fileno())
            return _Seen(number, stream.read(), status.st_mtime_ns, not status.st_mode & stat.S_IWUSR)

    def remove_below(self, number: int) -> None:
        """Invariant 2."""
        for lower in self.numbers():
            if lower < number:
                self[lower].unlink(missing_ok=True)


def _beat(files: _Files, number: int, released: threading.Event, lost: threading.Event) -> None:
    while not released.wait(BEAT):
        try:
            mine = files.top() == number
            if mine:
                os.utime(files[number])
        except FileNotFoundError:
            mine = False
        except OSError:  # a server that is away for a moment has taken nothing from us
            continue
        if not mine:
            if not released.is_set():
                lost.set()
            return


def _release(file: Path, released: threading.Event, flock: Any) -> None:
    released.set()
    with contextlib.suppress(OSError):  # it was lost, and removed; or it is seen to be dead when this process is
        file.chmod(0o400)
    flock.close()


class Lock:
    """Held from acquire() to close(), or as long as there is this object."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = _Files(path)
        self._number = 0
        self._flock: Any = None
        self._lost = threading.Event()
        self._seen, self._since = _Seen(), 0.0  # the holder as it was last, and when we saw that first
        self._release: weakref.finalize[Any, Lock] | None = None

    @property
    def lost(self) -> bool:
        """Invariant 3."""
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
        threading.Thread(target=_beat, args=(self._files, self._number, released, self._lost), daemon=True).start()
        self._release = weakref.finalize(self, _release, self._files[self._number], released, self._flock)

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
        """Invariant 1."""
        try:
            found = self._files.highest()
        except OSError:  # to be looked at again
            return False
        if not (found.free or self._is_dead(found)):
            return False
        number = found.number + 1
        try:
            fd = os.open(self._files[number], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return False
        except OSError as error:
            raise ManapyError(why(error)) from error
        try:
            with open(fd, "wb") as stream:
                stream.write(_words())
            if self._files.top() > number:  # our look was long ago
                self._files[number].unlink(missing_ok=True)
                return False
            self._files.remove_below(number)
        except OSError as error:  # the disk is full
            with contextlib.suppress(OSError):
                self._files[number].chmod(0o400)
            raise ManapyError(why(error, self._files[number])) from error
        self._number = number
        return True

    def _is_dead(self, found: _Seen) -> bool:
        """Invariant 4."""
        if self._seen != found:
            self._seen, self._since = found, time.monotonic()
        with contextlib.suppress(ValueError, KeyError, TypeError):
            holder = json.loads(found.words)
            if (holder["host"], holder["boot"]) == (socket.gethostname(), _boot()):
                return _start_of(int(holder["pid"])) != holder["start"]
        return time.monotonic() - self._since > STALE

    def _holder(self) -> str:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            holder = json.loads(self._files.highest().words)
            return f" (process {holder['pid']} on {holder['host']}, since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(holder['since']))})"
        return ""
