"""Phases in which a checkpoint may be requested. Each prints "in PHASE", lasts until a file exists, then checks its
state.

    mpirun -n 2 python moments.py PHASE GO END

The phase ends when the file GO exists (the phase "sleep" has a fixed length). The job ends when END exists, too. The
last line is "ok" from rank 0 if no check has failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np

PHASE, GO, END = sys.argv[1:]
SLEEP = 6.0  # seconds
WAIT = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)"


def until_there(file: str) -> None:
    while not os.path.exists(file):
        time.sleep(0.01)


if PHASE == "init":  # the time before MPI_Init
    print("in init", flush=True)
    until_there(GO)

from mpi4py import MPI  # noqa: E402

COMM = MPI.COMM_WORLD


def compute() -> None:
    """Rank 0 computes, without any MPI call; the others wait for it in a collective."""
    value = np.zeros(1)
    if COMM.rank == 0:
        count = 0
        while not (count and os.path.exists(GO)):
            count += int(np.sum(np.arange(1000)) == 499500)
        value[0] = float(count > 0)
    COMM.Bcast(value, root=0)
    assert value[0] == 1.0


def recv() -> None:
    """All ranks except the last are blocked in Recv, in a chain that begins at a rank that sleeps."""
    token = np.zeros(1000)
    last = COMM.size - 1
    if COMM.rank == last:
        until_there(GO)
        token[:] = np.arange(1000)
    else:
        COMM.Recv(token, source=COMM.rank + 1)
    if COMM.rank:
        COMM.Send(token, dest=COMM.rank - 1)
    assert token.sum() == 499500


def recv_parked() -> None:
    """Rank 1 is blocked on rank 0, which is about to enter a collective that rank 1 enters later."""
    token = np.full(1, float(COMM.rank))
    while not COMM.bcast(os.path.exists(GO)):
        time.sleep(0.05)
        COMM.Barrier()
        if COMM.rank == 0:
            COMM.Send(token, dest=1)
        elif COMM.rank == 1:
            COMM.Recv(token, source=0)


def sleep() -> None:
    """All ranks sleep; the sleep isn't cut short."""
    begin = time.time()
    time.sleep(SLEEP)
    assert time.time() - begin >= SLEEP - 0.01


def child() -> None:
    """A child process lives that cannot be saved."""
    connect = "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.connect(('127.0.0.1', 9)); "
    assert subprocess.run([sys.executable, "-c", connect + WAIT, GO]).returncode == 0


def finalize() -> None:
    """Rank 0 is in Finalize, the others come later."""
    if COMM.rank:
        until_there(GO)
    else:
        print("ok", flush=True)


def main() -> None:
    COMM.Barrier()
    if COMM.rank == 0 and PHASE != "init":
        print(f"in {PHASE}", flush=True)
    phases = {
        "compute": compute,
        "recv": recv,
        "recv_parked": recv_parked,
        "sleep": sleep,
        "child": child,
        "finalize": finalize,
    }
    if PHASE in phases:
        phases[PHASE]()
    if PHASE == "finalize":
        return
    until_there(END)
    total = COMM.allreduce(COMM.rank)
    assert total == COMM.size * (COMM.size - 1) // 2
    if COMM.rank == 0:
        print("ok", flush=True)


main()
