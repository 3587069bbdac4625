"""Exchanges small values among all ranks: checksums, norms, counts of bytes, errors, and data of a saved state.

All functions run on the communication thread, in the same order on all ranks. Messages are those of exchange.py,
counted as control: a failure of another rank ends the wait for them.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from .exchange import ExchangeGroup
from .topology import Topology
from .traffic import Phase


class Control:
    """Exchanges in the node first, then across nodes."""

    def __init__(self, topology: Topology, node: ExchangeGroup, cross: ExchangeGroup) -> None:
        self._topology, self._node, self._cross = topology, node, cross

    def rows(self, row: np.ndarray, tag: int) -> np.ndarray:
        """Every rank's row, all of one length, node by node: (P, len(row))."""
        mine = np.empty((self._topology.ranks_per_node, row.size), row.dtype)
        mine[self._topology.local] = row
        self._node.all_gather(mine.reshape(-1), tag, Phase.CONTROL)
        rows = np.empty((self._topology.nodes, mine.size), row.dtype)
        rows[self._topology.node_index] = mine.reshape(-1)
        self._cross.all_gather(rows.reshape(-1), tag, Phase.CONTROL)
        return rows.reshape(self._topology.size, row.size)

    def rank_of_row(self, row: int) -> int:
        """The rank to which a row belongs."""
        return self._topology.rank_of(*divmod(row, self._topology.ranks_per_node))

    def objects(self, value: Any, tag: int) -> list[Any]:
        """Every rank's value, by rank."""
        data = np.frombuffer(pickle.dumps(value), np.uint8)
        sizes = self.rows(np.array([data.size]), tag)[:, 0]
        padded = np.zeros(sizes.max(), np.uint8)
        padded[: data.size] = data
        rows = self.rows(padded, tag)
        found = {
            self.rank_of_row(index): pickle.loads(row[:size].tobytes())
            for index, (row, size) in enumerate(zip(rows, sizes, strict=True))
        }
        return [found[rank] for rank in range(self._topology.size)]
