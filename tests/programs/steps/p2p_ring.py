"""Ring exchanges with derived datatypes: columns of a matrix, structs, Sendrecv, Sendrecv_replace.

    mpirun -n N python p2p_ring.py STEPS [--pause SECONDS]

Every value is checked by its receiver. Rank 0 prints one digest that depends only on N and STEPS.
"""

import hashlib
import time

import numpy as np
from mpi4py import MPI
from steps import parser, progress, report, run

OPTIONS = parser("steps").parse_args()
STEPS, PAUSE = OPTIONS.steps, OPTIONS.pause


def main() -> None:
    comm = MPI.COMM_WORLD.Dup()
    rank, size = comm.rank, comm.size
    left, right = (rank - 1) % size, (rank + 1) % size
    rows, cols = 64, 48
    column = MPI.DOUBLE.Create_vector(rows, 1, cols).Commit()
    record = (
        MPI.Datatype.Create_struct([1, 3, 2], [0, 8, 32], [MPI.INT, MPI.DOUBLE, MPI.SHORT])
        .Create_resized(0, 40)
        .Commit()
    )
    matrix = np.arange(rows * cols, dtype="d").reshape(rows, cols) + 1000 * rank
    digest = hashlib.sha256()

    for step in range(STEPS):
        progress(step)
        # the last column goes to the right neighbour, and into its first column
        sent = matrix[:, -1].copy()
        comm.Sendrecv(
            [matrix.reshape(-1)[cols - 1 :], 1, column],
            dest=right,
            sendtag=step,
            recvbuf=[matrix, 1, column],
            source=left,
            recvtag=step,
        )
        check = np.empty(rows)
        comm.Sendrecv(sent, right, 7, check, left, 7)
        assert (matrix[:, 0] == check).all(), (rank, step, "column")

        # structs, nonblocking, received before the wait of the send
        out = np.zeros(
            10,
            dtype=np.dtype(
                {"names": ["a", "b", "c"], "formats": ["i4", "3f8", "2i2"], "offsets": [0, 8, 32], "itemsize": 40}
            ),
        )
        out["a"], out["b"], out["c"] = rank * 100 + step, np.arange(30).reshape(10, 3) * (step + 1), (rank, step % 1000)
        into = np.zeros_like(out)
        requests = [
            comm.Irecv([into, 10, record], source=left, tag=3),
            comm.Isend([out, 10, record], dest=right, tag=3),
        ]
        if PAUSE:
            time.sleep(PAUSE)
        MPI.Request.Waitall(requests)
        assert (into["a"] == left * 100 + step).all() and (into["c"] == (left, step % 1000)).all(), (
            rank,
            step,
            "struct",
        )
        assert (into["b"] == np.arange(30).reshape(10, 3) * (step + 1)).all()

        token = np.array([rank, step], dtype="q")
        status = MPI.Status()
        comm.Sendrecv_replace(token, dest=right, sendtag=1, source=MPI.ANY_SOURCE, recvtag=MPI.ANY_TAG, status=status)
        assert (
            token.tolist() == [left, step]
            and status.source == left
            and status.tag == 1
            and status.Get_count(MPI.INT64_T) == 2
        )
        matrix[:, -1] = matrix.sum(axis=1) % 1009
        digest.update(matrix.tobytes())

    for made in (column, record):
        made.Free()
    report(digest.hexdigest())
    comm.Free()


run(main)
