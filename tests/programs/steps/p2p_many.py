"""Many outstanding Isends and Irecvs on several communicators, completed by every function of the Wait and Test
families.

    mpirun -n N python p2p_many.py STEPS [--pause SECONDS]

Messages of one tag are received late, and in another order than their tags, so that many are unexpected. Some sizes are
above the eager limit, some below.
"""

import hashlib
import random
import time

import numpy as np
from mpi4py import MPI
from steps import parser, progress, report, run

OPTIONS = parser("steps").parse_args()
STEPS, PAUSE = OPTIONS.steps, OPTIONS.pause
SIZES = (4, 1000, 70_000)
PER_PEER = 6


def complete(requests: list[MPI.Request], way: int) -> None:
    """Complete all requests in one of eight ways."""
    if way == 0:
        MPI.Request.Waitall(requests)
    elif way == 1:
        for request in reversed(requests):
            request.Wait()
    elif way == 2:
        done = set()
        for _ in requests:
            done.add(MPI.Request.Waitany(requests))
        assert len(done) == len(requests) and MPI.Request.Waitany(requests) == MPI.UNDEFINED
    elif way == 3:
        left = len(requests)
        while left:
            left -= len(MPI.Request.Waitsome(requests) or ())
    elif way == 4:
        while not MPI.Request.Testall(requests):
            pass
    elif way == 5:
        left = len(requests)
        while left:
            index, flag = MPI.Request.Testany(requests)
            left -= flag and index != MPI.UNDEFINED
    elif way == 6:
        left = len(requests)
        while left:
            left -= len(MPI.Request.Testsome(requests) or ())
    else:
        for request in requests:
            while not request.Get_status():
                pass
            assert request.Test()


def main() -> None:
    world = MPI.COMM_WORLD
    comms = [world, world.Dup(), world.Split(0, world.size - world.rank)]  # the last one in reverse order
    rng = random.Random(world.rank)
    digest = hashlib.sha256()
    peers = [p for p in range(world.size)]
    for step in range(STEPS):
        progress(step)
        sends, outgoing = [], []
        for comm in comms:
            for peer in peers:
                for k in range(PER_PEER):
                    size = SIZES[(step + k) % 3]
                    outgoing.append(np.full(size, 1000 * comm.rank + 10 * k + step % 10, dtype="i"))
                    sends.append(comm.Isend(outgoing[-1], peer, tag=k % 3))
        if PAUSE:
            time.sleep(PAUSE)
        receives, into = [], []
        for tag in (2, 0, 1):
            for index, comm in enumerate(comms):
                for peer in peers:
                    for k in range(tag, PER_PEER, 3):
                        buffer = np.zeros(max(SIZES), dtype="i")
                        into.append((index, peer, k, buffer))
                        receives.append(comm.Irecv(buffer, peer, tag))
        if rng.random() < 0.5:
            complete(receives, step % 8)
            complete(sends, (step + 3) % 8)
        else:
            complete(sends + receives, (step + 5) % 8)
        for index, peer, k, buffer in into:
            size = SIZES[(step + k) % 3]
            assert (buffer[:size] == 1000 * peer + 10 * k + step % 10).all() and not buffer[size:].any(), (
                world.rank,
                step,
                index,
                peer,
                k,
            )
            digest.update(buffer[:size].tobytes())
    report(digest.hexdigest())


run(main)
