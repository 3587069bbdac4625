"""Between the files `limit` and `unlimit`, rank 1 may write no file larger than a megabyte. Rank 0 uses much memory.

The program ends when there is a file `end`.
"""

import os
import resource
import time

from mpi4py import MPI

rank = MPI.COMM_WORLD.rank
memory = os.urandom(1 << 20) * (700 if rank == 0 else 1)


def until(name: str) -> None:
    while not os.path.exists(name):
        time.sleep(0.01)


def allow(size: int, word: str) -> None:
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    MPI.COMM_WORLD.Barrier()
    if rank == 0:
        print(word, flush=True)


allow(resource.RLIM_INFINITY, "ready")
until("limit")
allow(1 << 20, "limited")
until("unlimit")
allow(resource.RLIM_INFINITY, "unlimited")
until("end")
