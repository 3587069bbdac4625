"""Two jobs connect over a port: test_dynamic.py.

dynamic_jobs.py DIRECTORY server|client    exchange until DIRECTORY/part exists, print "parted", continue until
                                           DIRECTORY/end exists
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from mpi4py import MPI

directory, role = Path(sys.argv[1]), sys.argv[2]
comm = MPI.COMM_WORLD
note = directory / "port"

if role == "server":
    port = MPI.Open_port() if comm.rank == 0 else None
    if comm.rank == 0:
        (directory / "port.new").write_text(port)
        (directory / "port.new").rename(note)
    print("waiting", flush=True)
    link = comm.Accept(port)
else:
    while comm.rank == 0 and not note.exists():
        time.sleep(0.02)
    link = comm.Connect(note.read_text() if comm.rank == 0 else None)
assert link.allreduce(100 if role == "server" else 1) == (
    link.remote_size if role == "server" else 100 * link.remote_size
)
print("connected", flush=True)
over = False
while not over:  # the server's first rank decides, and tells its job and the other one
    if role == "server":
        over = comm.bcast((directory / "part").exists() if comm.rank == 0 else None, 0)
        link.bcast(over, MPI.ROOT if comm.rank == 0 else MPI.PROC_NULL)
    else:
        over = link.bcast(None, 0)
    time.sleep(0.02)
link.Disconnect()
if role == "server" and comm.rank == 0:
    MPI.Close_port(port)
print("parted", flush=True)
while not comm.bcast((directory / "end").exists() if comm.rank == 0 else None, 0):
    time.sleep(0.02)
print("done", flush=True)
