"""A seeded random mix of MPI-IO whose files do not depend on timing.

    mpirun -n N python io_mix.py SEED STEPS FILE [--pause SECONDS]

Every rank derives the same schedule from the seed. The four files are only ever extended. So data that a killed run
wrote after a checkpoint are written once more, or cut off:

    FILE.at       blocks at known offsets, written by all kinds of accesses, some of them finished by later steps, and
                  read again
    FILE.view     the same through a view that deals out rows of ROW numbers to the ranks in turn
    FILE.end      blocks at the end of the file at that moment: a restart must have cut the file
    FILE.shared   records of ROW numbers through the shared file pointer

Rank 0 reads all four in the end and prints "files right" as its last line.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI
from steps import parser, progress, run

WORLD = MPI.COMM_WORLD
ME, SIZE = WORLD.rank, WORLD.size
ROW = 16
Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


def block(step: int, rank: int, n: int) -> Numbers:
    """The n numbers that a rank writes in a step."""
    return (step * 1000 + rank) * 100000 + np.arange(n, dtype=np.int64)


class Mix:
    def __init__(self, name: str) -> None:
        mode = MPI.MODE_RDWR | MPI.MODE_CREATE
        self.at, self.view, self.end, self.shared = (
            MPI.File.Open(WORLD, f"{name}.{kind}", mode) for kind in ("at", "view", "end", "shared")
        )
        for file in (self.at, self.end, self.shared):
            file.Set_view(0, MPI.INT64_T)
        mine = MPI.INT64_T.Create_subarray([SIZE * ROW], [ROW], [ME * ROW]).Commit()
        self.view.Set_view(0, MPI.INT64_T, mine)
        mine.Free()
        self.length = 0  # of FILE.at
        self.expected: dict[str, list[Numbers]] = {kind: [] for kind in ("at", "view", "end", "shared")}
        self.written: list[tuple[int, Numbers]] = []  # my own blocks that have been written to FILE.at
        self.pending: list[tuple[MPI.Request, int, Numbers]] = []

    # ---- FILE.at

    def write_at(self, rng: random.Random, step: int) -> None:
        lengths = [rng.randrange(1, 400) for _ in range(SIZE)]
        offset = self.length + sum(lengths[:ME])
        self.length += sum(lengths)
        self.expected["at"] += [block(step, rank, n) for rank, n in enumerate(lengths)]
        data, file = block(step, ME, lengths[ME]), self.at
        how = rng.randrange(8)
        if how == 0:
            file.Write_at(offset, data)
        elif how == 1:
            file.Write_at_all(offset, data)
        elif how == 2:
            file.Seek(offset)
            file.Write(data)
        elif how == 3:
            file.Seek(offset)
            file.Write_all(data)
        elif how == 4:
            file.Write_at_all_begin(offset, data)
            time.sleep(rng.random() / 500)
            file.Write_at_all_end(data)
        else:
            start = (file.Iwrite_at, file.Iwrite_at_all, file.Iwrite_at)[how - 5]
            self.pending.append((start(offset, data), offset, data))
            return
        self.written.append((offset, data))

    def finish(self, rng: random.Random, step: int) -> None:
        count = rng.randrange(1, 4)
        done, self.pending = self.pending[:count], self.pending[count:]
        MPI.Request.Waitall([request for request, _, _ in done])
        self.written += [(offset, data) for _, offset, data in done]

    def read_at(self, rng: random.Random, step: int) -> None:
        how, which = rng.randrange(5), rng.randrange(1 << 30)
        if not self.written:  # the same on all ranks
            return
        offset, data = self.written[which % len(self.written)]
        found = np.full_like(data, -1)
        if how == 0:
            self.at.Read_at(offset, found)
        elif how == 1:
            self.at.Read_at_all(offset, found)
        elif how == 2:
            self.at.Iread_at(offset, found).Wait()
        elif how == 3:
            self.at.Iread_at_all(offset, found).Wait()
        else:
            self.at.Seek(offset)
            self.at.Read_all(found)
        assert (found == data).all(), (step, how, offset, found, data)

    # ---- the other files

    def write_view(self, rng: random.Random, step: int) -> None:
        """The pointer moves by itself."""
        rows, how = rng.randrange(1, 20), rng.randrange(3)
        data = block(step, ME, rows * ROW)
        (self.view.Write_all, self.view.Write, lambda b: self.view.Iwrite_all(b).Wait())[how](data)
        self.expected["view"] += [
            block(step, rank, rows * ROW)[row * ROW : (row + 1) * ROW] for row in range(rows) for rank in range(SIZE)
        ]

    def write_end(self, rng: random.Random, step: int) -> None:
        n = rng.randrange(1, 200)
        end = self.end.Get_size() // 8
        WORLD.Barrier()
        self.end.Write_at_all(end + n * ME, block(step, ME, n))
        self.end.Sync()
        WORLD.Barrier()
        self.expected["end"] += [block(step, rank, n) for rank in range(SIZE)]

    def write_shared(self, rng: random.Random, step: int) -> None:
        write = (self.shared.Write_shared, self.shared.Write_ordered, lambda b: self.shared.Iwrite_shared(b).Wait())[
            rng.randrange(3)
        ]
        write(block(step, ME, ROW))
        self.expected["shared"] += [block(step, rank, ROW) for rank in range(SIZE)]

    def close(self) -> None:
        MPI.Request.Waitall([request for request, _, _ in self.pending])
        for file in (self.at, self.view, self.end, self.shared):
            file.Close()


def check(name: str, expected: dict[str, list[Numbers]]) -> None:
    for kind, blocks in expected.items():
        found, wanted = np.fromfile(f"{name}.{kind}", dtype=np.int64), np.concatenate(blocks)
        if kind == "shared":  # the order of records is not defined
            found, wanted = (np.sort(a.reshape(-1, ROW), axis=0) for a in (found, wanted))
        assert found.shape == wanted.shape, (kind, found.shape, wanted.shape)
        assert (found == wanted).all(), (kind, np.flatnonzero(found != wanted)[:9], found[found != wanted][:9])


def main() -> None:
    arguments = parser("seed", "steps")
    arguments.add_argument("file")
    options = arguments.parse_args()
    rng, mix = random.Random(options.seed), Mix(options.file)
    actions: list[Callable[[random.Random, int], None]] = [
        mix.write_at,
        mix.write_at,
        mix.finish,
        mix.read_at,
        mix.write_view,
        mix.write_end,
        mix.write_shared,
    ]
    for step in range(options.steps):
        rng.choice(actions)(rng, step)
        time.sleep(options.pause * random.random())  # each rank has its own
        progress(step)
    mix.close()
    if ME == 0:
        check(options.file, mix.expected)
        print("files right", flush=True)


run(main)
