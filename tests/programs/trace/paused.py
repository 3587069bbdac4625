"""Rank 1 pauses the recording of its calls (MPI_Pcontrol), makes some calls of all kinds, stays outside MPI until a
file exists, and continues. Two ranks.

paused.py FILE: prints `paused` when both ranks have reached this point.
"""

import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
peer = 1 - world.rank
mine, got = np.full(4, world.rank), np.zeros((4, 4), int)

world.Barrier()
early = [world.Irecv(got[0], peer, 1), world.Isend(mine, peer, 1)]
if world.rank == 1:
    MPI.Pcontrol(0)
    MPI.Pcontrol(0)
MPI.Request.Waitall(early)
dup = world.Dup()
dup.Barrier()
world.Allreduce(mine, got[3])
assert got[3].tolist() == [1] * 4
late, persistent = world.Irecv(got[1], peer, 2), world.Send_init(mine, peer, 3)
if world.rank == 0:
    print("paused", flush=True)
    world.Recv(got[2], 1, 4)
else:
    while not Path(sys.argv[1]).exists():
        time.sleep(0.01)
    world.Send(mine, 0, 4)
    MPI.Pcontrol(1)
world.Send(mine, peer, 2)
late.Wait()
persistent.Start()
world.Recv(got[2], peer, 3)
persistent.Wait()
persistent.Free()
dup.Barrier()
world.Barrier()
assert (got[:3] == peer).all()
if world.rank == 0:
    print("ok", flush=True)
