"""Rounds of calls that programs seldom make: persistent ones, windows, files. After some rounds rank 1 does something
else for ever.

stuck_calls.py KIND [asleep]: which calls. Prints `stuck` then.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

KIND = sys.argv[1]
world = MPI.COMM_WORLD
rank, size = world.rank, world.size
left, right = (rank - 1) % size, (rank + 1) % size
mine, theirs = np.full(8, rank, "d"), np.zeros(8)


def spin() -> None:
    print("stuck", flush=True)
    while True:
        if "asleep" in sys.argv:
            time.sleep(10**6)


def rounds(one: Callable[[], object]) -> None:
    """Rank 1 leaves out the last one."""
    for _ in range(5):
        one()
    if rank == 1:
        spin()
    one()


def again(*requests: MPI.Prequest) -> None:
    MPI.Prequest.Startall(list(requests))
    MPI.Request.Waitall(list(requests))


def lock() -> None:
    """Rank 1 keeps the lock of rank 0's memory."""
    window = MPI.Win.Create(mine, 8, comm=world)
    for _ in range(5):
        window.Lock(0)
        window.Put(theirs, 0)
        window.Unlock(0)
    world.Barrier()
    if rank == 1:
        window.Lock(0)
    world.Barrier()
    if rank == 1:
        spin()
    window.Lock(0)


def locks() -> None:
    """Each of the ranks 0 and 1 has the lock of its own memory and requests that of the other's."""
    window = MPI.Win.Create(mine, 8, comm=world)
    other = MPI.Win.Create(theirs, 8, comm=world)
    if rank < 2:
        (window, other)[rank].Lock(2)
    world.Barrier()
    if rank == 1:
        print("stuck", flush=True)
    if rank < 2:
        (other, window)[rank].Lock(2)
    world.Barrier()


def fence() -> None:
    window = MPI.Win.Create(mine, 8, comm=world)
    rounds(window.Fence)


def file() -> None:
    opened = MPI.File.Open(world, "data", MPI.MODE_CREATE | MPI.MODE_RDWR)
    rounds(lambda: opened.Write_at_all(rank * mine.nbytes, mine))


def collective() -> None:
    request = world.Allreduce_init(mine, theirs)
    rounds(lambda: again(request))


def overwritten() -> None:
    """As collective(), but the call that made the request is no longer in the trace."""
    request = world.Allreduce_init(mine, theirs)
    for _ in range(1 << 16):
        world.Send(mine, MPI.PROC_NULL)
    rounds(lambda: again(request))


def epochs(left_out: str) -> None:
    """Each rank gives its left neighbour access to its memory, and has access to that of its right neighbour. In the
    last round rank 1 leaves out a call."""
    window = MPI.Win.Create(mine, 8, comm=world)
    group = window.Get_group()
    to, by = group.Incl([right]), group.Incl([left])
    calls = {
        "post": lambda: window.Post(by),
        "start": lambda: window.Start(to),
        "complete": window.Complete,
        "wait": window.Wait,
    }
    order = ["post", "start", "complete", "wait"]
    # so that no other call is missing: otherwise the rank that waited for its complete could be named as well
    if rank == 1 and left_out == "post":
        order = ["start", "complete", "post", "wait"]
    for i in range(6):
        for name in order:
            if (rank, i, name) == (1, 5, left_out):
                spin()
            calls[name]()


def post() -> None:
    epochs("post")


def complete() -> None:
    epochs("complete")


def messages() -> None:
    requests = world.Recv_init(theirs, left, 7), world.Send_init(mine, right, 7)
    rounds(lambda: again(*requests))


globals()[KIND]()
