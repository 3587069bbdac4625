"""A multiprocessing.Pool in a rank: workers that were forked, with queues, locks and memory that they share.

Usage: worker_pool.py GO (wait for this file)."""

from __future__ import annotations

import mmap
import multiprocessing
import struct
import sys
import time
from pathlib import Path

from mpi4py import MPI

CALLS, FORKS = slice(0, 8), multiprocessing.get_context("fork")
memory = mmap.mmap(-1, 3 * mmap.PAGESIZE)  # shared with the workers
lock = FORKS.Lock()
untouched = FORKS.BoundedSemaphore(3)


def square(value: int) -> int:
    with lock:
        memory[CALLS] = struct.pack("q", struct.unpack("q", memory[CALLS])[0] + 1)
        memory[-1 - value % 50] = value % 256
    return value * value


def main() -> None:
    go = Path(sys.argv[1])
    comm = MPI.COMM_WORLD
    calls = 0
    with FORKS.Pool(2) as pool:
        comm.Barrier()
        print("ready", flush=True)
        while not comm.bcast(go.exists(), root=0):
            values = range(comm.allreduce(calls) % 1000, comm.allreduce(calls) % 1000 + 7)
            assert pool.map(square, values, chunksize=2) == [value * value for value in values]
            calls += len(values)
            assert struct.unpack("q", memory[CALLS])[0] == calls
            assert all(memory[-1 - value % 50] == value % 256 for value in values)
            time.sleep(0.005)
        slow = pool.apply_async(square, (7,))
        assert slow.get(60) == 49
        assert [untouched.acquire(timeout=0.1) for _ in range(4)] == [True, True, True, False]
        pool.close()
        pool.join()
    comm.Barrier()
    if comm.rank == 0:
        print("ok", flush=True)


main()
