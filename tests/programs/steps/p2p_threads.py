"""Several threads per rank communicate at the same time, each on a communicator of its own and all on a common one.

mpirun -n N python p2p_threads.py STEPS [--pause SECONDS]
"""

import hashlib
import threading
import time

import numpy as np
from mpi4py import MPI
from steps import parser, progress, report, run

OPTIONS = parser("steps").parse_args()
STEPS, PAUSE = OPTIONS.steps, OPTIONS.pause
THREADS = 3


def work(own: MPI.Comm, common: MPI.Comm, number: int, results: list[str]) -> None:
    """Exchange with both neighbours. Tags distinguish the messages on the common communicator."""
    rank, size = own.rank, own.size
    left, right = (rank - 1) % size, (rank + 1) % size
    digest = hashlib.sha256()
    for step in range(STEPS):
        if number == 0:
            progress(step)
        n = (1, 3000, 50_000)[(step + number) % 3]
        data = np.full(n, rank * 100 + step + number, dtype="i")
        first, second = np.zeros_like(data), np.zeros_like(data)
        requests = [own.Irecv(first, left, 5), common.Isend(data, left, number)]
        own.Send(data, right, 5)
        if PAUSE:
            time.sleep(PAUSE)
        common.Recv(second, right, number)
        MPI.Request.Waitall(requests)
        assert (first == left * 100 + step + number).all() and (second == right * 100 + step + number).all(), (
            rank,
            number,
            step,
        )
        digest.update(first.tobytes() + second.tobytes())
    results[number] = digest.hexdigest()


def main() -> None:
    assert MPI.Query_thread() == MPI.THREAD_MULTIPLE
    comm = MPI.COMM_WORLD
    common = comm.Dup()
    own = [comm.Dup() for _ in range(THREADS)]
    results = [""] * THREADS
    threads = [threading.Thread(target=work, args=(own[i], common, i, results)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(results)
    report("".join(results))


run(main)
