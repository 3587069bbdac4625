"""The activity of suspects' processes beside MPI: they compute, read, write, wait for storage, or do nothing. A rank
that does any of this is late, not hung.

A rank is its process with all its threads and descendants. Two looks are compared; a watch compares each look with the
previous one.

Invariants
 1. If something cannot be read (a process of another user or host), the activity is unknown. It does not count as doing
    nothing.
 2. Threads of manapy itself, and threads in an MPI call (`inside`), prove nothing: they wake up, or wait busily,
    whatever the program does.
 3. Reading does not disturb the job: only /proc, and only of suspects.
 4. A process counts as doing nothing only after QUIET seconds without activity: programs read slow pipes, and sleep
    between two tries.
 5. A process that is ready to run at two looks, and has not run between them, had no processor. This is not doing
    nothing.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...core.proc import STATE, stat_fields
from . import proc
from .proc import BUSY

INTERVAL = 0.5  # seconds between two looks, if there was none before
QUIET = 5.0  # seconds without anything done, from which on that is called nothing
STEP = 0.05  # seconds: what a process waits for is seen only at the moment of a look
RUNS = 1e-4  # of a processor: less is the heartbeat of some library, if the main thread has not run at all
OWN = ("manapy-control", "manapy-worker")  # names of threads
NOTHING = ""

COMPUTES, READS, WRITES, STORAGE, MOVES = "computes", "reads", "writes", "waits for storage", "runs now and then"
READY = "waits for a processor"


@dataclass(frozen=True)
class Suspect:
    """A process, and its threads that are in an MPI call."""

    pid: int
    start: int = 0
    inside: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Doing:
    """what: NOTHING, or what it was seen to do. still: for so many seconds it has done nothing."""

    what: str
    still: float = 0.0


@dataclass
class Sight:
    """Of each thread, by process and thread: processor time, ns, and bytes read and written; which are running or ready
    to run; and whether one waits for storage. main: the main thread, if it is in no MPI call."""

    at: float
    main: tuple[int, int] | None = None
    ran: dict[tuple[int, int], int] = field(default_factory=dict)
    read: dict[tuple[int, int], int] = field(default_factory=dict)
    written: dict[tuple[int, int], int] = field(default_factory=dict)
    ready: set[tuple[int, int]] = field(default_factory=set)
    stored: bool = False


@dataclass
class _Known:
    """Of one process: the look before, what it was last seen to do, and when, or since when it is looked at."""

    sight: Sight
    since: float
    what: str = NOTHING


class Activity:
    """Looks at suspects; each look tells what they have done since the one before, or in INTERVAL seconds."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], _Known] = {}

    def look(self, suspects: Mapping[int, Suspect]) -> dict[int, Doing]:
        """By rank; nothing of one whose process can't be looked at. Takes INTERVAL seconds at most, or until a process
        that was never seen to do anything has done nothing for QUIET seconds."""
        keys = {rank: (suspect.pid, suspect.start) for rank, suspect in suspects.items()}
        sights = {rank: sight for rank, suspect in suspects.items() if (sight := _sight(suspect)) is not None}
        fresh = {keys[rank] for rank in sights} - self._known.keys()
        self._known = {
            keys[rank]: self._known.get(keys[rank], _Known(sight, sight.at)) for rank, sight in sights.items()
        }
        stored = {rank for rank, sight in sights.items() if sight.stored}
        while any(self._undecided(keys[rank], sight, keys[rank] in fresh) for rank, sight in sights.items()):
            time.sleep(STEP)
            sights = {rank: sight for rank in sights if (sight := _sight(suspects[rank])) is not None}
            stored |= {rank for rank, sight in sights.items() if sight.stored}
        return {rank: self._compared(keys[rank], sight, rank in stored) for rank, sight in sights.items()}

    def _undecided(self, key: tuple[int, int], now: Sight, fresh: bool) -> bool:
        """Is it too early to say what it does?"""
        known = self._known[key]
        if fresh and now.at - known.sight.at < INTERVAL:
            return True
        return not (known.what or now.stored or now.at - known.since >= QUIET or done(known.sight, now))

    def _compared(self, key: tuple[int, int], now: Sight, stored: bool) -> Doing:
        known = self._known[key]
        if what := STORAGE if stored else done(known.sight, now):
            known.since, known.what = now.at, what
        known.sight = now
        still = now.at - known.since
        return Doing(known.what) if still < QUIET else Doing(NOTHING, still)


def done(before: Sight, now: Sight) -> str:
    """Between two looks. What a process or thread that is new has done counts whole, if another was there before."""
    took = max(now.at - before.at, 1e-3)
    share = sum(max(ran - before.ran.get(task, 0), 0) for task, ran in now.ran.items()) / 1e9 / took
    if share >= BUSY:
        return COMPUTES
    for what, old, new in ((WRITES, before.written, now.written), (READS, before.read, now.read)):
        if any(count > old.get(task, 0) for task, count in new.items()):
            return what
    woken = now.main is not None and now.ran.get(now.main, 0) > before.ran.get(now.main, now.ran.get(now.main, 0))
    if woken or share >= RUNS:
        return MOVES
    return READY if before.ready & now.ready else NOTHING


def _sight(suspect: Suspect) -> Sight | None:
    """None: it can't be looked at, or isn't there."""
    if proc.look(suspect.pid, suspect.start).state == proc.DEAD:
        return None
    main = suspect.pid, suspect.pid
    found = Sight(time.monotonic(), None if suspect.pid in suspect.inside else main)
    try:
        for pid in _family(suspect.pid):
            _add(found, pid, suspect.inside)
    except OSError:
        return None
    return found if found.ran or suspect.inside else None


def _add(found: Sight, pid: int, inside: Collection[int]) -> None:
    """One process. What can't be read of it ends the look, unless the process has just ended."""
    base = Path(f"/proc/{pid}")
    try:
        for task in (base / "task").iterdir():
            if int(task.name) in inside or (task / "comm").read_text().strip() in OWN:
                continue
            key = pid, int(task.name)
            found.ran[key] = int((task / "schedstat").read_text().split()[0])
            state = stat_fields(task)[STATE]
            found.stored |= state == "D"
            if state == "R":
                found.ready.add(key)
            counts = dict(line.split(": ") for line in (task / "io").read_text().splitlines())
            found.read[key] = int(counts["rchar"]) + int(counts["read_bytes"])
            found.written[key] = int(counts["wchar"]) + int(counts["write_bytes"])
    except (FileNotFoundError, ProcessLookupError):
        return


def _family(pid: int) -> Iterable[int]:
    """A process and its descendants."""
    todo = [pid]
    while todo:
        yield (at := todo.pop())
        for children in Path(f"/proc/{at}/task").glob("*/children"):
            try:
                todo += map(int, children.read_text().split())
            except (FileNotFoundError, ProcessLookupError):
                continue
