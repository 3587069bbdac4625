"""A seeded random mix of one-sided communication whose sums do not depend on timing.

    mpirun -n N python rma_stress.py SEED STEPS [--pause SECONDS]

All ranks derive the kind of each step from the seed, and their part in it from seed and rank. One window is under
lock_all from the beginning to the end, with operations in progress from one step to another. At the end all sums are
compared with the values that were drawn. Rank 0 prints "step K" now and then and, as its last line, "digest HEX" of the
windows.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
from mpi4py import MPI
from steps import parser, progress, report, run

WORLD = MPI.COMM_WORLD
ME, SIZE = WORLD.rank, WORLD.size
NEXT, BEFORE = (ME + 1) % SIZE, (ME - 1) % SIZE
CELLS = 64
LONG = 8


def array(window: MPI.Win, count: int = CELLS) -> np.ndarray:
    """The window's own memory as int64."""
    return np.frombuffer(window.tomemory(), dtype="i8", count=count)


def expect(actual: object, wanted: object, what: str) -> None:
    if actual != wanted:
        print(f"rank {ME}: {what}: {actual} instead of {wanted}", flush=True)
        WORLD.Abort(3)


class Traffic:
    """The windows, and a method for each kind of step. ``added``: the sum that this rank has added to (window, target
    rank, cell)."""

    def __init__(self, seed: int) -> None:
        self.mine = random.Random(seed * 1000 + ME)
        self.added: Counter[tuple[str, int, int]] = Counter()
        self.open = MPI.Win.Allocate(CELLS * LONG, LONG, comm=WORLD)
        self.memory = np.zeros(CELLS, dtype="i8")
        self.locked = MPI.Win.Create(self.memory, LONG, comm=WORLD)
        self.fenced = MPI.Win.Allocate(CELLS * LONG, LONG, comm=WORLD)
        self.posted = MPI.Win.Allocate(CELLS * LONG, LONG, comm=WORLD)
        self.shared = MPI.Win.Allocate_shared((CELLS + 13 * ME) * LONG, LONG, comm=WORLD)
        self.all_shared = [np.frombuffer(self.shared.Shared_query(r)[0], dtype="i8", count=CELLS) for r in range(SIZE)]
        for window in (self.open, self.fenced, self.posted, self.shared):
            array(window)[:] = 0
        WORLD.Barrier()
        self.open.Lock_all()
        self.shared.Lock_all()
        self.group = WORLD.Get_group()
        self.requests: list[tuple[MPI.Request, np.ndarray]] = []
        self.digest = hashlib.sha256()

    def target(self) -> tuple[int, int, int]:
        return self.mine.randrange(SIZE), self.mine.randrange(CELLS), self.mine.randrange(1, 100)

    # ---- steps of one rank alone

    def count(self) -> None:
        """Fetch-and-add in the window that is always open."""
        got = np.empty(1, dtype="i8")
        for _ in range(self.mine.randrange(1, 20)):
            rank, cell, value = self.target()
            self.open.Fetch_and_op(np.array([value], dtype="i8"), got, rank, cell, MPI.SUM)
            self.open.Flush(rank)
            self.added["open", rank, cell] += value

    def accumulate(self) -> None:
        """Stays in progress: request-based, or never flushed."""
        for _ in range(self.mine.randrange(1, 10)):
            rank, cell, value = self.target()
            data = np.array([value], dtype="i8")
            if self.mine.random() < 0.5:
                self.requests.append((self.open.Raccumulate(data, rank, [cell, 1, MPI.LONG]), data))
            else:
                self.open.Accumulate(data, rank, [cell, 1, MPI.LONG])
                self.open.Flush_local(rank)
            self.added["open", rank, cell] += value

    def update(self) -> None:
        """Read, think, write: correct only under the exclusive lock."""
        got = np.empty(1, dtype="i8")
        for _ in range(self.mine.randrange(1, 5)):
            rank, cell, value = self.target()
            self.locked.Lock(rank, MPI.LOCK_EXCLUSIVE)
            self.locked.Get(got, rank, [cell, 1, MPI.LONG])
            self.locked.Flush(rank)
            if self.mine.random() < 0.3:
                time.sleep(0.002)
            got += value
            self.locked.Put(got, rank, [cell, 1, MPI.LONG])
            self.locked.Unlock(rank)
            self.added["locked", rank, cell] += value

    def look(self) -> None:
        """Under the shared lock no value changes."""
        once, again = np.empty(CELLS, dtype="i8"), np.empty(CELLS, dtype="i8")
        rank = self.mine.randrange(SIZE)
        self.locked.Lock(rank, MPI.LOCK_SHARED)
        self.locked.Get(once, rank)
        self.locked.Flush(rank)
        time.sleep(0.001)
        self.locked.Get(again, rank)
        self.locked.Unlock(rank)
        expect(once.tolist(), again.tolist(), "values under a shared lock")

    def wait(self) -> None:
        MPI.Request.Waitall([r for r, _ in self.requests])
        self.requests.clear()

    # ---- steps of all ranks

    def fence(self) -> None:
        values = np.array([self.mine.randrange(1 << 40) for _ in range(CELLS)], dtype="i8")
        self.fenced.Fence(MPI.MODE_NOPRECEDE)
        self.fenced.Put(values, NEXT)
        self.fenced.Fence()
        got = np.empty(CELLS, dtype="i8")
        self.fenced.Get(got, NEXT)
        self.fenced.Fence(MPI.MODE_NOSUCCEED)
        expect(got.tolist(), values.tolist(), "values put and got between fences")
        self.digest.update(array(self.fenced).tobytes())

    def post(self) -> None:
        """Post, start, complete, wait around the ring; waiting in one of two ways."""
        value = np.array([self.mine.randrange(1 << 40)], dtype="i8")
        cell, poll = self.mine.randrange(CELLS), self.mine.random() < 0.5
        before, following = self.group.Incl([BEFORE]), self.group.Incl([NEXT])
        self.posted.Post(before)
        self.posted.Start(following)
        self.posted.Put(value, NEXT, [cell, 1, MPI.LONG])
        self.posted.Complete()
        if poll:
            while not self.posted.Test():
                pass
        else:
            self.posted.Wait()
        before.Free()
        following.Free()
        self.digest.update(array(self.posted).tobytes())

    def store(self) -> None:
        """Plain stores into the neighbour's memory."""
        cell, value = self.mine.randrange(CELLS), self.mine.randrange(1 << 40)
        self.all_shared[NEXT][cell] = value
        self.shared.Sync()
        WORLD.Barrier()
        self.shared.Sync()
        self.digest.update(self.all_shared[ME].tobytes())
        WORLD.Barrier()

    def attach(self) -> None:
        """A window of its own for a short time, with memory attached."""
        memory = np.full(10, ME, dtype="i8")
        window = MPI.Win.Create_dynamic(comm=WORLD)
        window.Attach(memory)
        addresses = WORLD.allgather(MPI.Get_address(memory))
        got = np.empty(1, dtype="i8")
        window.Lock(NEXT, MPI.LOCK_SHARED)
        window.Get(got, NEXT, [addresses[NEXT] + 3 * LONG, 1, MPI.LONG])
        window.Unlock(NEXT)
        expect(int(got[0]), NEXT, "value in attached memory")
        WORLD.Barrier()
        window.Detach(memory)
        window.Free()

    # ---- the end

    def finish(self) -> None:
        self.wait()
        self.open.Unlock_all()
        self.shared.Unlock_all()
        WORLD.Barrier()
        total = sum(WORLD.allgather(self.added), Counter())
        for name, values in (("open", array(self.open)), ("locked", self.memory)):
            expect(values.tolist(), [total[name, ME, cell] for cell in range(CELLS)], f"sums in the window '{name}'")
            self.digest.update(values.tobytes())
        for window in (self.open, self.locked, self.fenced, self.posted, self.shared):
            window.Free()
        report(self.digest.hexdigest())


def main() -> None:
    options = parser("seed", "steps").parse_args()
    common, pauses = random.Random(options.seed), random.Random()
    traffic = Traffic(options.seed)
    kinds: list[Callable[[], None]] = [
        traffic.count,
        traffic.accumulate,
        traffic.update,
        traffic.update,
        traffic.look,
        traffic.wait,
        traffic.fence,
        traffic.post,
        traffic.store,
        traffic.attach,
    ]
    for step in range(options.steps):
        common.choice(kinds)()
        time.sleep(pauses.random() * options.pause)
        progress(step)
    traffic.finish()


run(main)
