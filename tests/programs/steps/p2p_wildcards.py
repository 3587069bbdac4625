"""Wildcard receives: every rank sends bursts to rank 0, which receives them by MPI_ANY_SOURCE and MPI_ANY_TAG and
answers.

    mpirun -n N python p2p_wildcards.py STEPS [--pause SECONDS]

Checks that messages of one sender and communicator arrive in order, for every mixture of receives.
"""

import hashlib
import time

import numpy as np
from mpi4py import MPI
from steps import parser, progress, report, run, tell, told

OPTIONS = parser("steps").parse_args()
STEPS, PAUSE = OPTIONS.steps, OPTIONS.pause
BURST = 12


def serve(comm: MPI.Comm, step: int) -> int:
    """Rank 0: BURST messages from each other rank, tags 0..2 in turn; returns a checksum."""
    seen = {source: 0 for source in range(1, comm.size)}
    total = 0
    open_requests: list[tuple[MPI.Request, np.ndarray]] = []
    expected = BURST * (comm.size - 1)
    while sum(seen.values()) < expected:
        left = expected - sum(seen.values())
        for _ in range(min(4, left) - len(open_requests)):
            buffer = np.zeros(64, dtype="i")
            open_requests.append((comm.Irecv(buffer, MPI.ANY_SOURCE, MPI.ANY_TAG), buffer))
        # receives match in the order in which they were posted, so they are waited for in that order
        request, buffer = open_requests.pop(0)
        status = MPI.Status()
        request.Wait(status)
        source, n = status.source, status.Get_count(MPI.INT)
        assert buffer[0] == step and buffer[1] == seen[source] and n == 3 + buffer[1], (
            step,
            source,
            buffer[:3],
            seen,
            n,
        )
        assert status.tag == seen[source] % 3 and (buffer[3:n] == source).all()
        seen[source] += 1
        total += int(buffer[:n].sum())
        if PAUSE and sum(seen.values()) == expected // 2:
            time.sleep(PAUSE)
    return total


def main() -> None:
    comm = MPI.COMM_WORLD
    digest = hashlib.sha256()
    for step in range(STEPS):
        progress(step)
        if comm.rank == 0:
            total = serve(comm, step)
            digest.update(str(total).encode())
            for dest in range(1, comm.size):
                tell(comm, dest, 9, step, total)
        else:
            for i in range(BURST):
                message = np.full(3 + i, comm.rank, dtype="i")
                message[:2] = step, i
                comm.Send(message, 0, tag=i % 3)
            which, total = told(comm, MPI.ANY_SOURCE, 9, count=2)
            assert which == step
            digest.update(str(total).encode())
    report(digest.hexdigest())


run(main)
