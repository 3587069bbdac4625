"""The activity of suspects' processes besides MPI: they compute, read, write, wait for storage, or do nothing. A rank
that does any of the former is late, not hung.

A rank is its process with all its threads and descendants. Two looks are compared; a watch compares each look with the
previous one.

Invariants
 1. If something cannot be read (a process of another user or host), the activity is unknown. It does not count as doing
    nothing.
 2. Threads of manapy itself, and threads in an MPI call (`inside`), prove nothing: they wake up, or wait busily,
    whatever the program does.
 3. Reading does not disturb the job: only /proc is read, and only for suspects.
 4. A process counts as doing nothing only after QUIET seconds without activity: programs read slow pipes, and sleep
    between two tries.
 5. A process that is ready to run at two looks, and has not run between them, had no processor. This is not doing
    nothing. If it has run, the time in which it waited for a processor counts as if it had run: on a busy machine, a
    process that computes gets only a part of one.
 6. A wait for storage that is seen at one look may be short (a page fault, a lock of the kernel). It counts unless the
    process has run, or waited for a processor, for most of the time.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...core.proc import STATE, children, stat_fields
from . import process_state
from .process_state import BUSY

INTERVAL = 0.5  # seconds between two looks, if there was none before
QUIET = 5.0  # after so many seconds without activity, a process counts as doing nothing
STEP = 0.05  # seconds between looks; a wait for storage is seen only at the moment of a look
MOSTLY = 0.5  # share of the time
RUNS = 1e-4  # share of a processor; less is the heartbeat of a library, if the main thread has not run at all
OWN = ("manapy-control", "manapy-worker")  # names of manapy's own threads
NOTHING = ""

COMPUTES, READS, WRITES, STORAGE, MOVES = "computes", "reads", "writes", "waits for storage", "runs now and then"
READY = "waits for a processor"


@dataclass(frozen=True)
class Suspect:
    """A process, and its threads that are in an MPI call.

    start: start time of the process (process_state.py); 0: not known.
    inside: kernel ids of these threads.
    """

    pid: int
    start: int = 0
    inside: frozenset[int] = frozenset()


@dataclass(frozen=True)
class ObservedActivity:
    """what: the activity that was seen, or NOTHING. still: for how many seconds the process has done nothing."""

    what: str
    still: float = 0.0


@dataclass
class ActivitySample:
    """What one look saw of a process and its descendants. Keys are (process id, thread id).

    at: when, seconds of the monotonic clock.
    main: the main thread, if it is in no MPI call.
    ran, waited: time of each thread on a processor, and ready to run but waiting for one, ns.
    read, written: bytes that each thread has read and written.
    ready: threads that are running or ready to run.
    stored: whether a thread waits for storage.
    """

    at: float
    main: tuple[int, int] | None = None
    ran: dict[tuple[int, int], int] = field(default_factory=dict)
    waited: dict[tuple[int, int], int] = field(default_factory=dict)
    read: dict[tuple[int, int], int] = field(default_factory=dict)
    written: dict[tuple[int, int], int] = field(default_factory=dict)
    ready: set[tuple[int, int]] = field(default_factory=set)
    stored: bool = False


@dataclass
class _Known:
    """What is known of one process.

    sight: the look before.
    since: when it was last seen to do something, or first looked at.
    what: what it was last seen to do.
    """

    sight: ActivitySample
    since: float
    what: str = NOTHING


class Activity:
    """Looks at suspects. Each look returns what they have done since the look before, or in INTERVAL seconds if there
    was none."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], _Known] = {}

    def look(self, suspects: Mapping[int, Suspect]) -> dict[int, ObservedActivity]:
        """Return the activity of suspects, by rank. Ranks whose processes can't be looked at are left out. This takes
        INTERVAL seconds for new processes. A process that was never seen to do anything is watched until it does
        something, or has done nothing for QUIET seconds."""
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

    def _undecided(self, key: tuple[int, int], now: ActivitySample, fresh: bool) -> bool:
        """Return whether it is too early to say what a process does."""
        known = self._known[key]
        if fresh and now.at - known.sight.at < INTERVAL:
            return True
        return not (known.what or now.stored or now.at - known.since >= QUIET or done(known.sight, now))

    def _compared(self, key: tuple[int, int], now: ActivitySample, stored: bool) -> ObservedActivity:
        known = self._known[key]
        if what := done(known.sight, now, stored):
            known.since, known.what = now.at, what
        known.sight = now
        still = now.at - known.since
        return ObservedActivity(known.what) if still < QUIET else ObservedActivity(NOTHING, still)


def done(before: ActivitySample, now: ActivitySample, stored: bool = False) -> str:
    """Return what was done between two looks. Bytes and processor time of a process or thread that is new count from
    zero. stored: a thread was seen to wait for storage."""
    took = max(now.at - before.at, 1e-3)
    share = _grown(before.ran, now.ran) / 1e9 / took
    wanted = share + _grown(before.waited, now.waited) / 1e9 / took
    if stored and (wanted < MOSTLY or share < RUNS):
        return STORAGE
    ready = before.ready & now.ready
    if stored or share >= BUSY or (ready and share >= RUNS and wanted >= BUSY):
        return COMPUTES
    for what, old, new in ((WRITES, before.written, now.written), (READS, before.read, now.read)):
        if any(count > old.get(task, 0) for task, count in new.items()):
            return what
    woken = now.main is not None and now.ran.get(now.main, 0) > before.ran.get(now.main, now.ran.get(now.main, 0))
    if woken or share >= RUNS:
        return MOVES
    return READY if ready else NOTHING


def _grown(before: Mapping[tuple[int, int], int], now: Mapping[tuple[int, int], int]) -> int:
    """Return by how much the times of all threads have grown, ns."""
    return sum(max(time - before.get(task, 0), 0) for task, time in now.items())


def _sight(suspect: Suspect) -> ActivitySample | None:
    """Look at a suspect. Returns None if it is gone, or can't be looked at."""
    if process_state.look(suspect.pid, suspect.start).state == process_state.DEAD:
        return None
    main = suspect.pid, suspect.pid
    found = ActivitySample(time.monotonic(), None if suspect.pid in suspect.inside else main)
    try:
        for pid in _family(suspect.pid):
            _add(found, pid, suspect.inside)
    except OSError:
        return None
    return found if found.ran or suspect.inside else None


def _add(found: ActivitySample, pid: int, inside: Collection[int]) -> None:
    """Add one process to a look. An error in reading it ends the whole look, unless the process has just ended."""
    base = Path(f"/proc/{pid}")
    try:
        for task in (base / "task").iterdir():
            if int(task.name) in inside or (task / "comm").read_text().strip() in OWN:
                continue
            key = pid, int(task.name)
            found.ran[key], found.waited[key] = map(int, (task / "schedstat").read_text().split()[:2])
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
    """Yield a process and its descendants."""
    todo = [pid]
    while todo:
        yield (at := todo.pop())
        todo += children(at)
