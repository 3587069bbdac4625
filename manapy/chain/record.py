"""A chain's directory: what runs, and everything that has happened so far.

    manapy-chain-<id>/
      chain.json       what runs and how
      history.jsonl    one event per line, appended; the only memory between attempts
      supervisor.lock  held by the supervisor (lock.py)
      step-001/ ...    job directory of each manapy-launch in the user's script (or where its --dir says)

Events, all with `time` (seconds since the epoch) and `attempt` (1, 2, 3 ...):
    attempt     id nodes deadline(or null) output      the script begins, once more; id: of the Slurm job, or empty;
                                                       output: the file to which the job writes, or empty
    step        step argv ranks dir verdict path code  a manapy-launch asked what to do (steps.py); again after the
                                                       ranks have found the checkpoint of the answer damaged. The
                                                       first event of a step also has `had`: the highest number of a
                                                       checkpoint in dir then; those of the step have higher ones;
                                                       and `was`: when the job began that job.json described then, or 0
    checkpoint  path seconds bytes cause               published
    failed      cause reason seconds                   a checkpoint failed
    skipped     path reason                            a checkpoint is damaged, or shows a hang, and is not used
    note        text                                   a remark for the user
    running     step since                             all ranks of a step run; since: the time
    verdict     state cause rank call sentence         a verdict on a job by its watch (watching.py)
    withdrawn   state cause rank call sentence         this verdict no longer holds
    hung        dir sentence since evidence place host the attempt ends because of a verdict (remedy.py)
    ending      reason                                 the attempt is ended before its deadline, and is being saved
    end         how code reason noticed                the attempt is over (attempt.Outcome); noticed: when a crash
                                                       was, or 0; late: true if the next attempt has recorded it
    finished    code                                   the chain is over
    moved       away to left                           the next attempt runs on other nodes (spares.py); left: spares
    excluded    nodes                                  later allocations do not use these nodes (batch.py)
    successor   id                                     the Slurm job that continues after this one
    stopped     reason again                           the chain gave up, or was told to; again: the command that
                                                       continues it

Invariants
 1. An event is one line, written by one write to a file opened for appending, and durable when append() returns. A line
    cut off by a crash is ignored. If the disk is full, this process keeps the event in memory and writes it with the
    next one, unless the file has it by then: no event is written twice. ensure() is for events that the chain cannot do
    without.
 2. An operation that reads the history and then adds to it holds the lock.
 3. An error of the file system in reading (ESTALE, EIO) matters only to a process that has read no events yet.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..ckpt.store import known, own
from ..core.errors import ManapyError, explained, why
from ..core.files import reading, replace_file, those_with, write_record
from .lock import Lock

FORMAT = 1
SUPERVISOR_LOCK = "supervisor.lock"
AGAIN = 0.5  # seconds between attempts to write events
LOCK_WAIT = 300.0  # seconds; another step may read the headers of many images under the lock
Event = dict[str, Any]


class Chain:
    """A chain's directory. ``record`` is chain.json as it is."""

    def __init__(self, directory: Path, record: dict[str, Any]) -> None:
        self.dir = directory
        self.record = record
        self._unwritten: list[Event] = []
        self._tried: int | None = None  # size of history.jsonl before these were written, if that has failed
        self._read: tuple[object, list[Event]] = (None, [])  # state of history.jsonl when it was read, and its events

    def write(self) -> None:
        """Replace chain.json."""
        write_record(self.dir / "chain.json", self.record)

    def events(self, kind: str | None = None, attempt: int | None = None) -> list[Event]:
        """All events, or those of a kind and an attempt, oldest first."""
        there = self._history()
        return [
            event
            for event in [*there, *(event for event in self._unwritten if event not in there)]
            if kind in (None, event["event"]) and attempt in (None, event["attempt"])
        ]

    def steps(self, attempt: int | None = None) -> list[Event]:
        """The steps of all attempts, or of one, in the order in which they asked first; each with its last answer."""
        found = {(event["attempt"], event["step"]): event for event in self.events("step", attempt)}
        return list(found.values())

    def _history(self) -> list[Event]:
        """The file's events. This is called several times per second, so the file is read again only if it has
        grown. It is opened each time, so that NFS asks the server. If it cannot be read now, these are the events of
        the last time (invariant 3)."""
        try:
            with (self.dir / "history.jsonl").open("rb") as stream:
                status = os.fstat(stream.fileno())
                state = (status.st_ino, status.st_size, status.st_mtime_ns)
                data = stream.read() if self._read[0] != state else b""
        except FileNotFoundError:
            return []
        except OSError:
            if self._read[0] is None:
                raise
            return self._read[1]
        if self._read[0] != state:
            found = []
            for line in data.splitlines():
                with contextlib.suppress(ValueError, AttributeError):  # invariant 1
                    event = json.loads(line)
                    found += [event] if {"event", "attempt"} <= event.keys() else []
            self._read = (state, found)
        return self._read[1]

    def append(self, kind: str, attempt: int, **fields: Any) -> Event:
        """Add an event (invariant 1)."""
        event = {"time": int(time.time() * 1000) / 1000, "event": kind, "attempt": attempt, **fields}
        self._unwritten.append(event)
        with contextlib.suppress(OSError):
            self._write_events()
        return event

    def ensure(self, seconds: float) -> None:
        """Write the events that could not be written yet: try it for that many seconds. Raises ManapyError."""
        deadline = time.monotonic() + seconds
        while self._unwritten:
            try:
                self._write_events()
            except OSError as error:
                if time.monotonic() > deadline:
                    path = self.dir / "history.jsonl"
                    raise ManapyError(f"the chain's history cannot be written ({why(error, path)})") from error
                time.sleep(AGAIN)

    def _write_events(self) -> None:
        fd = os.open(self.dir / "history.jsonl", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(fd).st_size
            lines = [json.dumps(event).encode() for event in self._unwritten]
            if self._tried is None:
                self._tried = size
            else:
                there = os.pread(fd, max(size - self._tried, 0), self._tried).splitlines()
                lines = [line for line in lines if line not in there]
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            data = (b"\n" if torn else b"") + b"".join(line + b"\n" for line in lines)
            # readers ignore the torn line, and it is written again
            if lines and os.write(fd, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(fd)
            self._unwritten.clear()
            self._tried = None
        finally:
            os.close(fd)

    def place(self, name: str, text: str, say: Callable[[str], None]) -> Path:
        """Replace a file that only this host reads, in the directory of the chain. If that is impossible (the disk is
        full), write it to the directory for temporary files, and say so. Returns its path. Raises ManapyError."""
        path = self.dir / name
        try:
            replace_file(path, text.encode())
        except OSError as error:
            import tempfile  # imported here: it costs `manapy status` 4 ms

            with explained(ManapyError):
                instead = Path(tempfile.mkdtemp(prefix="manapy-")) / name
                instead.write_text(text)
            say(f"{instead} is used instead of {path} ({why(error, path)})")
            return instead
        return path

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Let only one process at a time do this (invariant 2). Raises ManapyError if another one takes too long."""
        with Lock(self.dir / "lock").held(LOCK_WAIT):
            yield

    def over(self) -> Event | None:
        """The event that ended the chain, if it has ended: `finished`, or `stopped` with no attempt since."""
        for event in reversed(self.events()):
            if event["event"] in ("finished", "stopped"):
                return event
            if event["event"] == "attempt":
                return None
        return None

    def attempts(self) -> int:
        """The number of attempts that have begun."""
        return len({event["attempt"] for event in self.events("attempt")})


def create(directory: Path, record: dict[str, Any]) -> Chain:
    """Make a chain's directory (it may exist, without a chain). Raises ManapyError, also if others may write to it:
    they could replace what is run as this user."""
    record = {"format": FORMAT, "created": round(time.time(), 3), **record}
    with explained(ManapyError, directory, "cannot make the chain's directory "):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _demand_own(directory)
        if (directory / "chain.json").exists():
            raise ManapyError(f"{directory} already contains a chain")
        Chain(directory, record).write()
    known.note(directory)
    return Chain(directory.resolve(), record)


def is_chain(directory: Path) -> bool:
    """Is it a chain's directory?"""
    return (directory / "chain.json").is_file()


def chains_in(directory: Path) -> list[Path]:
    """The directories of chains directly inside a directory; none if it cannot be looked at. In the directory of a job
    array, and in that of its chain, these are the chains of its tasks."""
    with contextlib.suppress(OSError):
        return those_with("chain.json", directory.iterdir())
    return []


def read(directory: Path) -> Chain:
    """Raises ManapyError."""
    with reading(directory / "chain.json", FORMAT, ManapyError, "not a chain's file, or damaged") as record:
        if not (
            isinstance(record["command"], list)
            and isinstance(record["kind"], str)
            and isinstance(record["cwd"], str)
            and isinstance(record["created"], (int, float))
        ):
            raise TypeError("its kind, command, directory or date")
    return Chain(directory.resolve(), record)


def read_own(directory: Path) -> Chain:
    """The same of a chain whose command is to be run: nobody else may have written it, nor its script. Raises
    ManapyError."""
    _demand_own(directory)
    _demand_own(directory / "chain.json")
    chain = read(directory)
    if chain.record["kind"] == "slurm":  # its command is a file of the chain
        _demand_own(Path(chain.record["command"][0]))
    return chain


def _demand_own(path: Path) -> None:
    if strange := own.complaint(path):
        raise ManapyError(strange)


def find(which: str | None) -> Chain:
    """The chain with this directory or name (ckpt/store/known.py); without one, the newest chain here. Raises
    ManapyError."""
    if which is not None:
        if (directory := known.find(which, is_chain)) is not None:
            return read(directory)
        if inside := chains_in(Path(which)):
            raise ManapyError(f"{which}: no chain, but some are in it: name one, such as {min(inside)}")
        raise ManapyError(
            f"{which}: no such chain: neither its directory nor its name (`manapy run` and `manapy slurm chain` make "
            "one)"
        )
    found = [read(path) for path in chains_in(Path())]
    if not found:
        raise ManapyError(f"no chain in {Path().resolve()}: name its directory")
    return max(found, key=lambda chain: float(chain.record["created"]))
