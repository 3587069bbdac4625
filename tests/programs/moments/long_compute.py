"""Rank 0 waits for a message; rank 1 computes for very long before it sends it."""

import time

from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Barrier()
if comm.rank == 0:
    print("computing", flush=True)
    comm.recv(source=1)
else:
    end = time.monotonic() + 600
    while time.monotonic() < end:
        time.sleep(0.1)
    comm.send(None, dest=0)
