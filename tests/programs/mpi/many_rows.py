"""Many communicators and persistent collectives. Each of them counts on its own row in the collective clock.

    mpirun -n N python many_rows.py COMMUNICATORS REQUESTS FILE

Prints "made" when they exist, uses some of them until FILE exists, then all of them. Rank 0's last line is "ok".
"""

import os
import random
import sys
import time

import numpy as np
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
COMMUNICATORS, REQUESTS, FILE = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


def main() -> None:
    comms = []
    for i in range(COMMUNICATORS):
        comms.append(WORLD.Dup() if i % 2 else WORLD.Split(0, -WORLD.rank))
        comms[-1].Set_name(f"number {i} of many communicators, with a name that is not short")
    value, total = np.array([WORLD.rank + 1]), np.zeros(1, dtype="i8")
    requests = [comms[i % COMMUNICATORS].Allreduce_init(value, total) for i in range(REQUESTS)]
    expected = WORLD.size * (WORLD.size + 1) // 2

    def use(i: int) -> None:
        comms[i % COMMUNICATORS].Barrier()
        total[0] = 0
        requests[i].Start()
        requests[i].Wait()
        assert total[0] == expected, (i, total)

    WORLD.Barrier()
    if WORLD.rank == 0:
        print("made", flush=True)
    rng = random.Random(1)
    while not WORLD.bcast(os.path.exists(FILE)):
        for _ in range(10):
            use(rng.randrange(REQUESTS))
        time.sleep(0.001 * WORLD.rank)
    for i in range(REQUESTS):
        use(i)
    if WORLD.rank == 0:
        print("ok", flush=True)


main()
