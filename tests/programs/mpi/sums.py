"""Sums on communicators of different ages, repeated until a file exists: always with the same bits.

    mpirun -n 4 python sums.py FILE

A young communicator has had two sums. It gets the others when the file exists, and they equal those of its twin, which
has had all at the start. Prints "summed" when the other communicators have had theirs. Rank 0's last line is "ok".
"""

from __future__ import annotations

import os
import sys
import time

import mpi4py
import numpy as np

mpi4py.rc.thread_level = "single"  # as by MPI_Init: only then does MPICH add through shared memory
from mpi4py import MPI  # noqa: E402

WORLD = MPI.COMM_WORLD
DATA = np.random.default_rng(WORLD.rank).standard_normal(1000) * 10.0 ** np.arange(-5, 5).repeat(100)
FIRST, ALL = 2, 10  # sums of a young communicator, and of one whose sums do not change any more


def sums(comm: MPI.Comm) -> bytes:
    """The sums of all ranks' data, by the two reductions."""
    everywhere, here = np.empty_like(DATA), np.zeros_like(DATA)
    comm.Allreduce(DATA, everywhere)
    comm.Reduce(DATA, here, root=0)
    return everywhere.tobytes() + here.tobytes()


def main() -> None:
    file = sys.argv[1]
    young, twin = WORLD.Dup(), WORLD.Dup()
    comms = [WORLD, WORLD.Dup(), WORLD.Split(0, -WORLD.rank)]
    due = [sums(twin) for _ in range(ALL)]
    had = [sums(young) for _ in range(FIRST)]
    expected = [[sums(comm) for _ in range(ALL)][-1] for comm in comms]
    if WORLD.rank == 0:
        print("summed", flush=True)
    there = False
    while not there:
        there = WORLD.bcast(os.path.exists(file))
        assert [sums(comm) for comm in comms] == expected, f"rank {WORLD.rank}: other bits"
        time.sleep(0.01)
    assert had + [sums(young) for _ in range(ALL - FIRST)] == due, f"rank {WORLD.rank}: other bits when young"
    if WORLD.rank == 0:
        print("ok", flush=True)


main()
