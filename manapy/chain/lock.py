"""A lock for one process at a time on all hosts. It also works where the file system has no locks, or only locks within
one host (Lustre's localflock).

    NAME            flock: sufficient if it works between hosts; immediate between processes of one host
    NAME.holder.N   who holds it: host, boot, process and its start, made by O_EXCL, touched every BEAT seconds;
                    read-only: released

Invariants
 1. The highest N counts. A process that finds it released, or its holder dead, makes N + 1. It holds the lock if there
    is no higher number then. So outdated information is harmless: of all processes that found the same holder dead,
    only one can make N + 1.
 2. The highest N never decreases: a file is removed only if there is a higher one.
 3. A holder is told when it has lost the lock (it was stopped for long and considered dead).
 4. A holder on this host is dead when its process is dead. A holder on another host is dead when its file has not been
    touched for STALE seconds of our clock; the other host's clock does not matter.
 5. The flock of a host that has crashed may stay for ever (NFS 3). So a flock that is refused does not count if the
    highest holder is one of another host, and dead. Time in which the file server did not answer does not count,
    because no process could touch a file then.
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
from ..core.proc import boot_id, start_of
from ..core.units import ago

BEAT = 3.0
STALE = 20.0
LOOK = 0.1  # seconds between looks
SILENT = 60.0  # by two clocks: more than STALE by as much as clocks usually differ


class BusyError(ManapyError):
    """Another process works on the chain, and may end later."""


def _words() -> bytes:
    """The description of this process as a holder."""
    return json.dumps(
        {
            "host": socket.gethostname(),
            "boot": boot_id(),
            "pid": os.getpid(),
            "start": start_of(os.getpid()),
            "since": int(time.time()),
        }
    ).encode()


class _Seen(NamedTuple):
    """The highest file as it was read. Its words are empty while they are being written. ``free``: it was released."""

    number: int = 0
    words: bytes = b""
    touched: int = 0  # nanoseconds, by the clock of the file server
    free: bool = True  # the state before the first holder


class _Files:
    """NAME.holder.N."""

    def __init__(self, path: Path) -> None:
        self._dir = path.parent
        self._prefix = f"{path.name}.holder."

    def __getitem__(self, number: int) -> Path:
        return self._dir / f"{self._prefix}{number}"

    def numbers(self) -> list[int]:
        """All numbers N, unordered. Raises OSError."""
        names = [name.removeprefix(self._prefix) for name in os.listdir(self._dir) if name.startswith(self._prefix)]
        return [int(name) for name in names if name.isdecimal()]

    def top(self) -> int:
        """The highest number, or 0. Raises OSError."""
        return max(self.numbers(), default=0)

    def highest(self) -> _Seen:
        """The highest file. It is opened, so that NFS asks the server.

        Raises OSError; FileNotFoundError: there is a higher one now.
        """
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
        except OSError:  # the server cannot be reached for a moment: we have lost nothing
            continue
        if not mine:
            if not released.is_set():
                lost.set()
            return


def _release(file: Path, released: threading.Event, flock: Any) -> None:
    released.set()
    with contextlib.suppress(OSError):  # it was lost and removed; or others will see that this process has ended
        file.chmod(0o400)
    flock.close()


class Lock:
    """The lock. It is held from acquire() to close(), or until this object is deleted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = _Files(path)
        self._number = 0
        self._flock: Any = None
        self._lost = threading.Event()
        self._seen, self._since = _Seen(), 0.0  # the holder's last state, and when we saw this state first ...
        self._looked = 0.0  # ... and last
        self._release: weakref.finalize[Any, Lock] | None = None

    @property
    def lost(self) -> bool:
        """Invariant 3."""
        return self._lost.is_set()

    def acquire(self, patience: float) -> None:
        """Wait for the lock for that many seconds. Raises BusyError, which names the holder; ManapyError."""
        deadline = time.monotonic() + patience
        self._flock = self._path.open("a")
        while not self._take_file(self._take_flock()):
            if time.monotonic() > deadline:
                self._flock.close()
                raise BusyError(f"{self._path.parent}: another manapy is at work on this chain{self._holder()}")
            time.sleep(LOOK)
        released = threading.Event()
        threading.Thread(target=_beat, args=(self._files, self._number, released, self._lost), daemon=True).start()
        self._release = weakref.finalize(self, _release, self._files[self._number], released, self._flock)

    def close(self) -> None:
        """Release the lock. Further calls do nothing."""
        if self._release is not None:
            self._release()

    @contextlib.contextmanager
    def held(self, patience: float) -> Iterator[None]:
        """Hold the lock inside a `with`."""
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

    def _take_file(self, has_flock: bool) -> bool:
        """Invariant 1. Without the flock, invariant 5."""
        try:
            found = self._files.highest()
        except OSError:  # look again
            return False
        if not (has_flock if found.free else self._is_dead(found, has_flock)):
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
            if self._files.top() > number:  # our observation was old
                self._files[number].unlink(missing_ok=True)
                return False
        except OSError as error:  # the disk is full, or the directory can't be read any more
            with contextlib.suppress(OSError):
                self._files[number].chmod(0o400)
            raise ManapyError(why(error, self._files[number])) from error
        with contextlib.suppress(OSError):  # the next holder removes them
            self._files.remove_below(number)
        self._number = number
        return True

    def _is_dead(self, found: _Seen, has_flock: bool) -> bool:
        """Invariant 4. Without the flock, only holders of other hosts can be dead (invariant 5)."""
        now = time.monotonic()
        if self._seen != found or (not has_flock and now - self._looked > STALE / 2):  # the server did not answer
            self._seen, self._since = found, now
        self._looked = now
        with contextlib.suppress(ValueError, KeyError, TypeError):
            holder = json.loads(found.words)
            if _is_here(holder):
                return has_flock and _has_ended(holder)
            return now - self._since > STALE
        return has_flock and now - self._since > STALE

    def _holder(self) -> str:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return f" ({_described(json.loads(self._files.highest().words))})"
        return ""


def _is_here(holder: dict[str, Any]) -> bool:
    """Is it a process of this host?"""
    return (holder["host"], holder["boot"]) == (socket.gethostname(), boot_id())


def _has_ended(holder: dict[str, Any]) -> bool:
    """Has a process of this host ended?"""
    return bool(start_of(int(holder["pid"])) != holder["start"])


def _described(holder: dict[str, Any]) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder["since"]))
    return f"process {holder['pid']} on {holder['host']}, since {since}"


def gone(path: Path) -> str:
    """What has become of the last holder, if it is gone: a phrase; else empty. This is one look, which changes nothing:
    so a holder on another host is judged by the clocks of the file server and of this host."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = _Files(path).highest()
        holder = json.loads(found.words)
        if found.free or (_is_here(holder) and _has_ended(holder)):
            return f"its manapy has ended ({_described(holder)})"
        silent = time.time() - found.touched / 1e9
        if not _is_here(holder) and silent > SILENT:
            return f"its manapy has given no sign of life for {ago(silent)} ({_described(holder)})"
    return ""
