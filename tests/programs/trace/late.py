"""Steps of 20 ms. Twice, rank 0 writes to a file for some time while the others wait for it in a Barrier, as in
programs that write checkpoints.

The first time lasts until there is a file `seen`, the second time as long as the first. Prints `late` in both.
"""

import os
import time
from pathlib import Path

from mpi4py import MPI

world = MPI.COMM_WORLD
took = 0.0
for first in (True, False):
    for _ in range(60):
        time.sleep(0.02)
        world.Barrier()
    if world.rank == 0:
        print("late", flush=True)
        begin = time.monotonic()
        with open("written", "wb+", buffering=0) as file:
            while not Path("seen").exists() if first else time.monotonic() < begin + took:
                file.seek(0)
                file.write(os.urandom(4096))
                os.fsync(file.fileno())
                time.sleep(0.05)
        took = time.monotonic() - begin
    world.Barrier()
