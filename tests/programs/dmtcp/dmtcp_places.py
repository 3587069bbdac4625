"""Whenever a file `send` exists, the last rank sends checkpoints to the directory that it names. The program ends when
there is a file `end`."""

import time
from pathlib import Path

from mpi4py import MPI

from manapy import dmtcp

comm = MPI.COMM_WORLD
send, end = Path("send"), Path("end")
print(f"rank {comm.rank} begins at {dmtcp.dmtcp_get_ckpt_dir()}\n", end="", flush=True)
restarts = 0
while not comm.bcast(end.exists()):
    if comm.rank == comm.size - 1 and send.exists():
        place = send.read_text()
        send.unlink()
        print(f"sent to {place}: {dmtcp.dmtcp_set_ckpt_dir(place)} {dmtcp.dmtcp_get_ckpt_dir()}\n", end="", flush=True)
    if dmtcp.dmtcp_get_local_status().num_restarts != restarts:
        restarts = dmtcp.dmtcp_get_local_status().num_restarts
        image = Path(dmtcp.dmtcp_get_ckpt_filename())
        print(f"rank {comm.rank} is back in {dmtcp.dmtcp_get_ckpt_dir()} image {image.resolve()}\n", end="", flush=True)
    time.sleep(0.01)
print("ok\n", end="")
