"""Several threads per rank, each with a communicator of its own for collectives. Messages between any two threads cross
them.

    mpirun -n N python threads.py SEED STEPS [--pause SECONDS]

The events are one sequence, the same on all ranks and drawn from SEED: a collective on a thread's communicator, or a
message from a thread of one rank to any thread of another. Each thread does its part of the sequence, so it can't hang,
although a thread's next message may wait for a collective of another thread on another rank. The main thread only
joins. Prints "step N" now and then. Rank 0's last line is a digest of all data received.
"""

from __future__ import annotations

import functools
import hashlib
import random
import threading
import time

import numpy as np
from mpi4py import MPI
from steps import hold, parser, progress, report, run

WORLD = MPI.COMM_WORLD
THREADS = 3


def work(number: int, own: MPI.Comm, common: MPI.Comm, seed: int, steps: int, pause: float, results: list[str]) -> None:
    """The part of one thread."""
    rank, size, digest = WORLD.rank, WORLD.size, hashlib.sha256()
    for step in range(steps):
        rng = random.Random(seed * 1_000_003 + step)
        if rng.random() < 0.4 or size == 1:
            if rng.randrange(THREADS) == number:
                kind, value, total = rng.randrange(3), np.array([rank * 1000 + step]), np.zeros(1, dtype="i8")
                if kind == 0:
                    own.Allreduce(value, total)
                elif kind == 1:
                    own.Scan(value, total)
                else:
                    own.Bcast(value, root=rng.randrange(size))
                    total = value
                digest.update(total.tobytes())
        else:
            source, to = rng.sample(range(size), 2)
            sender, receiver, kind, n = (
                rng.randrange(THREADS),
                rng.randrange(THREADS),
                rng.randrange(6),
                rng.choice((1, 500, 40_000)),
            )
            tag = step % 30_000
            if (source, sender) == (rank, number):
                data = np.arange(n) * (step + 1)
                if kind % 3 == 0:
                    common.Send(data, to, tag)
                elif kind % 3 == 1:
                    common.Ssend(data, to, tag)
                else:
                    request = common.Issend(data, to, tag)
                    while not request.Test():
                        time.sleep(0.0002)
            elif (to, receiver) == (rank, number):
                data = np.zeros(n, dtype="i8")
                if kind < 2:
                    common.Recv(data, MPI.ANY_SOURCE if kind else source, tag)
                elif kind < 4:
                    common.Irecv(data, source, tag).Wait()
                else:
                    while not common.Iprobe(source, tag):
                        time.sleep(0.0002)
                    common.Recv(data, source, tag)
                assert (data == np.arange(n) * (step + 1)).all(), (rank, number, step)
                digest.update(data.tobytes())
        if pause and rng.random() < 0.5:
            time.sleep(pause * random.random() * 2)  # timing only
        if number == 0:
            progress(step)
        else:
            hold(step)
    results[number] = digest.hexdigest()


def main() -> None:
    options = parser("seed", "steps").parse_args()
    assert MPI.Query_thread() == MPI.THREAD_MULTIPLE
    common = WORLD.Dup()
    own = [WORLD.Dup() for _ in range(THREADS)]
    results = [""] * THREADS
    parts = [
        functools.partial(work, i, own[i], common, options.seed, options.steps, options.pause, results)
        for i in range(THREADS)
    ]
    threads = [threading.Thread(target=run, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report("".join(results))


run(main)
