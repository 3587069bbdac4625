"""A seeded random mix of traffic on inter-communicators, whose groups overlap in all ways, and on communicators of one
group.

    mpirun -n N python inter_stress.py SEED STEPS [--pause SECONDS]          at least 3 ranks

As in stress.py every rank derives the same schedule from the seed, and steps may leave operations pending that later
steps complete. Rank 0 prints "step K" now and then and, as its last line, "digest HEX" of the data that all ranks have
received. It can't deadlock: ranks do the steps in the same order, and a step blocks only on operations that its members
have started in this step or before.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from mpi4py import MPI
from steps import parser, progress, report, run

WORLD = MPI.COMM_WORLD
ME, SIZE = WORLD.rank, WORLD.size
COMMS_MAX = 6


@dataclass(eq=False)
class Comm:
    """All ranks know it; only members have ``handle``. ``sides``: world ranks of both groups in rank order; only one
    group if it is no inter-communicator."""

    handle: MPI.Comm | None
    sides: list[list[int]]
    pending: list[Callable[[], None]] = field(default_factory=list)

    @property
    def side(self) -> int:
        """The index of this rank's group."""
        return int(len(self.sides) == 2 and ME in self.sides[1])

    @property
    def peers(self) -> list[int]:
        """The ranks from which this rank's collectives gather."""
        return self.sides[-1 - self.side] if len(self.sides) == 2 else self.sides[0]


