"""A small data-parallel training job. Each rank has its part of the data, gradients are summed over all ranks, and rank
0 saves after each epoch.

    mpirun -n 2 python train.py --dir D --epochs 4 --steps 50        continues from the state in D, if there is one

A network of two layers learns which of some random points is nearest. One seed determines all data, and the sum of two
gradients doesn't depend on their order. So with two ranks the weights at the end, whose digest is printed, are the same
bit for bit, whatever has happened before.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

INPUTS, HIDDEN, CLASSES, RATE = 64, 256, 16, 0.3
SHAPES = ((INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
SIZES = [int(np.prod(shape)) for shape in SHAPES]


def parts(vector: np.ndarray) -> list[np.ndarray]:
    """Weights and biases of both layers: views of one vector, which is sent in one piece."""
    return [piece.reshape(shape) for piece, shape in zip(np.split(vector, np.cumsum(SIZES)[:-1]), SHAPES, strict=True)]


def gradients(weights: np.ndarray, out: np.ndarray, inputs: np.ndarray, labels: np.ndarray) -> float:
    """The gradient of the mean cross-entropy of one batch, into `out`; returns the mean."""
    w1, b1, w2, b2 = parts(weights)
    hidden = np.maximum(inputs @ w1 + b1, 0)
    scores = hidden @ w2 + b2
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    scores /= scores.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float(-np.log(scores[rows, labels] + 1e-12).mean())
    scores[rows, labels] -= 1
    scores /= len(labels)
    dw1, db1, dw2, db2 = parts(out)
    dw2[:], db2[:] = hidden.T @ scores, scores.sum(axis=0)
    back = (scores @ w2.T) * (hidden > 0)
    dw1[:], db1[:] = inputs.T @ back, back.sum(axis=0)
    return loss


def load(path: Path, weights: np.ndarray) -> int:
    """Read the saved weights; returns the number of epochs that they were trained for."""
    if not path.exists():
        return 0
    with np.load(path) as saved:
        weights[:] = saved["weights"]
        return int(saved["epochs"])


def save(path: Path, weights: np.ndarray, epochs: int) -> None:
    """Save completely, or not at all."""
    with path.with_suffix(".new").open("wb") as stream:
        np.savez(stream, weights=weights, epochs=epochs)
        stream.flush()
        os.fsync(stream.fileno())
    path.with_suffix(".new").rename(path)


def now() -> float:
    """Seconds since the machine's start, as in /proc/uptime."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wait(up_to: Path | None, step: int) -> None:
    """Wait until a step may be made. The file must appear by a rename. It may be on a slow file system."""
    while up_to is not None and step > int(up_to.read_text()):
        time.sleep(0.2)


def main() -> None:
    """Train. Rank 0 prints a line with the time for each step and each epoch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=50, help="of an epoch")
    parser.add_argument(
        "--batch", type=int, default=64, help="samples of each rank in a step: what it computes, not what it sends"
    )
    parser.add_argument(
        "--up-to",
        type=Path,
        help="a file with the number of steps that may be done; the job waits there until it holds more",
    )
    parser.add_argument(
        "--pause", type=float, default=0.0, help="seconds of each step in which a larger network would be computing"
    )
    options = parser.parse_args()
    world = MPI.COMM_WORLD
    rank, size = world.rank, world.size

    common = np.random.default_rng(1)
    centers = common.normal(size=(CLASSES, INPUTS)).astype(np.float32)
    weights = np.concatenate(
        [common.normal(scale=(2 / shape[0]) ** 0.5 if len(shape) > 1 else 0, size=shape).ravel() for shape in SHAPES]
    ).astype(np.float32)
    state = np.zeros(1, dtype="i")
    if rank == 0:
        state[0] = load(options.dir / "saved.npz", weights)
    world.Bcast(state)
    world.Bcast(weights)
    mine, total = np.empty_like(weights), np.empty_like(weights)
    print(f"rank {rank} of {size} begins with epoch {state[0]}", flush=True)
    for epoch in range(state[0], options.epochs):
        data = np.random.default_rng([epoch, rank])
        for step in range(options.steps):
            wait(options.up_to, epoch * options.steps + step + 1)
            labels = data.integers(CLASSES, size=options.batch)
            inputs = (centers[labels] + data.normal(scale=2.0, size=(options.batch, INPUTS))).astype(np.float32)
            loss = gradients(weights, mine, inputs, labels)
            world.Allreduce(mine, total)
            weights -= np.float32(RATE / size) * total
            time.sleep(options.pause)
            if rank == 0:
                print(f"step {epoch * options.steps + step + 1} loss {loss:.3f} at {now():.3f}", flush=True)
        if rank == 0:
            save(options.dir / "saved.npz", weights, epoch + 1)
            print(f"saved {(epoch + 1) * options.steps} at {now():.3f}", flush=True)
    if rank == 0:
        print(f"weights {hashlib.sha256(weights.tobytes()).hexdigest()[:16]}", flush=True)


if __name__ == "__main__":
    main()
