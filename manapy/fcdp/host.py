"""The node's copy of the parameters, in host memory that its ranks share: one window, made once.

1. Every byte is written by one rank only: that of its slice. So the rank's first touch puts a slice on its own NUMA node.
2. Memory is touched when the window is made: a host that is too small fails before training, not in it.
3. A slice changes only between two barriers of the node: before the first, all readers are done; after the second, all may read (MPI 4.1, section 12.5:
   one lock_all for good, MPI_Win_sync on both sides of a barrier).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from .topology import Topology
from .units import Layout

ALIGNMENT = 64  # bytes: a cache line, so that no two units share one


class HostCache:
    """copies: per unit, its flat array (padded,), the same memory on all ranks of the node."""

    def __init__(self, topology: Topology, units: Sequence[tuple[Layout, str]]) -> None:
        """Collective in the node. units: layout and type of each."""
        sizes = [layout.padded * np.dtype(dtype).itemsize for layout, dtype in units]
        starts = np.cumsum([0, *(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)])
        self.nbytes = int(starts[-1])
        self._window = MPI.Win.Allocate_shared(self.nbytes if topology.local == 0 else 0, 1, comm=topology.node)
        memory = np.frombuffer(self._window.Shared_query(0)[0], np.uint8)
        self.copies = [memory[start : start + size].view(dtype) for start, size, (_, dtype) in zip(starts, sizes, units, strict=False)]
        for copy, (layout, _) in zip(self.copies, units, strict=True):
            copy[layout.slice_of(topology.local)] = 0
        self._window.Lock_all()

    def sync(self) -> None:
        """Make this rank's writes visible, and others' to it; a barrier must follow or precede."""
        self._window.Sync()

    def close(self) -> None:
        """Collective in the node. The copies must not be used any more."""
        self.copies = []
        self._window.Unlock_all()
        self._window.Free()
