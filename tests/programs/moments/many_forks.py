"""Ranks that fork short-lived children all the time: from the thread that calls MPI and from one that does not, while a
third one is in MPI.

Usage: many_forks.py GO (wait for this file)."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from mpi4py import MPI


def fork_once(code: int) -> None:
    pid = os.fork()
    if pid == 0:
        time.sleep(0.002 * (code % 4))
        os._exit(code)
    assert os.waitpid(pid, 0) == (pid, code << 8)


def main() -> None:
    go, over = Path(sys.argv[1]), threading.Event()
    comm = MPI.COMM_WORLD
    beside = comm.Dup()

    def talk() -> None:
        rounds = 0
        while not beside.allreduce(over.is_set(), op=MPI.LAND):
            rounds += beside.allreduce(1) == beside.size
        assert rounds > 0

    def fork_beside() -> None:
        while not over.is_set():
            fork_once(5)

    threads = [threading.Thread(target=talk), threading.Thread(target=fork_beside)]
    for thread in threads:
        thread.start()
    comm.Barrier()
    print("ready", flush=True)
    while not comm.bcast(go.exists(), root=0):
        for code in range(8):
            fork_once(code)
        Path(f"beat.{comm.rank}").write_bytes(b"x")
    over.set()
    for thread in threads:
        thread.join()
    comm.Barrier()
    if comm.rank == 0:
        print("ok", flush=True)


main()
