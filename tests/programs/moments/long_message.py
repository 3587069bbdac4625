"""One message of more than INT_MAX bytes from rank 0 to rank 1, which receives it after the file exists:
`long_message.py FILE`.

Its blocks are one piece of memory, so both ranks need little memory. Rank 1 has probed it before. Each rank prints
"rank R: tick" now and then.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

sys.path.append(str(Path(__file__).resolve().parents[1]))
import tracebacks  # noqa: E402, F401

BLOCKS, BLOCK = 2049, (1 << 20) - 24  # no power of two: bytes at a wrong place are noticed
world = MPI.COMM_WORLD
sent = (np.arange(BLOCK) % 251).astype(np.uint8)  # an image of it is small
blocks = MPI.BYTE.Create_hvector(BLOCKS, BLOCK, 0).Commit()
status = MPI.Status()
world.Barrier()
if world.rank == 0:
    request = world.Isend([sent, 1, blocks], 1, 7)
else:
    world.Probe(0, 7)
while not os.path.exists(sys.argv[1]):
    print(f"rank {world.rank}: tick", flush=True)
    time.sleep(0.1)
if world.rank == 0:
    request.Wait()
else:
    received = np.zeros_like(sent)
    world.Recv([received, 1, blocks], 0, 7, status)
    assert status.Get_elements(MPI.BYTE) == BLOCKS * BLOCK > 2**31 - 1
    assert (received == sent).all()
print("ok", flush=True)
