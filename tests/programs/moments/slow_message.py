"""One large message from rank 0 to the last rank: `slow_message.py MEGABYTES asked|unasked FILE`.

The last rank requests it at once, or (unasked) when the file exists. Until then no rank calls MPI, so the message does
not progress unless something else drives it. Each rank prints now and then: "rank R: tick N".
"""

import os
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

sys.path.append(str(Path(__file__).resolve().parents[1]))
import tracebacks  # noqa: E402, F401

world = MPI.COMM_WORLD
rank, last = world.rank, world.size - 1
sent = np.random.default_rng(1).integers(0, 256, int(sys.argv[1]) << 20, dtype=np.uint8)
data = sent if rank == 0 else np.zeros_like(sent)
request = MPI.REQUEST_NULL
world.Alltoall(np.arange(world.size), np.arange(world.size))  # all connections exist
if rank == last and sys.argv[2] == "asked":
    request = world.Irecv(data, 0, 7)
world.Barrier()
if rank == 0:
    request = world.Isend(data, last, 7)
begin, ticks = time.monotonic(), 0
while not os.path.exists(sys.argv[3]):
    time.sleep(0.01)
    if time.monotonic() - begin > ticks / 5:
        ticks += 1
        print(f"rank {rank}: tick {ticks}", flush=True)
if rank == last and sys.argv[2] == "unasked":
    request = world.Irecv(data, 0, 7)
request.Wait()
assert rank not in (0, last) or (data == sent).all()
print("ok", flush=True)
