"""Spawns children, works with them, disconnects from them, and continues alone: test_dynamic.py.

dynamic_family.py DIRECTORY    prints "connected", waits for DIRECTORY/part, prints "parted", continues until
                               DIRECTORY/end exists
dynamic_family.py              a child
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from mpi4py import MPI


def child() -> None:
    parent = MPI.Comm.Get_parent()
    assert parent.allreduce(parent.rank) == sum(range(parent.remote_size))
    merged = parent.Merge(high=True)
    while merged.bcast(None, 0):
        pass
    merged.Disconnect()
    parent.Disconnect()


def family(directory: Path) -> None:
    comm = MPI.COMM_WORLD
    children = comm.Spawn(sys.executable, [__file__], maxprocs=2)
    children.Set_name("workers")
    assert children.allreduce(comm.rank) == 1
    merged = children.Merge()
    assert merged.size == comm.size + 2
    print("connected", flush=True)
    while merged.bcast(not (directory / "part").exists() if comm.rank == 0 else None, 0):
        time.sleep(0.02)
    merged.Disconnect()
    print("still connected", flush=True)
    while not comm.bcast((directory / "part2").exists() if comm.rank == 0 else None, 0):
        time.sleep(0.02)
    children.Disconnect()
    print("parted", flush=True)
    total = 0
    while not comm.bcast((directory / "end").exists() if comm.rank == 0 else None, 0):
        total = comm.allreduce(total + 1, MPI.MAX)
        time.sleep(0.01)
    assert comm.allreduce(total) == comm.size * total
    print("done", flush=True)


if len(sys.argv) > 1:
    family(Path(sys.argv[1]))
else:
    child()
