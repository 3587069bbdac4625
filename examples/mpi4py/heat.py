"""Heat in a rod whose ends stay at 1 and 0. Usage: heat.py STEPS"""

import sys

import numpy as np
from mpi4py import MPI

CELLS = 100000  # of each rank

world = MPI.COMM_WORLD
steps = int(sys.argv[1])
left = world.rank - 1 if world.rank > 0 else MPI.PROC_NULL
right = world.rank + 1 if world.rank < world.size - 1 else MPI.PROC_NULL

u = np.zeros(CELLS + 2)  # with a border on each side
if world.rank == 0:
    u[0] = 1.0

for step in range(1, steps + 1):
    world.Sendrecv(u[1:2], left, recvbuf=u[-1:], source=right)
    world.Sendrecv(u[-2:-1], right, recvbuf=u[:1], source=left)
    u[1:-1] += 0.4 * (u[2:] - 2.0 * u[1:-1] + u[:-2])
    if step % (steps // 20) == 0:
        heat = world.reduce(u[1:-1].sum())
        if world.rank == 0:
            print(f"step {step} heat {heat:.12f}", flush=True)
