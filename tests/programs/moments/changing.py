"""changing.py MEGABYTES - ranks change random data every few milliseconds, until there is a file `end`. Then each rank
checks that its data is what its own number of steps must have made of it.

Part of the data is in a window that the ranks of a node share, part in memory that fork(2) does not copy, or fills with
zeros in the child.
"""

import mmap
import os
import sys
import time

import numpy
from mpi4py import MPI

PARTS = 50
MADV_WIPEONFORK = 18
WORLD = MPI.COMM_WORLD
words = int(sys.argv[1]) * (1 << 17)
window = MPI.Win.Allocate_shared(words, 8, comm=WORLD)


def advised(advice: int) -> numpy.ndarray:
    memory = mmap.mmap(-1, words, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(advice)
    return numpy.frombuffer(memory, numpy.uint64)


memories = {
    "private": numpy.empty(words, numpy.uint64),
    "window": numpy.frombuffer(window, numpy.uint64),
    "not forked": advised(mmap.MADV_DONTFORK),
    "wiped": advised(MADV_WIPEONFORK),
}


def first(size: int) -> numpy.ndarray:
    return numpy.random.default_rng(WORLD.rank).integers(0, 1 << 63, size, numpy.uint64)


def parts(data: numpy.ndarray) -> list[numpy.ndarray]:
    return numpy.array_split(data, PARTS)


for data in memories.values():
    data[:] = first(len(data))
changed = {name: parts(data) for name, data in memories.items()}
step = 0
while not WORLD.bcast(os.path.exists("end")):
    for pieces in changed.values():
        pieces[step % PARTS] += numpy.uint64(step)
    step += 1
    if WORLD.rank == 0 and step % 10 == 1:
        print(f"step {step}", flush=True)
    time.sleep(0.003)
wrong = []
for name, data in memories.items():
    expected = first(len(data))
    for i, piece in enumerate(parts(expected)):
        piece += numpy.uint64(sum(range(i, step, PARTS)))
    if not numpy.array_equal(expected, data):
        wrong.append(name)
wrong = WORLD.gather(wrong)
if WORLD.rank == 0:
    print("ok" if not any(wrong) else f"wrong: {wrong}", flush=True)
