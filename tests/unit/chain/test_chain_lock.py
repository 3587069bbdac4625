"""Only one process holds the lock: on one host, between hosts, with and without locks of the file system."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from manapy.chain import lock
from manapy.core import proc
from manapy.chain.lock import Lock
from manapy.core.errors import ManapyError
from waiting import until

PATIENCE = 120.0  # seconds to wait for an event that must happen, on a very busy machine
HOLD = (
    "import sys; from pathlib import Path; from manapy.chain.lock import Lock; l = Lock(Path(sys.argv[1])); "
    "l.acquire(600); print('locked', flush=True); sys.stdin.read()"
)


@pytest.fixture(params=["locks", "locks of one host", "no locks"])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a lock, on a file system with or without locks."""

    def flock(fd: Any, operation: int) -> None:
        if request.param == "no locks":
            raise OSError(38, "Function not implemented")

    if request.param != "locks":
        monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(lock, "STALE", 0.6)
    monkeypatch.setattr(lock, "BEAT", 0.1)
    return tmp_path / "lock"


def numbers(path: Path) -> list[int]:
    """The numbers of all holders, past and present."""
    return [int(file.suffix[1:]) for file in path.parent.glob("lock.holder.*")]


def elsewhere(path: Path, **words: Any) -> Path:
    """A holder on another host, with the highest number."""
    file = path.with_name(f"lock.holder.{max(numbers(path), default=0) + 1}")
    file.write_text(json.dumps({"host": "node7", "boot": "b", "pid": 1, "start": 1, "since": 0, "token": "x", **words}))
    return file


def test_of_two(path: Path) -> None:
    first, second = Lock(path), Lock(path)
    first.acquire(1)
    with pytest.raises(ManapyError, match=f"another manapy is at work on this chain \\(process {os.getpid()} on "):
        second.acquire(1)
    first.close()
    second.acquire(1)
    second.close()
    assert numbers(path) == [2] and path.with_name("lock.holder.2").stat().st_mode & 0o777 == 0o400, "not given back"


def test_holder_that_was_killed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock notices that it is dead, however much time has passed."""
    monkeypatch.setattr(lock, "STALE", 10 * PATIENCE)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "locked\n"
        with pytest.raises(ManapyError, match=f"process {other.pid} on"):
            Lock(path).acquire(1)
        other.kill()
    Lock(path).acquire(PATIENCE)


class Clock:
    """Stands in for the module time. It advances when a thread sleeps, and then calls ``beat``, if there is one."""

    localtime, strftime, time = time.localtime, time.strftime, time.time

    def __init__(self, beat: Callable[[float], None]) -> None:
        self.now = 0.0
        self.beat: Callable[[float], None] | None = beat

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.beat is not None:
            self.beat(self.now)


def test_living_holder_elsewhere(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It touches its file, and its clock is years behind."""
    file = elsewhere(path)
    clock = Clock(lambda now: os.utime(file, (now, now)))
    monkeypatch.setattr(lock, "time", clock)
    with pytest.raises(ManapyError, match="process 1 on node7"):
        Lock(path).acquire(100 * lock.STALE)
    clock.beat = None
    with pytest.raises(ManapyError, match="process 1 on node7"):
        Lock(path).acquire(lock.STALE / 2)
    Lock(path).acquire(2 * lock.STALE)


FLOCK = (
    "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print('locked', flush=True);"
    " sys.stdin.read()"
)


@pytest.fixture
def flocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A lock whose flock another process has, as the file server thinks that a crashed host has it (NFS 3)."""
    path = tmp_path / "lock"
    monkeypatch.setattr(lock, "BEAT", 0.1)
    with subprocess.Popen(
        [sys.executable, "-c", FLOCK, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "locked\n"
        yield path
        other.kill()


def test_flock_that_stays_after_a_crash(flocked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = elsewhere(flocked)
    clock = Clock(lambda now: os.utime(file, (now, now)))
    monkeypatch.setattr(lock, "time", clock)
    with pytest.raises(ManapyError, match="process 1 on node7"):
        Lock(flocked).acquire(3 * lock.STALE)
    clock.beat = None
    with pytest.raises(ManapyError, match="process 1 on node7"):
        Lock(flocked).acquire(lock.STALE / 2)
    mine = Lock(flocked)
    mine.acquire(2 * lock.STALE)
    with pytest.raises(ManapyError, match=f"process {os.getpid()} on"):
        Lock(flocked).acquire(3 * lock.STALE)
    mine.close()


def test_flock_while_the_file_server_does_not_answer(flocked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder could not touch its file either."""
    elsewhere(flocked)
    clock = Clock(lambda _: None)
    real, looks = lock._Files.highest, []

    def slow(files: Any) -> Any:
        looks.append(clock.now)
        clock.now += lock.STALE
        return real(files)

    monkeypatch.setattr(lock, "time", clock)
    monkeypatch.setattr(lock._Files, "highest", slow)
    with pytest.raises(ManapyError, match="process 1 on node7"):
        Lock(flocked).acquire(5 * lock.STALE)
    assert len(looks) > 4


