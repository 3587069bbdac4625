"""The state of one unit on one rank: its permanent part, the gathered unit on its device, and operations in
progress."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum

import numpy as np

from .arena import ArenaBlock
from .units import Layout, Unit

# bytes: up to there, units or gradients are taken together, for the sake of computations that go on meanwhile
SMALL = 1 << 20


class GatherState(Enum):
    """Where the gathered unit is on the device."""

    ABSENT = "absent"
    AHEAD = "ahead"  # being gathered, nobody has asked for it yet
    IN_USE = "in use"
    KEPT = "kept"  # released, but left on the device (tau): may be evicted at any time


class Placement(Enum):
    """Where the next gather would find a unit, nearest first."""

    DEVICE = "device"  # whole
    HOST = "host"  # whole, in the node's memory
    NODE = "node"  # a slice on the device of each of the node's ranks
    SHARDS = "shards"  # on all ranks of all nodes: it must cross the network


@dataclass(frozen=True)
class Shard:
    """What this rank's optimizer updates of a unit: flat arrays of one size, on the device. values are changed in place
    (values[:] -= ...); gradient is the sum of all ranks'.

    start: where they begin in the flat unit. They may reach into its padding.
    """

    unit: str
    values: np.ndarray
    gradient: np.ndarray
    start: int = 0


@dataclass(frozen=True)
class Part:
    """What this rank keeps of a unit, trainable or frozen. values: flat, elements [start, start + values.size) of the
    unit with its padding."""

    unit: Unit
    layout: Layout
    start: int
    values: np.ndarray


@dataclass
class LocalUnit:
    """Sizes are those of the layout. index: in the order of units; start: where values begin in the flat unit."""

    unit: Unit
    layout: Layout
    index: int
    start: int
    values: np.ndarray  # what the optimizer updates: the shard, or the slice
    gradient: np.ndarray | None  # of the same size; None if frozen
    cached: np.ndarray | None = None  # the slice between uses, where the strategy keeps one
    node_copy: np.ndarray | None = None  # the whole unit in the host's window
    # gradients of the slice, summed over the node and over micro-batches, not yet over nodes; made when a micro-batch
    # needs it
    partial: np.ndarray | None = None
    unsummed: bool = False  # partial holds something
    changed: bool = True
    fetched: Future[None] | None = None
    residence: GatherState = GatherState.ABSENT
    looked_at: bool = False  # gathered for the program to look at, which may have written to it
    block: ArenaBlock | None = None  # the gathered unit
    arrival: Future[None] | None = None  # of the block's contents
    whole_gradient: ArenaBlock | None = None  # being computed
