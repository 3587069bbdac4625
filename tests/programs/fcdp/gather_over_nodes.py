"""All-gathers over all ranks: in one step, or first between the nodes and then inside each.

    mpirun -n N python gather_over_nodes.py flat|hierarchical BYTES TIMES

BYTES: size of the result on every rank. The last line is "ok NODES" if the result contains the data of all ranks.
"""

import sys

import numpy as np
from mpi4py import MPI

how, size, times = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
comm = MPI.COMM_WORLD
node = comm.Split_type(MPI.COMM_TYPE_SHARED)
cross = comm.Split(node.rank, comm.rank)
full = np.empty(size, "u1")
for turn in range(times):
    shard = np.full(size // comm.size, comm.rank + turn, "u1")
    full[:] = 255
    if how == "flat":
        comm.Allgather(shard, full)
    else:
        part = np.empty(size // node.size, "u1")
        cross.Allgather(shard, part)
        node.Allgather(part, full)
    assert (
        sorted(full[:: size // comm.size].tolist()) == list(range(turn, turn + comm.size))
        and np.bincount(full).max() == size // comm.size
    )
comm.Barrier()
if comm.rank == 0:
    print("ok", cross.size, flush=True)
