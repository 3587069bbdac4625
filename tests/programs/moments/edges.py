"""Situations in which a checkpoint depends on the question which ranks can continue. Each is repeated until the file GO
exists, and checked. The job ends when END exists, too.

    mpirun -n N python edges.py KIND GO END

Prints "in KIND" when it begins and, as rank 0's last line, "ok".

    chain      a collective waits for a rank; this rank waits for messages of ranks that stop at other collectives
    crossed    pairs exchange messages; one rank of the pair sends after a collective, the other one receives before
               or after it
    anysource  rank 0 receives from any source while the only sender is about to enter a collective
    polling    the same, with a Test between long sleeps
    threads    rank 0 receives from the last rank's second thread, which stops at a collective, while its first thread
               is inside another
    late       rank 0 is in MPI_Init, the others come when GO exists
    early      rank 0 calls MPI_Init when GO exists, the others when END exists
    leave      rank 0 has left the job, the others leave when GO exists
    wrong      rank 0 makes wrong collective calls until it enters the collective in which the others wait for it
    compute    rank 0 computes without any MPI call; the others wait for it in a collective
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

KIND, GO, END = sys.argv[1:]


def until_there(file: str) -> None:
    while not os.path.exists(file):
        time.sleep(0.01)


FIRST = os.environ["PMI_RANK"] == "0"
if KIND in ("late", "early") and FIRST:
    print(f"in {KIND}", flush=True)
if KIND == "early":
    until_there(GO if FIRST else END)
elif KIND == "late" and not FIRST:
    until_there(GO)

from mpi4py import MPI  # noqa: E402

WORLD = MPI.COMM_WORLD
ME, SIZE = WORLD.rank, WORLD.size


def chain(turn: int, own: MPI.Comm, ends: MPI.Comm) -> None:
    """The last rank is in a collective with rank 0. Rank 0 waits, along a chain, for ranks that stop at collectives of
    their own."""
    token = np.zeros(1, dtype="i8")
    if ME == SIZE - 1:
        ends.Barrier()
        return
    if ME < SIZE - 2:
        WORLD.Recv(token, source=ME + 1, tag=turn)
        assert token[0] == turn * 100 + ME + 1
    else:
        time.sleep(0.02)
    if ME:
        own.Barrier()
        own.Barrier()
        token[0] = turn * 100 + ME
        WORLD.Send(token, dest=ME - 1, tag=turn)
    else:
        ends.Barrier()


def crossed(turn: int, *_: MPI.Comm) -> None:
    """One rank of each pair sends after a collective of all ranks, the other one posts its receive before it. They take
    turns."""
    token = np.full(1, turn, dtype="i8")
    sender = turn % 2
    if ME % 2 == sender:
        WORLD.Barrier()
        if (peer := ME ^ 1) < SIZE:
            WORLD.Ssend(token, dest=peer, tag=turn)
    else:
        request = WORLD.Irecv(token, source=ME ^ 1, tag=turn) if (ME ^ 1) < SIZE else MPI.REQUEST_NULL
        WORLD.Barrier()
        request.Wait()
    assert token[0] == turn


def anysource(turn: int, *_: MPI.Comm, poll: float = 0.0) -> None:
    """The others continue to the next turn's collective, and rank 0 needs a message of one that must pass it."""
    token = np.full(1, turn, dtype="i8")
    last = SIZE - 1
    if ME == 0:
        for _ in range(2):
            if poll:
                request = WORLD.Irecv(token, source=MPI.ANY_SOURCE, tag=turn)
                while not request.Test():
                    time.sleep(poll)
            else:
                WORLD.Recv(token, source=MPI.ANY_SOURCE, tag=turn)
        WORLD.Barrier()
    else:
        if ME == last:
            WORLD.Send(token, dest=0, tag=turn)
        OTHERS.Barrier()
        time.sleep(0.01)
        OTHERS.Barrier()
        if ME == last:
            WORLD.Send(token, dest=0, tag=turn)
        WORLD.Barrier()
    assert token[0] == turn


def polling(turn: int, *_: MPI.Comm) -> None:
    anysource(turn, poll=0.3)


def threads(turn: int, own: MPI.Comm, ends: MPI.Comm) -> None:
    """The last rank's main thread is in a collective. Rank 0 enters it only when it has the message of that rank's
    other thread."""
    token = np.full(1, turn, dtype="i8")

    def second() -> None:
        for _ in range(3):
            time.sleep(0.005)
            own.Barrier()
        WORLD.Send(token, dest=0, tag=turn)

    if ME == SIZE - 1:
        other = threading.Thread(target=second)
        other.start()
        ends.Barrier()
        other.join()
    elif ME == 0:
        WORLD.Recv(token, source=SIZE - 1, tag=turn)
        ends.Barrier()
    assert token[0] == turn


def compute() -> None:
    value = np.zeros(1)
    if ME == 0:
        count = 0
        while not (count and os.path.exists(GO)):
            count += int(np.sum(np.arange(1000)) == 499500)
        value[0] = float(count > 0)
    WORLD.Bcast(value, root=0)
    assert value[0] == 1.0


def wrong() -> None:
    """Whenever a checkpoint is requested, the others are in a collective in which rank 0 is below its target."""
    value = np.zeros(1)
    if ME == 0:
        while not (value[0] and os.path.exists(GO)):
            time.sleep(0.01)
            try:
                WORLD.Bcast(value, root=SIZE)
            except MPI.Exception as error:
                value[0] = error.Get_error_class() == MPI.ERR_ROOT
    WORLD.Bcast(value, root=0)
    assert value[0] == 1.0


OTHERS = WORLD.Split(int(ME > 0), ME)


def main() -> None:
    own, ends = MPI.COMM_SELF.Dup(), WORLD.Split(int(ME in (0, SIZE - 1)), -ME)
    WORLD.Barrier()
    if ME == 0 and KIND not in ("late", "early"):
        print(f"in {KIND}", flush=True)
    loops: dict[str, Callable[..., None]] = {
        "chain": chain,
        "crossed": crossed,
        "anysource": anysource,
        "polling": polling,
        "threads": threads,
    }
    if KIND in loops:
        turn = 0
        while not WORLD.bcast(os.path.exists(GO)):
            loops[KIND](turn, own, ends)
            turn += 1
    elif KIND == "compute":
        compute()
    elif KIND == "wrong":
        wrong()
    if KIND != "leave":
        until_there(END)
    assert WORLD.allreduce(ME) == SIZE * (SIZE - 1) // 2
    if ME == 0:
        print("ok", flush=True)
    if KIND == "leave":
        MPI.Finalize()
        if ME:
            until_there(GO)


main()
