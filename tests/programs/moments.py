"""Phases in which a checkpoint may be asked for: each prints "in PHASE", stays there for some seconds, then checks its state.

    mpirun -n 2 python moments.py PHASE [SECONDS]

The last line is "ok" from rank 0 if everything is as it should be.
"""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np

if sys.argv[1] == "init":  # the time before MPI_Init
    print("in init", flush=True)
    time.sleep(float(sys.argv[2]))

from mpi4py import MPI

COMM = MPI.COMM_WORLD
TAIL = 3.0  # the job still runs when a test that has just taken its checkpoint kills it


def compute(seconds: float) -> None:
    """Rank 0 computes, without any MPI call; the others wait for it in a collective."""
    value = np.zeros(1)
    if COMM.rank == 0:
        until, count = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            count += int(np.sum(np.arange(1000)) == 499500)
        value[0] = float(count > 0)
    COMM.Bcast(value, root=0)
    assert value[0] == 1.0


def recv(seconds: float) -> None:
    """All but the last rank are blocked in Recv, in a chain that begins at a rank that sleeps."""
    token = np.zeros(1000)
    last = COMM.size - 1
    if COMM.rank == last:
        time.sleep(seconds)
        token[:] = np.arange(1000)
    else:
        COMM.Recv(token, source=COMM.rank + 1)
    if COMM.rank:
        COMM.Send(token, dest=COMM.rank - 1)
    assert token.sum() == 499500


def recv_parked(seconds: float) -> None:
    """Rank 1 is blocked on rank 0, which is about to enter a collective that rank 1 enters later."""
    token = np.full(1, float(COMM.rank))
    for _ in range(int(seconds * 20)):
        time.sleep(0.05)
        if COMM.rank == 0:
            COMM.Barrier()
            COMM.Send(token, dest=1)
        elif COMM.rank == 1:
            COMM.Barrier()
            COMM.Recv(token, source=0)
        else:
            COMM.Barrier()


def sleep(seconds: float) -> None:
    """All ranks sleep; the sleep isn't cut short."""
    begin = time.time()
    time.sleep(seconds)
    assert time.time() - begin >= seconds - 0.01


def child(seconds: float) -> None:
    """A child process lives for a while."""
    assert subprocess.run(["sleep", str(seconds)]).returncode == 0


def finalize(seconds: float) -> None:
    """Rank 0 is in Finalize, the others come later."""
    if COMM.rank:
        time.sleep(seconds)


def main() -> None:
    phase, seconds = sys.argv[1], float(sys.argv[2])
    COMM.Barrier()
    if COMM.rank == 0 and phase != "init":
        print(f"in {phase}", flush=True)
    if phase != "init":
        {"compute": compute, "recv": recv, "recv_parked": recv_parked, "sleep": sleep, "child": child, "finalize": finalize}[phase](seconds)
    if phase == "finalize":
        if COMM.rank == 0:
            print("ok", flush=True)
        return
    time.sleep(TAIL)
    total = COMM.allreduce(COMM.rank)
    assert total == COMM.size * (COMM.size - 1) // 2
    if COMM.rank == 0:
        print("ok", flush=True)


main()
