"""Which rank sits on which node.

1. All nodes have the same number of ranks. A rank is (node, local); nodes are numbered by their lowest rank, ranks in a
   node by their rank.
2. `node` joins the ranks of one node, ordered by local; `cross` the ranks of one local number on all nodes, ordered by
   node.
3. The communicators are duplicates: no message of the program can meet one of ours.

Nodes are what MPI_Comm_split_type(MPI_COMM_TYPE_SHARED) says (MPI 4.1, section 7.4.2). `ranks_per_node`, or
MANAPY_FCDP_RANKS_PER_NODE, cuts them into smaller, emulated ones, so that one host can stand for several. Importing
this module initialises MPI.
"""

from __future__ import annotations

import os


from ..errors import TopologyError
from ..mpi import MPI
from .collective_errors import agree

VARIABLE = "MANAPY_FCDP_RANKS_PER_NODE"


class Topology:
    """Ranks in nodes.

    nodes, ranks_per_node: how many (N and g of the paper); node_index, local: this rank's place; rank, size: in the
    communicator given.
    """

    def __init__(self, comm: MPI.Comm = MPI.COMM_WORLD, ranks_per_node: int | None = None) -> None:
        """Collective. Raises TopologyError on all ranks if nodes are uneven, if they can't be cut as asked, or without
        MPI_THREAD_MULTIPLE."""
        self.comm = comm.Dup()
        self.rank, self.size = comm.rank, comm.size
        agree(self.comm, _check_threads())
        shared = self.comm.Split_type(MPI.COMM_TYPE_SHARED, key=self.rank)
        wanted, error = _wanted(ranks_per_node)
        self.node = shared
        if wanted:
            self.node = shared.Split(shared.rank // wanted, key=self.rank)
            shared.Free()
        self.local, self.ranks_per_node = self.node.rank, self.node.size
        leaders = self.comm.allgather(self.node.bcast(self.rank))  # of each rank, the lowest rank of its node
        self._members = [
            [rank for rank, leader in enumerate(leaders) if leader == first] for first in sorted(set(leaders))
        ]
        self.nodes = len(self._members)
        self.node_index = next(index for index, ranks in enumerate(self._members) if self.rank in ranks)
        sizes = sorted({len(ranks) for ranks in self._members})
        if error is None and len(sizes) > 1:
            counts = ", ".join(f"node {index} has {len(ranks)}" for index, ranks in enumerate(self._members))
            error = TopologyError(f"all nodes need the same number of ranks: {counts}")
        agree(self.comm, error)
        self.cross = self.comm.Split(self.local, key=self.node_index)

    def close(self) -> None:
        """Collective. Give back the communicators: an MPI library has only some thousand. All engines on them have
        ended, without a failure."""
        for comm in (self.cross, self.node, self.comm):
            comm.Free()

    def rank_of(self, node: int, local: int) -> int:
        """The rank at a place."""
        return self._members[node][local]


def _check_threads() -> TopologyError | None:
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return TopologyError(
            "MPI must be initialised with MPI_THREAD_MULTIPLE (mpi4py's default, see mpi4py.rc.thread_level): manapy "
            "communicates in a thread of its own"
        )
    return None


def _wanted(given: int | None) -> tuple[int | None, TopologyError | None]:
    """Ranks of an emulated node, None for real nodes; or what is wrong with the number."""
    text = os.environ.get(VARIABLE, "") if given is None else str(given)
    if not text:
        return None, None
    if not text.isdecimal() or int(text) == 0:
        return None, TopologyError(
            f"{VARIABLE if given is None else 'ranks_per_node'} must be a positive number, not {text}"
        )
    return int(text), None