@pytest.mark.parametrize("kind", ["of this host", "released"])
def test_flock_that_counts(flocked: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Somebody has just released the lock, or is about to write its file."""
    here = {"host": socket.gethostname(), "boot": proc.boot_id(), "pid": 2**22 + 1} if kind == "of this host" else {}
    file = elsewhere(flocked, **here)
    file.chmod(0o600 if here else 0o400)
    monkeypatch.setattr(lock, "time", Clock(lambda _: None))
    with pytest.raises(ManapyError, match="another manapy is at work"):
        Lock(flocked).acquire(3 * lock.STALE)


def test_holder_that_is_taken_for_dead_is_told(path: Path) -> None:
    first = Lock(path)
    first.acquire(1)
    elsewhere(path)
    until(lambda: first.lost, "the loss")
    first.close()
    assert first.lost and numbers(path) == [1, 2] and path.with_name("lock.holder.2").stat().st_mode & 0o200


def test_holder_that_cannot_read_for_a_moment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the lock, and goes on touching its file."""
    first = Lock(path)
    first.acquire(1)
    file, listdir = path.with_name("lock.holder.1"), os.listdir
    failed = threading.Event()

    def fail(directory: Any) -> list[str]:
        if directory != path.parent or failed.is_set():
            return listdir(directory)
        failed.set()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "listdir", fail)
    assert failed.wait(5)
    touched, deadline = file.stat().st_mtime_ns, time.monotonic() + 5
    while file.stat().st_mtime_ns == touched and time.monotonic() < deadline:
        time.sleep(0.01)
    assert file.stat().st_mtime_ns > touched and not first.lost
    first.close()


def test_full_disk(path: Path) -> None:
    """One line says so, and no file remains that looks like a holder."""
    lines = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY)); {HOLD}"
    command = [sys.executable, "-c", lines, str(path)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert f"ManapyError: {path}.holder.1: File too large" in done.stderr
    Lock(path).acquire(lock.STALE / 2)


def test_many_that_find_a_dead_one(path: Path) -> None:
    """One process at a time gets the lock, whichever moves the dead holder's file away."""
    elsewhere(path)
    inside: list[int] = []

    def work() -> None:
        with Lock(path).held(PATIENCE):
            inside.append(1)
            assert len(inside) == 1
            time.sleep(0.02)
            inside.clear()
            done.append(1)

    done: list[int] = []
    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 6
    assert len(numbers(path)) == 1, "files of earlier holders are left"


def test_many_that_have_looked_long_ago(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take the lock if it is in the state that they saw, however many processes have held it since."""
    look = lock._Files.highest
    random.seed(20261125)

    def late(files: Any) -> Any:
        found = look(files)
        time.sleep(random.random() * 0.05)
        return found

    monkeypatch.setattr(lock._Files, "highest", late)
    monkeypatch.setattr(lock, "LOOK", 0.001)
    monkeypatch.setattr(lock, "STALE", PATIENCE)
    elsewhere(path, host=socket.gethostname(), boot=proc.boot_id(), pid=2**22 + 1)  # no process has that number
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(10):
            with Lock(path).held(PATIENCE):
                inside.append(1)
                most.append(len(inside))
                time.sleep(random.random() * 0.02)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 80


def test_files_of_earlier_holders_that_stay(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hinder nobody: the next holder removes them."""
    with Lock(path).held(0):
        pass

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(lock._Files, "remove_below", refuse)
        with Lock(path).held(0), pytest.raises(ManapyError, match="another manapy is at work"):
            Lock(path).acquire(0)
    with Lock(path).held(0):
        assert len(lock._Files(path).numbers()) == 1
