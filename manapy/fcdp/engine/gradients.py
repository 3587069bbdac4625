"""Gradients: each rank computes whole gradients. They are summed over the ranks of the node in every micro-batch, and
over nodes when the strategy says so.

1. Gradients are sums over ranks and micro-batches. The program must scale its loss.
2. While a gradient is computed, at most one other is being reduced, or several small ones of at most SMALL bytes; fewer
   if the device has no room.
3. Sums that wait for later micro-batches are in host memory (partial). It is allocated for the first such sum; steps of
   one micro-batch do not need it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import numpy as np

from ..errors import GradientError, OrderError, SetupError
from .arena import Arena, ArenaBlock
from .messenger import Messenger, Operation
from .strategy import Keep, Reduce, Strategy
from .topology import Topology
from .traffic import Phase
from .unit_state import SMALL, LocalUnit, Shard


class Gradients:
    """scratch: device memory to receive into, bytes."""

    def __init__(
        self,
        topology: Topology,
        strategy: Strategy,
        messenger: Messenger,
        arena: Arena,
        units: Sequence[LocalUnit],
        scratch: np.ndarray,
    ) -> None:
        self._topology, self._strategy, self._messenger, self._arena = topology, strategy, messenger, arena
        self._units = units
        self._scratch = scratch
        self._in_node: deque[tuple[Future[None], ArenaBlock]] = deque()  # being reduced; oldest first
        self._across: list[Future[None]] = []

    @property
    def shards(self) -> Iterator[Shard]:
        """The shards that the optimizer updates, in the order of units."""
        for unit in self._units:
            if unit.gradient is not None:
                yield Shard(unit.unit.name, unit.values, unit.gradient, unit.start)

    def arrays(self, mine: LocalUnit) -> dict[str, np.ndarray]:
        """The gradients of the unit's parameters, by name; zeros at first, until reduce(). Raises BudgetError."""
        if mine.whole_gradient is None:
            while len(self._in_node) > 1 and sum(block.nbytes for _, block in self._in_node) > SMALL:
                self.collect()
            mine.whole_gradient = self._arena.take(
                mine.layout.padded, mine.unit.dtype, f"the gradient of unit '{mine.unit.name}'"
            )
            mine.whole_gradient.array[:] = 0
        return mine.unit.views(mine.whole_gradient.array)

    def reduce(self, mine: LocalUnit, last: bool, ready: Callable[[], object]) -> None:
        """Sum the arrays over the ranks, in the background, after ready(). last: no micro-batch of this step comes
        after this one."""
        block, mine.whole_gradient = mine.whole_gradient, None
        if block is None:
            raise OrderError(f"unit '{mine.unit.name}' is reduced without gradients")
        collected = self._collects(mine, last)
        if collected and mine.partial is None:
            mine.partial = self._new_partial(mine)

        def job() -> None:
            ready()
            self._reduce_in_node(mine, block.array, collected)

        self._in_node.append((self._messenger.submit(job), block))
        mine.unsummed = collected
        if collected and last:
            self._reduce_across(mine)

    def complete(self) -> None:
        """The last micro-batch has ended: sum gradients of units that earlier micro-batches have used, but not this
        one."""
        for unit in reversed(self._units):
            if unit.unsummed:
                self._reduce_across(unit)

    def collect(self) -> bool:
        """Wait for the oldest reduction in the node and give its memory back. False if there is none."""
        if not self._in_node:
            return False
        future, block = self._in_node.popleft()
        future.result()
        block.free()
        return True

    def settle(self) -> None:
        """Wait for all reductions in progress."""
        while self.collect():
            pass
        for future in self._across:
            future.result()
        self._across.clear()

    def discard(self) -> None:
        """Called after settle(): set all gradients to zero, and free those that are being computed."""
        for unit in self._units:
            if unit.whole_gradient is not None:
                unit.whole_gradient.free()
                unit.whole_gradient = None
            unit.unsummed = False
            for array in (unit.partial, unit.gradient):
                if array is not None:
                    array[:] = 0

    def clip(self, max_norm: float) -> float:
        """Collective, when they are complete. Scale them so that their global 2-norm is at most max_norm; returns the
        norm before.

        Raises GradientError if it isn't finite, SetupError if max_norm isn't the same on all ranks.
        """
        shards = list(self.shards)
        squares = [float(np.dot(shard.gradient.astype(np.float64), shard.gradient)) for shard in shards]
        bad = next((index for index, square in enumerate(squares) if not math.isfinite(square)), -1)
        rows = self._messenger.rows(np.array([sum(squares), bad, max_norm]), Operation.NORM)
        different = next((index for index in range(len(rows)) if rows[index, 2] != rows[0, 2]), None)
        if different is not None:
            one, other = self._messenger.rank_of_row(0), self._messenger.rank_of_row(different)
            raise SetupError(f"max_norm is {rows[0, 2]:g} on rank {one}, {rows[different, 2]:g} on rank {other}")
        for index in range(len(rows)):
            if rows[index, 1] >= 0:
                unit, rank = shards[int(rows[index, 1])].unit, self._messenger.rank_of_row(index)
                raise GradientError(
                    f"gradients of unit '{unit}' aren't finite (in the shard of rank {rank}): they can't be clipped"
                )
        if self._strategy.keep is Keep.SHARD:
            rows = rows[: self._topology.ranks_per_node]  # every node has all gradients
        norm = math.sqrt(rows[:, 0].sum())
        if norm > max_norm:
            for shard in shards:
                shard.gradient[:] *= max_norm / norm
        return norm

    def _collects(self, mine: LocalUnit, last: bool) -> bool:
        """Are this micro-batch's gradients added to partial? Not if they are sent over the network at once, and no
        earlier gradients must be sent with them."""
        return self._strategy.reduce is not Reduce.EVERY and (
            self._strategy.keep is Keep.SHARD or not last or mine.unsummed
        )

    def _new_partial(self, mine: LocalUnit) -> np.ndarray:
        """An array of zeros; or the gradient itself, if this rank updates the slice."""
        if self._strategy.keep is Keep.SHARD:
            assert mine.gradient is not None
            return mine.gradient
        return np.zeros(mine.layout.slice, mine.unit.dtype)

    def _reduce_in_node(self, mine: LocalUnit, whole: np.ndarray, collected: bool) -> None:
        self._messenger.node.reduce_scatter(
            whole, self._scratch.view(mine.unit.dtype), self._messenger.tag(Operation.REDUCE, mine.index), Phase.REDUCE
        )
        part = whole[mine.layout.slice_of(self._topology.local)]
        if collected:
            assert mine.partial is not None
            mine.partial += part
        else:
            assert mine.gradient is not None
            mine.gradient += self._sum_across(mine, part)

    def _reduce_across(self, mine: LocalUnit) -> None:
        """Called once per step, for strategies that collect gradients in the node."""
        assert mine.partial is not None
        mine.unsummed = False

        def job() -> None:
            assert mine.partial is not None and mine.gradient is not None
            own = self._sum_across(mine, mine.partial)
            if self._strategy.keep is Keep.SHARD:  # the slice is on every node, so all need the sum
                self._messenger.cross.all_gather(
                    mine.partial, self._messenger.tag(Operation.REDUCE_ACROSS, mine.index), Phase.REDUCE
                )
            else:
                mine.gradient += own
                mine.partial[:] = 0

        self._across.append(self._messenger.submit(job))

    def _sum_across(self, mine: LocalUnit, part: np.ndarray) -> np.ndarray:
        """Sum a slice's gradients over nodes; returns the rank's shard of it."""
        self._messenger.cross.reduce_scatter(
            part,
            self._scratch.view(mine.unit.dtype),
            self._messenger.tag(Operation.REDUCE_ACROSS, mine.index),
            Phase.REDUCE,
        )
        return part[mine.layout.shard_of(self._topology.node_index)]
