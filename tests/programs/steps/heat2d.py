"""2-D heat equation on a plate with four fixed edges: an ordinary mpi4py program, which does not depend on manapy.

Explicit finite differences on an n x n grid, which is divided among the ranks in rows and columns. Every step exchanges
halos with Sendrecv (columns as a derived datatype). Every few steps the residual is summed with Allreduce. Rank 0
prints "step K residual R" lines, and writes the final field to a .npy file.

    mpirun -n 4 python heat2d.py --n 512 --steps 2000 --out field.npy
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
from mpi4py import MPI
from steps import hold


def factor(ranks: int) -> tuple[int, int]:
    """The most square grid of processes."""
    rows = int(ranks**0.5)
    while ranks % rows:
        rows -= 1
    return rows, ranks // rows


def share(n: int, parts: int, index: int) -> tuple[int, int]:
    """First cell and number of cells of one part."""
    first = index * n // parts
    return first, (index + 1) * n // parts - first


def gather(comm: MPI.Comm, u: np.ndarray, n: int, rows: int, columns: int) -> np.ndarray | None:
    """The whole field on rank 0."""
    if comm.rank:
        comm.Send(np.ascontiguousarray(u[1:-1, 1:-1]), dest=0, tag=7)
        return None
    field = np.zeros((n, n))
    for rank in range(comm.size):
        y, height = share(n, rows, rank // columns)
        x, width = share(n, columns, rank % columns)
        part = np.empty((height, width))
        if rank == 0:
            part[:] = u[1:-1, 1:-1]
        else:
            comm.Recv(part, source=rank, tag=7)
        field[y : y + height, x : x + width] = part
    return field


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, default=512, help="grid points in each direction")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=50, help="steps between two residuals")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to sleep after each residual")
    parser.add_argument("--out", default="", help="file for the final field (.npy)")
    options = parser.parse_args()

    comm = MPI.COMM_WORLD
    rows, columns = factor(comm.size)
    row, column = divmod(comm.rank, columns)
    n = options.n
    y, height = share(n, rows, row)
    x, width = share(n, columns, column)

    def neighbour(dy: int, dx: int) -> int:
        r, c = row + dy, column + dx
        return r * columns + c if 0 <= r < rows and 0 <= c < columns else MPI.PROC_NULL

    up, down, left, right = neighbour(-1, 0), neighbour(1, 0), neighbour(0, -1), neighbour(0, 1)

    # One cell of halo on every side. The ranks at the rim keep the plate's edges in their halo.
    u = np.zeros((height + 2, width + 2))
    if up == MPI.PROC_NULL:
        u[0, :] = 100.0
    if left == MPI.PROC_NULL:
        u[:, 0] = [50.0 * math.sin(math.pi * (i + 0.5) / n) for i in range(y - 1, y + height + 1)]  # as heat2d.c
    new = u.copy()
    column_type = MPI.DOUBLE.Create_vector(height, 1, width + 2)
    column_type.Commit()

    def cell(array: np.ndarray, i: int, j: int) -> list[object]:
        """`height` cells of column j, from row i."""
        return [array.reshape(-1)[i * (width + 2) + j :], 1, column_type]

    if comm.rank == 0:
        print(f"heat2d: {n} x {n}, {rows} x {columns} ranks, {options.steps} steps", flush=True)
    for step in range(1, options.steps + 1):
        comm.Sendrecv(u[1, 1:-1], up, 1, u[-1, 1:-1], down, 1)
        comm.Sendrecv(u[-2, 1:-1], down, 2, u[0, 1:-1], up, 2)
        comm.Sendrecv(cell(u, 1, 1), left, 3, cell(u, 1, width + 1), right, 3)
        comm.Sendrecv(cell(u, 1, width), right, 4, cell(u, 1, 0), left, 4)
        new[1:-1, 1:-1] = u[1:-1, 1:-1] + 0.24 * (
            u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1]
        )
        if step % options.every == 0 or step == options.steps:
            local = np.array([np.sum((new[1:-1, 1:-1] - u[1:-1, 1:-1]) ** 2)])
            total = np.empty(1)
            comm.Allreduce(local, total, op=MPI.SUM)
            if comm.rank == 0:
                print(f"step {step} residual {float(total[0]) ** 0.5:.17e}", flush=True)
            if options.pause:
                time.sleep(options.pause)
            hold(step)
        u, new = new, u
    column_type.Free()

    field = gather(comm, u, n, rows, columns)
    if field is not None:
        if options.out:
            np.save(options.out, field)
        print(f"heat2d: done, mean {field.mean():.17e}", flush=True)


if __name__ == "__main__":
    main()
