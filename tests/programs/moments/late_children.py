"""Rank 1 is late for a barrier, until the file argv[1] exists. Before it comes, both ranks start a child. argv[2]: a
file that ends the program. argv[3]: the child's program, which is statically linked, so that it cannot be saved.

Rank 0's child is like a helper that lives as long as the program. Rank 1's child ends by itself after a minute. Each
child prints now and then: "rank R: tick N".
"""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from mpi4py import MPI

sys.path.append(str(Path(__file__).resolve().parents[1]))
import tracebacks  # noqa: E402, F401

world = MPI.COMM_WORLD
commands = [[sys.argv[3], "multiprocessing.resource_tracker"], [sys.argv[3]]]
children = []


def wait_for(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.01)


def start_child() -> None:
    wait_for(sys.argv[1])
    children.append(subprocess.Popen(commands[world.rank], start_new_session=True))
    open(f"{sys.argv[1]}-{world.rank}", "w").close()


thread = threading.Thread(target=start_child)
thread.start()
print(f"rank {world.rank}: begins", flush=True)
if world.rank == 1:
    wait_for(f"{sys.argv[1]}-0")
    thread.join()
world.Barrier()
thread.join()
ticks = 0
while not os.path.exists(sys.argv[2]):
    time.sleep(0.2)
    ticks += 1
    print(f"rank {world.rank}: tick {ticks}", flush=True)
    if os.path.exists(f"{sys.argv[2]}-children") and children:
        child = children.pop()
        os.killpg(child.pid, 9)
        child.wait()
        print(f"rank {world.rank}: without children", flush=True)
world.Barrier()
print("ok", flush=True)
