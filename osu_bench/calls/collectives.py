"""Latency of collectives and of point-to-point communication with mpi4py: collectives.py blocking|nonblocking|p2p [MS
[MAX_BYTES]]

The patterns and the timing are those of collectives.c. Each call is timed by itself, and a barrier that is not timed
follows it. A batch gives the mean over its calls and over all ranks; the result is the median over the batches that fit
into MS milliseconds, at least three. Prints one JSON object per line. This is a plain mpi4py program, which does not
depend on manapy.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

SIZES = (4, 1 << 10, 1 << 20)
BATCHES_MAX = 2000
BATCH = 50  # calls in a batch, at most


def main() -> None:
    """Measure what the command line asks for."""
    mode = sys.argv[1] if len(sys.argv) > 1 else ""
    budget = float(sys.argv[2]) / 1e3 if len(sys.argv) > 2 else 0.05
    max_bytes = int(sys.argv[3]) if len(sys.argv) > 3 else 1 << 20
    if mode not in ("blocking", "nonblocking", "p2p"):
        print("usage: collectives.py blocking|nonblocking|p2p [MS [MAX_BYTES]]", file=sys.stderr)
        MPI.COMM_WORLD.Abort(2)
    for size in SIZES:
        if size <= max_bytes:
            for name, call in calls(mode, size).items():
                report(name, size, measure(call, budget))
    if mode != "p2p":
        for name, call in barrier(mode).items():
            report(name, 0, measure(call, budget))


def calls(mode: str, size: int) -> dict[str, Callable[[], object]]:
    """Name and call, for messages of `size` bytes."""
    world = MPI.COMM_WORLD
    ranks, other = world.size, world.rank ^ 1
    one, another = np.ones(size // 4, np.int32), np.zeros(size // 4, np.int32)
    many, more = np.ones(ranks * size // 4, np.int32), np.zeros(ranks * size // 4, np.int32)
    if mode == "p2p":
        return {
            "Sendrecv": lambda: world.Sendrecv(one, other, recvbuf=another, source=other),
            "Isend+Irecv+Waitall": lambda: MPI.Request.Waitall([world.Isend(one, other), world.Irecv(another, other)]),
        }
    if mode == "blocking":
        return {
            "Bcast": lambda: world.Bcast(one),
            "Allreduce": lambda: world.Allreduce(one, another),
            "Allgather": lambda: world.Allgather(one, more),
            "Alltoall": lambda: world.Alltoall(many, more),
        }
    return {
        "Ibcast": lambda: world.Ibcast(one).Wait(),
        "Iallreduce": lambda: world.Iallreduce(one, another).Wait(),
        "Iallgather": lambda: world.Iallgather(one, more).Wait(),
        "Ialltoall": lambda: world.Ialltoall(many, more).Wait(),
    }


def barrier(mode: str) -> dict[str, Callable[[], object]]:
    """The function for messages without data."""
    world = MPI.COMM_WORLD
    return {"Barrier": world.Barrier} if mode == "blocking" else {"Ibarrier": lambda: world.Ibarrier().Wait()}


def measure(call: Callable[[], object], budget: float) -> list[float]:
    """ns per call, one value for each batch. Takes about `budget` seconds."""
    batch(call, 3)  # sets up connections
    count = max(1, min(BATCH, int(budget / 20 / (batch(call, 3)[1] / 3))))
    samples: list[float] = []
    used = 0.0
    while len(samples) < 3 or (used < budget and len(samples) < BATCHES_MAX):
        ns, seconds = batch(call, count)
        samples.append(ns)
        used += seconds
    return samples


def batch(call: Callable[[], object], count: int) -> tuple[float, float]:
    """ns per call and total seconds; the same on all ranks."""
    barrier, now = MPI.COMM_WORLD.Barrier, time.perf_counter_ns
    spent, start = 0, now()
    for _ in itertools.repeat(None, count):
        begin = now()
        call()
        spent += now() - begin
        barrier()
    mine = np.array([spent, now() - start], float)
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, mine)
    return mine[0] / count / MPI.COMM_WORLD.size, mine[1] / 1e9 / MPI.COMM_WORLD.size


def report(name: str, size: int, samples: list[float]) -> None:
    """One line, by rank 0."""
    if MPI.COMM_WORLD.rank == 0:
        print(
            json.dumps(
                {"name": name, "bytes": size, "unit": "ns", "value": statistics.median(samples), "min": min(samples)}
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
