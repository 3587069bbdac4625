"""The node's copy of the parameters, in host memory that its ranks share: one window, made once and kept for all of the
training.

1. Only one rank writes each byte: the owner of the slice. So the owner's first touch puts the slice on its own NUMA
   node, if the rank is bound to one.
2. The memory is touched when the window is made, so that a host that is too small fails before the training. Then each
   rank locks its slices (mlock(2)), so that they are never paged out; all ranks do so, or none. If RLIMIT_MEMLOCK
   forbids it, training continues without locks, with one message.
3. A slice changes only between two barriers of the node: before the first, all readers are done; after the second, all
   may read (MPI 4.1, section 12.5: one lock_all for good, MPI_Win_sync on both sides of a barrier).
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
from collections.abc import Sequence

import numpy as np

from ...core.units import amount
from ..mpi import MPI
from .topology import Topology
from .units import Layout

log = logging.getLogger(__name__)

ALIGNMENT = 64  # bytes: a cache line, so that no two units share one


class HostCache:
    """copies: per unit, its flat array (padded,), the same memory on all ranks of the node; memory: of all of them, in
    bytes. locked: whether it stays in memory."""

    def __init__(self, topology: Topology, units: Sequence[tuple[Layout, str]]) -> None:
        """Collective. units: layout and type of each."""
        sizes = [layout.padded * np.dtype(dtype).itemsize for layout, dtype in units]
        starts = np.cumsum([0, *(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)])
        self.nbytes = int(starts[-1])
        self._window = MPI.Win.Allocate_shared(self.nbytes if topology.local == 0 else 0, 1, comm=topology.node)
        self.memory = np.frombuffer(self._window.Shared_query(0)[0], np.uint8)
        self.copies = [
            self.memory[start : start + size].view(dtype)
            for start, size, (_, dtype) in zip(starts, sizes, units, strict=False)
        ]
        slices = [copy[layout.slice_of(topology.local)] for copy, (layout, _) in zip(self.copies, units, strict=True)]
        for own in slices:
            own[:] = 0
        self.locked = _lock(topology, slices)
        self._window.Lock_all()

    def sync(self) -> None:
        """Make this rank's writes visible, and others' to it; a barrier must follow or precede."""
        self._window.Sync()

    def close(self) -> None:
        """Collective in the node. The copies must not be used any more."""
        self.copies, self.memory = [], np.empty(0, np.uint8)
        self._window.Unlock_all()
        self._window.Free()


def _lock(topology: Topology, slices: Sequence[np.ndarray]) -> bool:
    """Collective. Lock this rank's slices, unless some rank may not."""
    library = ctypes.CDLL(None, use_errno=True)

    def each(call: str) -> int:
        """0, or the first error."""
        function = getattr(library, call)
        return next(
            (
                ctypes.get_errno()
                for own in slices
                if function(ctypes.c_void_p(own.ctypes.data), ctypes.c_size_t(own.nbytes))
            ),
            0,
        )

    refusals = topology.comm.allgather(each("mlock"))
    refused = next((rank for rank, error in enumerate(refusals) if error), None)
    if refused is None:
        return True
    each("munlock")
    if topology.rank == refused:
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        allowed = "any amount" if limit == resource.RLIM_INFINITY else amount(limit)
        log.warning(
            "the host's copy of parameters isn't locked in memory: rank %d needs %s, its limit (ulimit -l) is %s: %s",
            refused, amount(sum(own.nbytes for own in slices)), allowed, os.strerror(refusals[refused]),
        )  # fmt: skip
    return False
