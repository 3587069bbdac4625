"""Sums on communicators of different ages, repeated until a file exists: always with the same bits.

    mpirun -n 4 python sums.py FILE

A young communicator has had two sums. It gets the others when the file exists, and they equal those of its twin, which
has had all at the start. A pair of used ones has also had many duplicates after the two sums. Prints "summed" when the
other communicators have had theirs. Rank 0's last line is "ok".
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
MANY = 100  # duplicates: more than after which ranks agree which of them all have freed


def sums(comm: MPI.Comm) -> bytes:
    """The sums of all ranks' data, by the two reductions."""
    everywhere, here = np.empty_like(DATA), np.zeros_like(DATA)
    comm.Allreduce(DATA, everywhere)
    comm.Reduce(DATA, here, root=0)
    return everywhere.tobytes() + here.tobytes()


def begin(duplicates: int) -> tuple[MPI.Comm, list[bytes]]:
    """A young communicator and its first sums."""
    comm = WORLD.Dup()
    had = [sums(comm) for _ in range(FIRST)]
    for _ in range(duplicates):
        comm.Dup().Free()
    return comm, had


def rest(comm: MPI.Comm) -> list[bytes]:
    return [sums(comm) for _ in range(ALL - FIRST)]


def main() -> None:
    file = sys.argv[1]
    (young, had), (twin, due) = begin(0), begin(0)
    (used, had_used), (used_twin, due_used) = begin(MANY), begin(MANY)
    comms = [WORLD, WORLD.Dup(), WORLD.Split(0, -WORLD.rank)]
    due += rest(twin)
    due_used += rest(used_twin)
    expected = [[sums(comm) for _ in range(ALL)][-1] for comm in comms]
    if WORLD.rank == 0:
        print("summed", flush=True)
    there = False
    while not there:
        there = WORLD.bcast(os.path.exists(file))
        assert [sums(comm) for comm in comms] == expected, f"rank {WORLD.rank}: other bits"
        time.sleep(0.01)
    assert had + rest(young) == due, f"rank {WORLD.rank}: other bits when young"
    assert had_used + rest(used) == due_used, f"rank {WORLD.rank}: other bits when used"
    if WORLD.rank == 0:
        print("ok", flush=True)


main()
