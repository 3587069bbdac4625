"""Rounds of messages around a ring and an Allreduce, as in ordinary programs. After some rounds one rank gets stuck in
a certain way.

stuck.py KIND [ROUNDS]: rank 1 is at fault, or the ranks named below. Prints `stuck` then. Without a fault it continues
until a file `end` exists.
"""

import sys
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path

from mpi4py import MPI

KIND = sys.argv[1]
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 30
world = MPI.COMM_WORLD
rank, size = world.rank, world.size
left, right = (rank - 1) % size, (rank + 1) % size
mine, theirs = array("d", [rank] * 64), array("d", [0] * 64)


def one_round(skip: bool = False, together: Callable[[int], object] = world.allreduce) -> None:
    time.sleep(0.005)  # in place of work, which would take the processors from other programs
    if rank % 2 == 0:
        world.Ssend(mine, right, 7)
        world.Recv(theirs, left, 7)
    else:
        if not skip:
            world.Recv(theirs, left, 7)
        world.Ssend(mine, right, 7)
    together(rank)


def go_on(alone: MPI.Comm) -> None:
    while True:
        alone.Barrier()
        time.sleep(0.001)


def fault() -> None:
    print("stuck", flush=True)
    if KIND == "spin":
        while True:
            pass
    if KIND == "thread":
        threading.Thread(target=go_on, args=(MPI.COMM_SELF.Dup(),), daemon=True).start()
    if KIND in ("sleep", "thread"):
        time.sleep(10**6)
    if KIND == "skip":
        one_round(skip=True)
    if KIND == "mismatch":
        one_round(together=lambda _: world.Barrier())


for _ in range(ROUNDS):
    one_round()
if KIND == "deadlock":  # of ranks 0 and 1; the others wait for them
    if rank == 0:
        print("stuck", flush=True)
    if rank < 2:
        world.Recv(theirs, 1 - rank, 8)
    world.Barrier()
if rank == 1 and KIND not in ("healthy", "deadlock"):
    fault()
done = 0
while not world.bcast(Path("end").exists() if rank == 0 else None):
    one_round()
    done += 1
    if rank == 0 and done == ROUNDS:
        print("going on", flush=True)
