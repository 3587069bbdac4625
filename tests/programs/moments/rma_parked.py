"""The holder of a lock enters a collective; the rank that waits for the lock is missing in another collective.

    mpirun -n 4 python rma_parked.py ROUNDS

Rank 0 takes the lock of rank 1 and meets rank 2 before it releases the lock. Rank 3 requests the same lock before it
meets rank 1. Suppose a checkpoint finds rank 0 at the entry of its collective and rank 1 inside the other. Then rank 3
can only come if rank 0 continues. Rank 0 prints "round K" now and then, rank 1 "sum S" at the end.
"""

from __future__ import annotations

import random
import sys
import time

import numpy as np
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
ME = WORLD.rank


def main() -> None:
    rounds = int(sys.argv[1])
    pair = WORLD.Split(ME % 2, ME)
    window = MPI.Win.Allocate(8, 8, comm=WORLD)
    memory = np.frombuffer(window.tomemory(), dtype="i8")
    memory[0] = 0
    WORLD.Barrier()
    pauses = random.Random(ME)
    one, got = np.ones(1, dtype="i8"), np.empty(1, dtype="i8")
    for k in range(rounds):
        time.sleep(pauses.random() * 0.01)
        if ME == 0:
            window.Lock(1, MPI.LOCK_EXCLUSIVE)
            window.Get(got, 1)
            window.Flush(1)
            pair.allreduce(k)
            window.Put(got + one, 1)
            window.Unlock(1)
            if k % 20 == 0:
                print(f"round {k}", flush=True)
        elif ME == 3:
            window.Lock(1, MPI.LOCK_EXCLUSIVE)
            window.Accumulate(one, 1)
            window.Unlock(1)
            pair.allreduce(k)
        else:
            pair.allreduce(k)
    WORLD.Barrier()
    if ME == 1:
        print(f"sum {memory[0]}", flush=True)
    window.Free()


if __name__ == "__main__":
    main()
