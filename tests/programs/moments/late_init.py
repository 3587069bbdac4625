"""Calls MPI_Init when a file is there, and ends when another one is there.

late_init.py GO END"""

import sys
import time
from pathlib import Path


def wait_for(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.01)


print("before MPI_Init", flush=True)
wait_for(sys.argv[1])

from mpi4py import MPI  # noqa: E402

print("after MPI_Init", flush=True)
wait_for(sys.argv[2])
print(f"sum {MPI.COMM_WORLD.allreduce(1)}", flush=True)  # as one text, for ranks that do not buffer