class Stress:
    """The state of one rank."""

    def __init__(self, seed: int) -> None:
        self.seed, self.step = seed, 0
        self.digest = hashlib.blake2b(digest_size=16)
        self.comms = [Comm(WORLD, [list(range(SIZE))])]
        self.largest = MPI.Op.Create(
            lambda a, b, _: np.maximum(np.frombuffer(a, "i8"), np.frombuffer(b, "i8"), out=np.frombuffer(b, "i8")),
            commute=True,
        )

    def note(self, *arrays: np.ndarray) -> None:
        for a in arrays:
            self.digest.update(a.tobytes())

    def data(self, n: int, *salt: int) -> np.ndarray:
        """Values that depend only on this step and the salt."""
        return np.random.default_rng([self.seed, self.step, *salt]).integers(0, 65521, n)

    def run(self, steps: int, pause: float) -> None:
        kinds = [
            *[self.make] * 3, self.duplicate, self.merge, self.free, *[self.blocking] * 4, *[self.nonblocking] * 5,
            *[self.messages] * 3, *[self.complete] * 3,
        ]  # fmt: skip
        for self.step in range(steps):
            rng = random.Random(self.seed * 1_000_003 + self.step)
            kind, comm = rng.choice(kinds), rng.choice(self.comms)
            kind(rng, comm)
            if rng.random() < 0.3 and pause:
                time.sleep(pause * random.random() * 2)  # timing only
            progress(self.step)
        for comm in self.comms:
            self.finish(comm)
        report(self.digest.hexdigest())

    # ---- communicators

    def make(self, rng: random.Random, _: Comm) -> None:
        """Two disjoint groups. Create_group of each group's members makes them, so that other ranks are not delayed."""
        if len(self.comms) >= COMMS_MAX:
            return
        ranks = rng.sample(range(SIZE), rng.randint(2, SIZE))
        cut = rng.randint(1, len(ranks) - 1)
        sides = [ranks[:cut], ranks[cut:]]
        comm = Comm(None, sides)
        if ME in ranks:
            mine, theirs = sides[comm.side], sides[1 - comm.side]
            everybody = WORLD.Get_group()
            group = everybody.Incl(mine)
            local = WORLD.Create_group(group, tag=self.step % 50)
            comm.handle = local.Create_intercomm(0, WORLD, theirs[0], tag=self.step % 50)
            local.Free()
            group.Free()
            everybody.Free()
            assert (comm.handle.size, comm.handle.remote_size, comm.handle.rank) == (
                len(mine),
                len(theirs),
                mine.index(ME),
            )
        self.comms.append(comm)

    def duplicate(self, rng: random.Random, comm: Comm) -> None:
        if len(self.comms) < COMMS_MAX:
            self.comms.append(Comm(comm.handle.Dup() if comm.handle else None, comm.sides))

    def merge(self, rng: random.Random, comm: Comm) -> None:
        if len(self.comms) >= COMMS_MAX or len(comm.sides) == 1:
            return
        handle = comm.handle.Merge(high=bool(comm.side)) if isinstance(comm.handle, MPI.Intercomm) else None
        self.comms.append(Comm(handle, [comm.sides[0] + comm.sides[1]]))

    def free(self, rng: random.Random, comm: Comm) -> None:
        if comm is self.comms[0]:
            return
        self.comms.remove(comm)
        self.finish(comm)
        if comm.handle is not None:
            comm.handle.Free()

    # ---- traffic

    def root(self, rng: random.Random, comm: Comm) -> tuple[int, int]:
        """The world rank of a root, and the root argument of this rank."""
        root = rng.choice(comm.sides[0])
        if len(comm.sides) == 2 and comm.side == 0:
            return root, MPI.ROOT if root == ME else MPI.PROC_NULL
        return root, comm.sides[0].index(root)

    def blocking(self, rng: random.Random, comm: Comm) -> None:
        root, argument = self.root(rng, comm)
        kind = rng.randrange(4)
        if (c := comm.handle) is None:
            return
        n, mine = len(comm.peers), self.data(3, ME)
        if kind == 0:
            got = self.data(40, root) if ME == root else np.zeros(40, dtype="i8")
            c.Bcast(got, root=argument)
            self.note(got)
        elif kind == 1:
            got = np.zeros(3 * n, dtype="i8")
            c.Allgather(mine, got)
            self.note(got)
        elif kind == 2:
            got = np.zeros(3, dtype="i8")
            c.Allreduce(mine, got, rng.choice([MPI.SUM, self.largest]))
            self.note(got)
        else:
            got = np.zeros(n, dtype="i8")
            c.Alltoall(self.data(n, ME), got)
            self.note(got)

    def nonblocking(self, rng: random.Random, comm: Comm) -> None:
        """A later step completes them: all of a communicator at once, but different communicators in any order."""
        root, argument = self.root(rng, comm)
        kind, op = rng.randrange(4), rng.choice([MPI.SUM, self.largest])
        if len(comm.sides) == 2 and len(comm.sides[0]) > 1:
            # MPICH 5.0 counts nonblocking collectives wrong on ranks that give MPI_PROC_NULL as root
            kind = 1 + kind % 2
        if (c := comm.handle) is None:
            return
        mine, n = self.data(3, ME), len(comm.peers)
        got = self.data(3, root) if kind == 0 and ME == root else np.zeros(3 * n if kind == 1 else 3, dtype="i8")
        request = (
            c.Ibcast(got, root=argument) if kind == 0
            else c.Iallgather(mine, got) if kind == 1
            else c.Iallreduce(mine, got, op) if kind == 2
            else c.Ireduce(mine, got, op, root=argument)
        )  # fmt: skip

        def finish() -> None:
            request.Wait()
            if kind != 3 or ME == root:
                self.note(got)
            assert mine is not None  # until here: mpi4py keeps no reference to the data that are reduced

        comm.pending.append(finish)

    def messages(self, rng: random.Random, comm: Comm) -> None:
        """All ranks send to one of the other group. It receives from any source, and some messages much later."""
        targets = {
            r: rng.choice(comm.sides[-1] if r in comm.sides[0] else comm.sides[0]) for side in comm.sides for r in side
        }
        if (c := comm.handle) is None:
            return
        sources = [r for r, to in targets.items() if to == ME]
        others, tag = comm.peers, self.step
        requests = [c.Issend(self.data(20, ME), dest=others.index(targets[ME]), tag=tag)]
        got = [np.zeros(20, dtype="i8") for _ in sources]

        def finish() -> None:
            for buffer in got:
                c.Recv(buffer, source=MPI.ANY_SOURCE, tag=tag)
            MPI.Request.Waitall(requests)
            self.note(*sorted(got, key=lambda a: a.tobytes()))

        comm.pending.append(finish)

    def complete(self, rng: random.Random, comm: Comm) -> None:
        self.finish(comm)

    def finish(self, comm: Comm) -> None:
        work, comm.pending = comm.pending, []
        for finish in work:
            finish()


def main() -> None:
    options = parser("seed", "steps").parse_args()
    Stress(options.seed).run(options.steps, options.pause)


run(main)
