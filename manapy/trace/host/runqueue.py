"""How long the ranks' processes were ready to run and had no processor: samples of their waits in the run queue, and
how much of a delay these explain.

A rank without a processor looks slow, or the network to it does; its records do not show the reason. The kernel does:
/proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst: time on a processor, time waiting for one). The
values must be sampled while the job runs. For a time without samples they are unknown.

Invariants
 1. The thread of a rank that waits longest counts: a call, or a parallel loop, is as late as its last thread.
 2. When a wait happened between two samples is unknown. A stretch of time is given all waits of the intervals that it
    touches (Delays.waited). So a delay is attributed to the run queue wherever that is possible.
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
from . import process_state

EVERY = 0.05  # seconds between two samples, unless somebody wants fewer
KEEP = 12_000  # number of samples of a rank that are kept: ten minutes
EXPLAINS = 0.5  # waits for a processor explain a delay if they are this share of it
UNSAMPLED = "a rank had to wait for its processor: the recording alone doesn't tell that, `manapy why --watch` does"


@dataclass
class _Thread:
    """What is known of a thread, ns.

    ran: its time on a processor.
    since: the earliest sample with this `ran`.
    waited: its waits up to the last sample.
    """

    ran: int
    since: int
    waited: int


@dataclass
class _Process:
    """What was sampled of a process. samples: moments, and the sum of its waits up to each, ns."""

    pid: int
    start: int
    threads: dict[int, _Thread] = field(default_factory=dict)
    samples: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=KEEP))


@dataclass(frozen=True)
class Delays:
    """Waits of ranks for a processor, as sampled. ranks: for each rank the moments, ns on the job's clock, and the sum
    of its waits up to each, ns."""

    ranks: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def waited(self, rank: int, since: int, until: int) -> int | None:
        """Return for how long at most a rank had to wait for a processor in this time, ns. None: not known, because
        there are no samples before or after."""
        moments, sums = self.ranks.get(rank, _NOTHING)
        first, last = int(np.searchsorted(moments, since, "right")) - 1, int(np.searchsorted(moments, until))
        if first < 0 or last >= len(moments):
            return None
        return min(int(sums[last] - sums[first]), until - since)

    def evenly(self, rank: int, since: int, until: int) -> int | None:
        """Return for how long a rank had to wait in this time, ns, if its waits between two samples were spread evenly.
        None: not known, as for `waited`."""
        if self.waited(rank, since, until) is None:
            return None
        moments, sums = self.ranks[rank]
        begin, end = np.interp([since, until], moments, sums)
        return int(end - begin)

    def share(self, rank: int) -> float:
        """Return the share of the sampled time that a rank waited; 0 without samples."""
        moments, sums = self.ranks.get(rank, _NOTHING)
        return min(float(sums[-1] - sums[0]) / float(moments[-1] - moments[0]), 1.0) if len(moments) > 1 else 0.0

    def about(self, rank: int, since: int, until: int) -> int:
        """Return the same as `waited`, ns. Where that isn't known, the average over the samples is assumed."""
        known = self.waited(rank, since, until)
        return known if known is not None else int(self.share(rank) * max(until - since, 0))


_NOTHING = np.zeros(0, np.int64), np.zeros(0, np.int64)


class Sampler:
    """Samples the ranks of this host: when it is asked to, and every ``every`` seconds while it is open (as a context
    manager)."""

    def __init__(self, every: float = EVERY) -> None:
        self._every = every
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
        """Sample these ranks from now on, if they run here."""
        with self._lock:
            for rank in process_state.here(trace):
                known = trace.ranks[rank]
                before = self._processes.get(rank)
                if before is None or (before.pid, before.start) != (known.pid, known.pid_start):
                    self._processes[rank] = _Process(known.pid, known.pid_start)

    def sample(self) -> None:
        """Take one sample."""
        with self._lock:
            for process in self._processes.values():
                _sample(process, time.clock_gettime_ns(time.CLOCK_MONOTONIC))

    def delays(self, trace: Trace) -> Delays:
        """Return what was sampled so far, on the trace's clock. Samples taken here count only if the job runs here."""
        if not trace.monotonic_ns:
            return Delays(trace.waits)
        shift = trace.now - trace.monotonic_ns
        with self._lock:
            found = {
                rank: np.array(process.samples, np.int64).reshape(-1, 2) for rank, process in self._processes.items()
            }
        return Delays(trace.waits | {rank: (samples[:, 0] + shift, samples[:, 1]) for rank, samples in found.items()})

    def between(self, rank: int, after: int, until: int) -> list[tuple[int, int]]:
        """Return the samples of one rank in this time (CLOCK_MONOTONIC): the moment of each, and the sum of its waits
        up to it."""
        with self._lock:
            process = self._processes.get(rank)
            return [sample for sample in process.samples if after < sample[0] <= until] if process is not None else []

    def _run(self) -> None:
        while not self._closed.wait(self._every):
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
            continue  # the thread has ended
        process.threads[int(task.name)] = found
        longest = max(longest, found.waited - thread.waited)
    process.samples.append((now, (process.samples[-1][1] if process.samples else 0) + longest))


def _tasks(process: _Process) -> list[Path]:
    """Return the threads of a process, if it is still the same process."""
    if process_state.look(process.pid, process.start).state == process_state.DEAD:
        return []
    try:
        return list(Path(f"/proc/{process.pid}/task").iterdir())
    except OSError:
        return []
