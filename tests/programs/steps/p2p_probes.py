"""Probe, Iprobe, Mprobe, Improbe, Mrecv and Imrecv with messages of unknown size.

    mpirun -n N python p2p_probes.py STEPS [--pause SECONDS]

Each rank sends a batch to its right neighbour. The receiver takes the messages by a different mixture of probes in
every step.
"""

import hashlib
import time

import numpy as np
from mpi4py import MPI
from steps import parser, progress, report, run

OPTIONS = parser("steps").parse_args()
STEPS, PAUSE = OPTIONS.steps, OPTIONS.pause
SIZES = (0, 1, 7, 500, 20_000, 300_000)


def content(rank: int, step: int, i: int) -> np.ndarray:
    return (np.arange(SIZES[i], dtype="i") * (i + 3) + 17 * rank + step).astype("i")


def take(comm: MPI.Comm, left: int, step: int, i: int) -> np.ndarray:
    """Receive the next message with tag i, in way number (step + i) % 5."""
    status = MPI.Status()
    way = (step + i) % 5
    source = left if step % 2 else MPI.ANY_SOURCE
    if way == 0:
        comm.Probe(source, i, status)
    elif way == 1:
        while not comm.Iprobe(source, i, status):
            pass
    elif way == 2:
        message = comm.Mprobe(source, i, status)
    elif way == 3:
        while (message := comm.Improbe(source, i, status)) is None:
            pass
    else:
        into = np.empty(max(SIZES), dtype="i")
        comm.Recv(into, source, i, status)
        assert (status.source, status.tag) == (left, i)
        return into[: status.Get_count(MPI.INT)]
    assert (status.source, status.tag) == (left, i)
    into = np.empty(status.Get_count(MPI.INT), dtype="i")
    if PAUSE and i == 3:
        time.sleep(PAUSE)
    if way < 2:
        comm.Recv(into, left, i)
    elif way == 2:
        message.Recv(into, status)
    else:
        message.Irecv(into).Wait(status)
    if way >= 2:
        assert (status.source, status.tag, status.Get_count(MPI.INT)) == (left, i, len(into))
    return into


def main() -> None:
    comm = MPI.COMM_WORLD.Dup()
    rank, size = comm.rank, comm.size
    left, right = (rank - 1) % size, (rank + 1) % size
    digest = hashlib.sha256()
    for step in range(STEPS):
        progress(step)
        outgoing = [content(rank, step, i) for i in range(len(SIZES))]
        requests = [comm.Isend(data, right, i) for i, data in enumerate(outgoing)]
        order = list(range(len(SIZES)))
        for i in order[step % 3 :] + order[: step % 3]:
            data = take(comm, left, step, i)
            assert (data == content(left, step, i)).all(), (rank, step, i)
            digest.update(data.tobytes())
        MPI.Request.Waitall(requests)
        # a probe of MPI_PROC_NULL
        status = MPI.Status()
        comm.Probe(MPI.PROC_NULL, 0, status)
        assert status.source == MPI.PROC_NULL
    report(digest.hexdigest())


run(main)
