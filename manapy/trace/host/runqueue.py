"""How long the ranks' processes were ready to run and had no processor: samples of the run queue's waits, and how much
of a delay they explain.

A rank without a processor, or the network to it, looks slow; its records do not show the reason. The kernel does:
/proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst: time on a processor, time waiting for one). The
values must be sampled while the job runs; for a time without samples they are unknown.

Invariants
 1. Of a rank's threads the one that waits longest counts: a call, or a parallel loop, is as late as its last thread.
 2. The time of a wait between two samples is unknown: a stretch of time is given all waits of the intervals that it
    touches. So a delay is attributed to the run queue wherever that is possible.
 3. The kernel adds a wait when it ends. Until then, a thread that is ready and has not run since an earlier sample
    counts as waiting since that sample.
 4. Times are ns by CLOCK_MONOTONIC here, and on the job's clock in Delays.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np

from ...core.proc import STATE, stat_fields
from ..model.events import Trace
from . import proc

EVERY = 0.05  # seconds between two samples
KEEP = 12_000  # samples of a rank: ten minutes
EXPLAINS = 0.5  # share of a delay that waits for a processor have to be, to be its cause
UNSAMPLED = "a rank had to wait for its processor: the recording alone doesn't tell that, `manapy why --watch` does"


@dataclass
class _Thread:
    """ran: its time on a processor; since: the earliest sample that found it so; waited: up to the last sample."""

    ran: int
    since: int
    waited: int


@dataclass
class _Process:
    pid: int
    start: int
    threads: dict[int, _Thread] = field(default_factory=dict)
    samples: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=KEEP))  # moment, sum of waits


@dataclass(frozen=True)
class Delays:
    """Waits of ranks for a processor, as sampled: of each rank the moments, ns on the job's clock, and the sum of its
    waits up to each, ns."""

    ranks: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def waited(self, rank: int, since: int, until: int) -> int | None:
        """For how long at most it had to wait for a processor in that time, ns. None: not known, for lack of samples
        before and after."""
        moments, sums = self.ranks.get(rank, _NOTHING)
        first, last = int(np.searchsorted(moments, since, "right")) - 1, int(np.searchsorted(moments, until))
        if first < 0 or last >= len(moments):
            return None
        return min(int(sums[last] - sums[first]), until - since)

    def share(self, rank: int) -> float:
        """Of all the time sampled; 0 if there is none."""
        moments, sums = self.ranks.get(rank, _NOTHING)
        return min(float(sums[-1] - sums[0]) / float(moments[-1] - moments[0]), 1.0) if len(moments) > 1 else 0.0

    def about(self, rank: int, since: int, until: int) -> int:
        """As `waited`; where that isn't known, as if it had always been as in the samples."""
        known = self.waited(rank, since, until)
        return known if known is not None else int(self.share(rank) * max(until - since, 0))


_NOTHING = np.zeros(0, np.int64), np.zeros(0, np.int64)


class Sampler:
    """Looks at the ranks of this host: when it is asked to, and every EVERY seconds as long as it is open (a
    context)."""

    def __init__(self) -> None:
        self._processes: dict[int, _Process] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="run queue", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join()

    def watch(self, trace: Trace) -> None:
        """From now on look at these ranks, if they run here."""
        with self._lock:
            for rank in proc.here(trace):
                known = trace.ranks[rank]
                before = self._processes.get(rank)
                if before is None or (before.pid, before.start) != (known.pid, known.pid_start):
                    self._processes[rank] = _Process(known.pid, known.pid_start)

    def sample(self) -> None:
        """Once."""
        with self._lock:
            for process in self._processes.values():
                _sample(process, time.clock_gettime_ns(time.CLOCK_MONOTONIC))

    def delays(self, trace: Trace) -> Delays:
        """What was sampled so far, on the trace's clock; here nothing of a job that doesn't run here."""
        if not trace.monotonic_ns:
            return Delays(trace.waits)
        shift = trace.now - trace.monotonic_ns
        with self._lock:
            found = {
                rank: np.array(process.samples, np.int64).reshape(-1, 2) for rank, process in self._processes.items()
            }
        return Delays(trace.waits | {rank: (samples[:, 0] + shift, samples[:, 1]) for rank, samples in found.items()})

    def between(self, rank: int, after: int, until: int) -> list[tuple[int, int]]:
        """The samples of one rank in that time, CLOCK_MONOTONIC: the moment of each, and the sum of its waits up to
        it."""
        with self._lock:
            process = self._processes.get(rank)
            return [sample for sample in process.samples if after < sample[0] <= until] if process is not None else []

    def _run(self) -> None:
        while not self._closed.wait(EVERY):
            self.sample()


def _sample(process: _Process, now: int) -> None:
    longest = 0
    before, process.threads = process.threads, {}
    for task in _tasks(process):
        try:
            ran, waited = map(int, (task / "schedstat").read_text().split()[:2])
            thread = before.get(int(task.name), _Thread(-1, now, waited))
            if ran != thread.ran:
                found = _Thread(ran, now, waited)
            else:
                ready = stat_fields(task)[STATE] == "R"
                found = _Thread(ran, thread.since, max(thread.waited, waited + (now - thread.since) * ready))
        except (OSError, ValueError):
            continue  # it has ended
        process.threads[int(task.name)] = found
        longest = max(longest, found.waited - thread.waited)
    process.samples.append((now, (process.samples[-1][1] if process.samples else 0) + longest))


def _tasks(process: _Process) -> list[Path]:
    """Threads of a process that is still the one it was."""
    if proc.look(process.pid, process.start).state == proc.DEAD:
        return []
    try:
        return list(Path(f"/proc/{process.pid}/task").iterdir())
    except OSError:
        return []
