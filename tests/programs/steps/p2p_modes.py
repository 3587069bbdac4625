"""The send modes and other operations on a request: Ssend, Bsend, Rsend, Cancel, Request_free, truncation.

    mpirun -n N python p2p_modes.py STEPS [--pause SECONDS]      (N even)

A synchronous send must not complete before its message is matched, even if a checkpoint has taken the message off the
network.
"""

import hashlib
import time

import numpy as np
from mpi4py import MPI
from steps import parser, progress, report, run, tell, told

OPTIONS = parser("steps").parse_args()
STEPS, PAUSE = OPTIONS.steps, OPTIONS.pause
DATA, GO, READY = 1, 2, 3


def synchronous(comm: MPI.Comm, step: int, first: bool, peer: int) -> None:
    """Three Issends on one stream, then ordinary sends behind them. Before each, the receiver waits for a message."""
    n = 10 if step % 2 else 40_000
    if first:
        data = [np.full(n, step * 10 + i, dtype="q") for i in range(3)]
        requests = [comm.Issend(d, peer, DATA) for d in data]
        behind = [comm.Isend(np.array([step, i], dtype="q"), peer, DATA) for i in range(2)]
        for i, request in enumerate(requests):
            until = time.perf_counter() + max(PAUSE, 0.001)
            while time.perf_counter() < until:
                assert not request.Test(), f"step {step}: synchronous send {i} completed before its receive"
                time.sleep(0.0005)
            tell(comm, peer, GO, i)
            request.Wait()
        MPI.Request.Waitall(behind)
    else:
        for i in range(3):
            assert told(comm, peer, GO) == (i,)
            into = np.zeros(n, dtype="q")
            if i == 1:
                status = MPI.Status()
                comm.Mprobe(MPI.ANY_SOURCE, DATA, status).Recv(into, status)
                assert status.Get_count(MPI.INT64_T) == n
            else:
                comm.Recv(into, peer, DATA)
            assert (into == step * 10 + i).all()
        for i in range(2):
            into = np.zeros(2, dtype="q")
            comm.Recv(into, peer, DATA)
            assert into.tolist() == [step, i]


def buffered(comm: MPI.Comm, step: int, first: bool, peer: int) -> None:
    n = 6
    data = [np.arange(200 * (i + 1), dtype="d") + step for i in range(n)]
    if first:
        room = bytearray(sum(d.nbytes + MPI.BSEND_OVERHEAD for d in data))
        MPI.Attach_buffer(room)
        for i, d in enumerate(data):
            copy = d.copy()
            if i % 2:
                comm.Bsend(copy, peer, DATA)
            else:
                comm.Ibsend(copy, peer, DATA).Wait()
            copy[:] = -1  # the buffer can be used again
        tell(comm, peer, GO, step)
        MPI.Detach_buffer()
    else:
        if PAUSE:
            time.sleep(PAUSE)
        assert told(comm, peer, GO) == (step,)
        for d in data:
            into = np.zeros_like(d)
            comm.Recv(into, peer, DATA)
            assert (into == d).all()


def ready(comm: MPI.Comm, step: int, first: bool, peer: int) -> None:
    if first:
        assert told(comm, peer, READY) == (step,)
        comm.Rsend(np.array([step], dtype="q"), peer, DATA)
        comm.Irsend(np.array([step + 1], dtype="q"), peer, DATA).Wait()
    else:
        into = np.zeros(2, dtype="q")
        requests = [comm.Irecv(into[:1], peer, DATA), comm.Irecv(into[1:], peer, DATA)]
        tell(comm, peer, READY, step)
        MPI.Request.Waitall(requests)
        assert into.tolist() == [step, step + 1]


def odd(comm: MPI.Comm, step: int, first: bool, peer: int) -> None:
    """A receive without a message is cancelled; freed requests continue; a short buffer is an error."""
    nothing = np.zeros(4, dtype="i")
    request = comm.Irecv(nothing, peer, 77)
    if PAUSE:
        time.sleep(PAUSE / 4)
    assert not request.Test()
    request.Cancel()
    status = MPI.Status()
    request.Wait(status)
    assert status.Is_cancelled() and not nothing.any()
    if first:
        keep = np.full(5, step, dtype="i")
        comm.Isend(keep, peer, DATA).Free()
        comm.Send(np.arange(8, dtype="i"), peer, DATA)
        assert told(comm, peer, GO) == (step,)
    else:
        into = np.zeros(5, dtype="i")
        comm.Recv(into, peer, DATA)
        assert (into == step).all()
        try:
            comm.Recv(into[:4], peer, DATA)
        except MPI.Exception as error:
            assert error.Get_error_class() == MPI.ERR_TRUNCATE
        else:
            raise AssertionError("a message longer than the buffer was received without an error")
        tell(comm, peer, GO, step)


def main() -> None:
    comm = MPI.COMM_WORLD.Dup()
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    peer = comm.rank ^ 1
    digest = hashlib.sha256()
    if peer < comm.size:
        for step in range(STEPS):
            progress(step)
            first = (comm.rank + step) % 2 == 0
            for act in (synchronous, buffered, ready, odd):
                act(comm, step, first, peer)
                digest.update(f"{act.__name__}{step}".encode())
    report(digest.hexdigest())


run(main)
