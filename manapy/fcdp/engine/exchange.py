"""All-gather and reduce-scatter among the ranks of a group, made of counted messages.

1. All functions run on the communication thread, in the same order on all ranks of the group.
2. A message's tag names the operation. The receiver checks the tag before it receives. If two ranks are at different
   operations, both raise OrderError, instead of mixing up data or waiting for ever.
3. A rank sends to each other rank only what that one needs: (m - 1) chunks each for all-gather and reduce-scatter of m
   ranks, the minimum, for every m. MPI's own collectives choose algorithms by size and number of ranks. Some of them
   send more, and their bytes could not be counted.
4. Sums are made in the order of distance, the same in every run: results are reproducible bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..errors import OrderError
from ..mpi import MPI
from .failure_broadcast import Alarm
from .traffic import Phase, Scope, Traffic

NOTHING = np.empty(0, np.uint8)


class ExchangeGroup:
    """The ranks of `comm`. ranks: their numbers for messages; describe: what operation a tag stands for."""

    def __init__(
        self,
        comm: MPI.Comm,
        ranks: Sequence[int],
        scope: Scope,
        traffic: Traffic,
        alarm: Alarm,
        describe: Callable[[int], str],
    ) -> None:
        """Collective in comm."""
        self._comm = comm.Dup()
        self._ranks = ranks
        self._scope = scope
        self._traffic = traffic
        self._alarm = alarm
        self._describe = describe
        self.size, self.index = comm.size, comm.rank

    def all_gather(self, buffer: np.ndarray, tag: int, phase: Phase) -> None:
        """buffer: (m * chunk,), of which each rank has filled its own chunk, in the order of ranks; afterwards all
        chunks are filled."""
        chunks = buffer.reshape(self.size, -1)
        for to, source in self._pairs():
            self._swap(chunks[self.index], to, chunks[source], source, tag, phase)

    def reduce_scatter(self, buffer: np.ndarray, scratch: np.ndarray, tag: int, phase: Phase) -> None:
        """buffer: (m * chunk,); afterwards each rank's own chunk of it is the sum of all ranks'. scratch: at least one
        chunk, overwritten."""
        chunks = buffer.reshape(self.size, -1)
        incoming = scratch[: chunks.shape[1]]
        for to, source in self._pairs():
            self._swap(chunks[to], to, incoming, source, tag, phase)
            chunks[self.index] += incoming

    def barrier(self, tag: int) -> None:
        """Wait until all ranks of the group are here."""
        for to, source in self._pairs():
            self._swap(NOTHING, to, NOTHING, source, tag, Phase.CONTROL)

    def close(self) -> None:
        """Collective in the group; no operation may be in progress."""
        self._comm.Free()

    def _pairs(self) -> list[tuple[int, int]]:
        """(to, from) of each round: every rank sends and receives one chunk, and no two send to the same."""
        return [((self.index + d) % self.size, (self.index - d) % self.size) for d in range(1, self.size)]

    def _swap(self, outgoing: np.ndarray, to: int, incoming: np.ndarray, source: int, tag: int, phase: Phase) -> None:
        sent = self._comm.Isend([outgoing, MPI.BYTE], to, tag)
        self._traffic.add(phase, self._scope, outgoing.nbytes)
        status = MPI.Status()
        message = self._alarm.wait(lambda: self._comm.Improbe(source, MPI.ANY_TAG, status))
        if status.tag != tag or status.Get_count(MPI.BYTE) != incoming.nbytes:
            raise OrderError(
                f"rank {self._ranks[self.index]} is at {self._describe(tag)} ({incoming.nbytes} bytes), rank "
                f"{self._ranks[source]} at {self._describe(status.tag)}"
                f" ({status.Get_count(MPI.BYTE)} bytes): all ranks must use the same units in the same order"
            )
        received = message.Irecv([incoming, MPI.BYTE])
        self._alarm.wait(received.Test)
        self._alarm.wait(sent.Test)
