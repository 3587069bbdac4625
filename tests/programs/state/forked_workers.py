"""Children that a rank has forked: one before MPI_Init, one after it, and grandchildren, which answer over pipes; and
two that have ended, for which the rank waits later.

Usage: forked_workers.py GO (wait for this file)."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import mpi4py

mpi4py.rc.initialize = False
from mpi4py import MPI  # noqa: E402


class Worker:
    """A forked process that adds its number to each byte that it gets, and asks a child of its own for every third."""

    def __init__(self, number: int) -> None:
        (theirs, self.down), (self.up, ours) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.down), os.close(self.up)
            deeper = Worker(number + 1) if number % 10 == 0 else None
            serve(theirs, ours, number, deeper)
            os._exit(number)
        os.close(theirs), os.close(ours)

    def ask(self, value: int) -> int:
        os.write(self.down, bytes([value]))
        return os.read(self.up, 1)[0]

    def end(self) -> int:
        os.close(self.down)
        pid, status = os.waitpid(self.pid, 0)
        assert pid == self.pid
        return os.waitstatus_to_exitcode(status)


def serve(down: int, up: int, number: int, deeper: Worker | None) -> None:
    me, parent = os.getpid(), os.getppid()
    while value := os.read(down, 1):
        assert (os.getpid(), os.getppid()) == (me, parent)
        answer = value[0] + number
        os.write(up, bytes([deeper.ask(answer) if deeper and value[0] % 3 == 0 else answer]))
    if deeper:
        assert deeper.end() == number + 1


def ended(code: int) -> int:
    pid = os.fork()
    if pid == 0:
        if code < 0:
            os.kill(os.getpid(), -code)
        os._exit(code)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


def main() -> None:
    ends = []
    signal.signal(signal.SIGCHLD, lambda *_: ends.append(1))
    go = Path(sys.argv[1])
    early = Worker(10)
    MPI.Init()
    comm = MPI.COMM_WORLD
    late = Worker(20)
    late_pid = late.pid
    exited, killed = ended(7), ended(-signal.SIGTERM)
    seen = len(ends)
    comm.Barrier()
    print("ready", flush=True)
    rounds = 0
    while not comm.bcast(go.exists(), root=0):
        value = comm.allreduce(rounds) % 60
        assert early.ask(value) == value + (21 if value % 3 == 0 else 10)
        assert late.ask(value) == value + (41 if value % 3 == 0 else 20)
        rounds += 1
        time.sleep(0.005)
    assert len(ends) == seen
    assert os.waitpid(killed, 0) == (killed, signal.SIGTERM) and os.waitpid(-1, os.WNOHANG) == (exited, 7 << 8)
    newest = Worker(30)
    assert newest.ask(1) == 31
    os.kill(newest.pid, signal.SIGKILL)
    assert newest.end() == -signal.SIGKILL
    assert (late.end(), early.end()) == (20, 10) and late.pid == late_pid  # late has a copy of early.down
    comm.Barrier()
    if comm.rank == 0:
        print("ok", flush=True)
    MPI.Finalize()


main()
