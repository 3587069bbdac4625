"""A fault in one iteration, and what the searches for faults have in common: limits, and the own time of blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..model.graph import Timing
from ..model.verdict import Cause, Phase

NEARLY = 0.9  # a gain of this share of another one counts as nearly as much
ALIKE = 0.5  # ranks of a host with at least this share of its largest excess are equally slow
LEARN = 0.1  # weight of an iteration in the running averages


@dataclass(frozen=True)
class Limits:
    """Thresholds. The values are those that the MegaTrace paper (section V-C) found to be best.

    performance: an iteration is slow if its performance is below this share of that of healthy iterations.
    node: a block is slow if its own time exceeds the expected one by this share.
    bandwidth: a link is slow if it has lost this share of its bandwidth.
    """

    performance: float = 0.9
    node: float = 0.5
    bandwidth: float = 0.2


@dataclass(frozen=True)
class Finding:
    """One fault in one iteration.

    cost, took, expected, length: seconds. length: of the iteration.
    vertex: of a single block. None: the fault is in a whole rank or link, the gradient reduction, or a whole iteration.
    ranks: all ranks (of one host) that are equally slow.
    chronic: number of iterations, if the sequential test found it; 0: found in this slow iteration.
    sampled: the waits of its ranks for a processor are known.
    """

    iteration: int
    cause: Cause
    rank: int
    cost: float
    took: float
    expected: float
    length: float
    vertex: int | None = None
    phase: Phase = Phase.UNKNOWN
    peer: int | None = None
    ranks: tuple[int, ...] = ()
    chronic: int = 0
    sampled: bool = False


def own_times(timing: Timing) -> np.ndarray:
    """Return the work of each block: [B, D, T]."""
    return timing.compute.sum(axis=1)


def lower_median(array: np.ndarray, count: int) -> np.ndarray:
    """Return the lower median over replicas and shards of `count` iterations side by side: [..., count]. Of two ranks
    the faster one is the norm."""
    flat = array.reshape(*array.shape[:-2], count, -1)
    middle = (flat.shape[-1] - 1) // 2
    return np.partition(flat, middle, axis=-1)[..., middle]
