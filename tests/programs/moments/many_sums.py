"""many_sums.py COUNT GO END - rank 0 flushes so many sums, which rank 1 must carry out. Rank 1 does not call MPI until
the file GO exists, and then enters a collective. Both ranks end when the file END exists.
"""

import os
import sys
import time

import numpy
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
COUNT = int(sys.argv[1])
memory = numpy.zeros(1, dtype="i8")
window = MPI.Win.Create(memory, 8, comm=WORLD)
window.Lock_all()
one = numpy.ones(1, dtype="i8")
WORLD.Barrier()
if WORLD.rank == 0:
    for _ in range(COUNT):
        window.Accumulate(one, 1)
    print("flushes", flush=True)
    window.Flush_all()
else:
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
WORLD.Barrier()
window.Unlock_all()
window.Free()
while not os.path.exists(sys.argv[3]):
    time.sleep(0.01)
print("ok" if WORLD.rank == 0 or memory[0] == COUNT else f"wrong: {memory[0]}", flush=True)
