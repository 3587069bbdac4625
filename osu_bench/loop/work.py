"""Deterministic programs for `manapy bench loop`. Rank 0 prints a line "step K" for each step, and at the end
"done CHECKSUM", a checksum of the state of all ranks.

    mpirun -n 3 python work.py solver --steps 1000

solver: a field in a ring of ranks; each step exchanges its edges. training: a network whose gradients are summed over
all ranks. The other kinds are solvers with a bad habit. io: each 50th step writes a file, with fsync. imbalanced: one
rank takes four times as long as the others. bursty: each 100th step computes for --burst seconds, on one rank.

--trap FILE: the rank that finds this file, which somebody else has made, removes it and waits for a message that nobody
sends. So the job hangs once.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from mpi4py import MPI

PARTS = 16  # the solver changes one part of its memory in each step
WIDTH, BATCH = 256, 32  # of the network
LATE_RANK = 1  # the one of the trap, of a burst, and the slow one


def solver(comm: MPI.Comm, megabytes: float) -> tuple[list[np.ndarray], Callable[[int], None]]:
    """The state, and a function that does one step."""
    field = np.random.default_rng(comm.rank).random(max(int(megabytes * 125_000) // PARTS, 4) * PARTS)
    parts = field.reshape(PARTS, -1)
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    edge, total = np.empty(1), np.empty(1)

    def step(number: int) -> None:
        part = parts[number % PARTS]
        comm.Sendrecv(part[-1:], right, 1, edge, left, 1)
        part[1:] = 0.5 * part[1:] + 0.25 * (part[:-1] + part[0])
        part[0] = 0.5 * (part[0] + edge[0])
        if number % 10 == 0:
            comm.Allreduce(part[:1].copy(), total)
            part[0] += 1e-3 * total[0]

    return [field], step


def training(comm: MPI.Comm, megabytes: float) -> tuple[list[np.ndarray], Callable[[int], None]]:
    """The same for a network with momentum. The data set, which does not change, has the rest of the memory."""
    shared = np.random.default_rng(0)
    weights = [0.05 * shared.standard_normal((WIDTH, WIDTH)) for _ in range(2)]
    momenta = [np.zeros_like(weight) for weight in weights]
    count = max(int(megabytes * 125_000) // WIDTH, BATCH)
    data = np.random.default_rng(100 + comm.rank).standard_normal((count, WIDTH))
    total = np.empty_like(weights[0])

    def step(number: int) -> None:
        chosen = np.random.default_rng((number, comm.rank)).integers(0, count, BATCH)
        inputs = data[chosen]
        hidden = np.tanh(inputs @ weights[0])
        error = hidden @ weights[1] - np.roll(inputs, 1, axis=1)
        before = (error @ weights[1].T) * (1 - hidden**2)
        for weight, momentum, gradient in zip(weights, momenta, (inputs.T @ before, hidden.T @ error), strict=True):
            comm.Allreduce(gradient, total)
            momentum *= 0.9
            momentum += total / (BATCH * comm.size)
            weight -= 0.01 * momentum

    return [*weights, *momenta, data], step


def checksum(comm: MPI.Comm, state: Iterable[np.ndarray]) -> str:
    """Of all ranks."""
    digest = hashlib.sha256()
    for array in state:
        digest.update(array.tobytes())
    digests = comm.gather(digest.hexdigest())
    return hashlib.sha256("".join(digests or ()).encode()).hexdigest()[:16]


def spin(seconds: float) -> None:
    """Compute for so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["solver", "training", "io", "imbalanced", "bursty"])
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--megabytes", type=float, default=20, help="state of a rank")
    parser.add_argument("--pause", type=float, default=0.02, help="seconds to sleep in each step, as for a device")
    parser.add_argument("--burst", type=float, default=10.0)
    parser.add_argument("--trap", default="")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    state, step = (training if options.kind == "training" else solver)(comm, options.megabytes)
    late = comm.rank == LATE_RANK
    for number in range(1, options.steps + 1):
        step(number)
        time.sleep(options.pause * (4 if late and options.kind == "imbalanced" else 1))
        if late and options.kind == "bursty" and number % 100 == 0:
            spin(options.burst)
        if options.kind == "io" and number % 50 == 0:
            path = Path(f"work-{comm.rank}.out")
            with path.open("wb") as file:
                file.write(state[0].tobytes())
                file.flush()
                os.fsync(file.fileno())
            path.unlink()
        if late and options.trap and os.path.exists(options.trap):
            os.unlink(options.trap)
            comm.recv(source=0, tag=99)
        if comm.rank == 0:
            print(f"step {number}", flush=True)
    result = checksum(comm, state)
    if comm.rank == 0:
        print(f"done {result}", flush=True)


if __name__ == "__main__":
    main()
