"""Sums over all looks at a job: the counters of `manapy trace serve`.

Invariants
 1. No sum ever falls, not even if a restart undoes calls.
 2. `sent`, `waited` and `caused` refer to `observed`: the time of which no record is lost. If records are overwritten
    between two looks, this is less than the time that has passed. Their quotients stay true.
 3. Calls are counted by the numbers of their records, so overwritten ones count, too. A call that completes several
    requests has a record for each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..model.events import OPEN, Trace
from ..model.stages import Labels
from .rank_rows import Row

ITERATIONS = 16  # the newest ones, of which the median is taken


class Totals:
    """Sums of each rank, as arrays by rank.

    calls: MPI calls.
    sent: bytes given to sends and collectives.
    waited: seconds that it has waited for other ranks in MPI.
    caused: seconds that other ranks have waited for it, added up.
    observed: seconds of which all its records were read.
    lost: records that no look has read.
    failovers: how often a queue pair changed to another device.
    """

    def __init__(self, size: int) -> None:
        self.calls, self.lost, self.failovers = (np.zeros(size, np.int64) for _ in range(3))
        self.sent, self.waited, self.caused, self.observed = (np.zeros(size) for _ in range(4))
        self._newest: dict[tuple[int, int], int] = {}  # by rank and thread: the seq of the last record that was read
        self._devices: dict[tuple[int, int], str] = {}  # by rank and queue pair
        self._until = -1  # the time of the newest record of a queue pair that was read, ns

    def add(self, trace: Trace, rows: Sequence[Row]) -> None:
        """Add a look. rows: of the time since the look before."""
        for row in rows:
            self.observed[row.rank] += row.observed_s
            self.sent[row.rank] += (row.sent_s or 0.0) * row.observed_s
            self.waited[row.rank] += (row.waited or 0.0) * row.observed_s
            self.caused[row.rank] += row.caused_s
        self._count(trace)
        self._switches(trace)

    def _count(self, trace: Trace) -> None:
        """Add new records, by their numbers."""
        records = np.concatenate((trace.events, trace.rdma))
        keys, of = np.unique(records["rank"].astype(np.int64) << 16 | records["thread"], return_inverse=True)
        first, last = np.full(len(keys), np.iinfo(np.int64).max), np.zeros(len(keys), np.int64)
        seqs = records["seq"].astype(np.int64)
        np.minimum.at(first, of, seqs)
        np.maximum.at(last, of, seqs)
        calling = np.isin(keys, keys[of[: len(trace.events)]])  # a thread of queue pairs makes no calls
        for key, begin, end, calls in zip(keys.tolist(), first.tolist(), last.tolist(), calling.tolist(), strict=True):
            rank, thread = divmod(key, 1 << 16)
            known = self._newest.get((rank, thread), 0)
            if end > known and rank < len(self.calls):  # invariant 1
                self.calls[rank] += (end - known) * calls
                self.lost[rank] += max(begin - known - 1, 0)
                self._newest[rank, thread] = end

    def _switches(self, trace: Trace) -> None:
        new = trace.rdma[(trace.rdma["enter"] > self._until) & (trace.rdma["rank"] < len(self.failovers))]
        self._until = int(new["enter"].max(initial=self._until))
        for record in new[np.argsort(new["enter"], kind="stable")]:
            if record["tag"] >= 0:
                key, name = (int(record["rank"]), int(record["comm"])), trace.devices[int(record["tag"])]
                self.failovers[key[0]] += self._devices.get(key, name) != name
                self._devices[key] = name


def iteration_seconds(labels: Labels) -> float | None:
    """Return the median length of the newest iterations that all ranks have ended, in seconds; None without any."""
    events, numbers = labels.trace.events, labels.iteration
    known = numbers >= 0
    if not known.any():
        return None
    current = min(int(numbers[known & (events["rank"] == rank)].max(initial=-1)) for rank in labels.trace.ranks)
    ends = np.full(int(numbers.max()) + 1, -1, np.int64)
    done = known & (events["exit"] != OPEN)
    np.maximum.at(ends, numbers[done], events["exit"][done])
    ended = ends[:current][-ITERATIONS - 1 :]
    lengths = np.diff(ended[ended >= 0])
    return float(np.median(lengths)) * 1e-9 if len(lengths) else None
