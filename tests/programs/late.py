"""Steps of 20 ms, and now and then rank 0 writes and reads a file for some seconds while the others wait for it in a Barrier, as programs do that write checkpoints.

late.py SECONDS TIMES. Prints `late` where it happens.
"""

import os
import sys
import time

from mpi4py import MPI

SECONDS, TIMES = float(sys.argv[1]), int(sys.argv[2])
world = MPI.COMM_WORLD
for _ in range(TIMES):
    for _ in range(60):
        time.sleep(0.02)
        world.Barrier()
    if world.rank == 0:
        print("late", flush=True)
        end = time.monotonic() + SECONDS
        with open("written", "wb+") as file:
            while time.monotonic() < end:
                file.seek(0)
                file.write(os.urandom(4096))
                file.flush()
                os.fsync(file.fileno())
                time.sleep(0.05)
    world.Barrier()
