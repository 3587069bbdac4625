"""A checkpoint needs memory for a large message in flight, and the process has an alternate signal stack, as programs
in Rust have, and those with faulthandler. The message is received when the file GO is there."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from array import array

from mpi4py import MPI

SIZE = 1 << 21  # doubles: more than the heap of the process has free
comm, go = MPI.COMM_WORLD, sys.argv[1]
faulthandler.enable()
message = array("d", [comm.rank + 1.0]) * SIZE
request = comm.Isend(message, 1 - comm.rank)
print("ready", flush=True)
while not os.path.exists(go):
    time.sleep(0.01)
received = array("d", [0.0]) * SIZE
comm.Recv(received, 1 - comm.rank)
request.Wait()
print("right" if received == array("d", [2.0 - comm.rank]) * SIZE else "wrong", flush=True)
