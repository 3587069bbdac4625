"""Moves parameters: from other nodes into the cache, from there to the device, and off the device.

1. A unit is `changed` until its slice has been fetched again (the paper's dirty flag, refreshed lazily); if the
   strategy keeps slices, only this makes a slice cross the network.
2. Whether to keep a gathered unit on the device (tau) is each rank's own decision: it changes no message. Decisions
   that change messages (order, units gathered ahead) are the same on all ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future

import numpy as np

from ..errors import BudgetError, OrderError
from .arena import Arena, ArenaBlock, Place
from .messenger import Messenger, Operation
from .node_window import HostCache
from .strategy import Fetch, Keep, Strategy
from .topology import Topology
from .traffic import Phase, Scope
from .unit_state import SMALL, GatherState, LocalUnit, Placement


class Parameters:
    """tau, places: of the engine; ahead: units gathered ahead of the one in use; host: the node's copy, where the
    strategy keeps one."""

    def __init__(
        self,
        topology: Topology,
        strategy: Strategy,
        messenger: Messenger,
        arena: Arena,
        host: HostCache | None,
        units: Sequence[LocalUnit],
        *,
        tau: float,
        ahead: int,
        places: Mapping[str, Place],
    ) -> None:
        self._topology, self._strategy, self._messenger, self._arena, self._host = (
            topology,
            strategy,
            messenger,
            arena,
            host,
        )
        self._units = units
        self.ahead = ahead
        self._tau, self._places = tau, places

    def gather(self, mine: LocalUnit, phase: Phase) -> dict[str, np.ndarray]:
        """The unit's parameters on the device, until release(). Raises BudgetError if there is no room, RemoteError if
        another rank has failed."""
        if mine.residence is GatherState.IN_USE:
            raise OrderError(f"unit '{mine.unit.name}' is gathered already")
        if mine.residence is GatherState.ABSENT:
            self._request(mine, phase)
        mine.looked_at = phase is Phase.STATE
        before, mine.residence = mine.residence, GatherState.IN_USE  # not evicted for others
        try:
            for other in self._next(mine, phase):
                if other.residence is GatherState.ABSENT and self._is_near(other):
                    self._request(other, phase)
        except BudgetError:
            if self._host is None:  # with messages, which other ranks expect
                mine.residence = before
                raise
        assert mine.block is not None
        if mine.arrival is not None:
            mine.arrival.result()
        return mine.unit.views(mine.block.array)

    def release(self, mine: LocalUnit) -> None:
        """The unit stays on the device while less than tau of that is in use; but not one that was gathered for the
        program to look at, because what the program has written is not the unit's values."""
        if mine.residence is not GatherState.IN_USE:
            raise OrderError(f"unit '{mine.unit.name}' is released without being gathered")
        if self._arena.utilisation < self._tau and not mine.looked_at:
            mine.residence = GatherState.KEPT
        else:
            self._drop(mine)

    def outdate(self, mine: LocalUnit) -> None:
        """The unit's values have changed: what was gathered of it is of no use."""
        mine.changed = True
        if mine.residence is not GatherState.ABSENT:
            if mine.arrival is not None:
                mine.arrival.result()
            self._drop(mine)

    def place(self, mine: LocalUnit, values: np.ndarray) -> None:
        """Collective. The rank's slice, from elsewhere than the other nodes: where the strategy keeps slices, it
        needn't be fetched until it changes."""
        self.outdate(mine)
        if mine.cached is not None:
            mine.changed = False
            cached = mine.cached
            mine.fetched = self._messenger.submit(
                lambda: self._refresh([mine], lambda: np.copyto(cached, values, casting="same_kind"))
            )

    def settle(self) -> None:
        """Wait for what is being gathered."""
        for unit in self._units:
            if unit.arrival is not None:
                unit.arrival.result()

    def finish(self) -> None:
        """A micro-batch has ended: drop what was gathered ahead and not asked for, and what the strategy fetches for
        every micro-batch."""
        self.drop_unused()
        for unit in self._units:
            if self._strategy.fetch is Fetch.MICRO_BATCH and unit.residence is not GatherState.IN_USE:
                self.outdate(unit)

    def drop_unused(self) -> None:
        """Drop units that were gathered ahead and not used."""
        for unit in self._units:
            if unit.residence is GatherState.AHEAD:
                self._drop(unit)

    def placement(self) -> dict[str, Placement]:
        """Return the placement of each unit, in order."""
        return {unit.unit.name: self._place_of(unit) for unit in self._units}

    def _place_of(self, mine: LocalUnit) -> Placement:
        if mine.residence is not GatherState.ABSENT:
            return Placement.DEVICE
        if self._strategy.keep is Keep.SHARD:
            return Placement.NODE
        if mine.changed or mine.cached is None:
            return Placement.SHARDS
        return Placement.HOST if self._host else Placement.NODE

    def evict(self) -> bool:
        """Give back the memory of one kept unit, the last in order. False if there is none."""
        kept = next((unit for unit in reversed(self._units) if unit.residence is GatherState.KEPT), None)
        if kept is not None:
            self._drop(kept)
        return kept is not None

    def _drop(self, mine: LocalUnit) -> None:
        assert mine.block is not None
        mine.block.free()
        mine.block = mine.arrival = None
        mine.residence = GatherState.ABSENT

    def _next(self, mine: LocalUnit, phase: Phase) -> Sequence[LocalUnit]:
        if phase is Phase.STATE:
            return []
        if phase is Phase.FORWARD:
            return self._units[mine.index + 1 : mine.index + 1 + self.ahead]
        return self._units[max(0, mine.index - self.ahead) : mine.index][::-1]

    def _is_near(self, other: LocalUnit) -> bool:
        """Whether it can be gathered ahead: what comes from the host's memory makes no messages, and is waited for when
        it is used."""
        return self._host is None or (not other.changed and other.fetched is not None and other.fetched.done())

    def _request(self, mine: LocalUnit, phase: Phase) -> None:
        mine.block = self._arena.take(
            mine.layout.padded, mine.unit.gathered, f"unit '{mine.unit.name}'", self._places.get(mine.unit.name)
        )
        mine.residence = GatherState.AHEAD
        if self._host:
            self._copy_from_host(mine, mine.block, phase)
            mine.arrival = None
        else:
            mine.arrival = self._gather_from_ranks(mine, mine.block, phase)

    def _copy_from_host(self, mine: LocalUnit, block: ArenaBlock, phase: Phase) -> None:
        if mine.changed:
            self._fetch_changed(phase)
        assert mine.fetched is not None and mine.node_copy is not None
        mine.fetched.result()
        if block.array.flags.writeable:  # else it is the node's copy itself, from where the place copies
            block.array[:] = mine.node_copy
        block.filled()
        self._messenger.traffic.add(
            phase, Scope.INTRA, block.nbytes * (self._topology.ranks_per_node - 1) // self._topology.ranks_per_node
        )

    def _fetch_changed(self, phase: Phase) -> None:
        """Begin to fetch all changed units: the host's memory has room for them, so the network need not wait for the
        computation."""
        for group in _groups([unit for unit in self._units if unit.changed]):
            fetched = self._messenger.submit(
                functools.partial(self._refresh, group, functools.partial(self._fetch_all, group, phase))
            )
            for unit in group:
                unit.changed = False
                unit.fetched = fetched

    def _gather_from_ranks(self, mine: LocalUnit, block: ArenaBlock, phase: Phase) -> Future[None]:
        fetch = self._strategy.fetch
        fetched = (
            fetch is Fetch.ALWAYS
            or (fetch is Fetch.FORWARD and phase is Phase.FORWARD)
            or (fetch is not Fetch.NEVER and mine.changed)
        )
        mine.changed = False

        def job() -> None:
            own = block.array[mine.layout.slice_of(self._topology.local)]
            cached = own if mine.cached is None else mine.cached
            if fetched:
                self._fetch(mine, cached, phase)
            if mine.cached is not None:
                own[:] = cached
            self._messenger.node.all_gather(block.array, self._messenger.tag(Operation.GATHER, mine.index), phase)
            block.filled()

        return self._messenger.submit(job)

    def _refresh(self, units: Sequence[LocalUnit], fill: Callable[[], None]) -> None:
        """Have the rank's slices filled while nobody reads them (rule 3 of node_window.py)."""
        if self._host is None:
            return fill()
        tag = self._messenger.tag(Operation.FETCH, units[0].index)
        for unit in units:
            if unit.unit.name in self._places:
                self._places[unit.unit.name].settle()
        self._messenger.node.barrier(tag)
        fill()
        self._host.sync()
        self._messenger.node.barrier(tag)
        self._host.sync()

    def _fetch_all(self, units: Sequence[LocalUnit], phase: Phase) -> None:
        for unit in units:
            assert unit.cached is not None
            self._fetch(unit, unit.cached, phase)

    def _fetch(self, mine: LocalUnit, target: np.ndarray, phase: Phase) -> None:
        """The rank's slice from the other nodes."""
        target[mine.layout.shard_of(self._topology.node_index)] = mine.values
        self._messenger.cross.all_gather(target, self._messenger.tag(Operation.FETCH, mine.index), phase)


def _groups(units: Sequence[LocalUnit]) -> Iterator[list[LocalUnit]]:
    """The units in order, small ones together: around adapters of some KB, barriers would take longer than what is
    between them."""
    group: list[LocalUnit] = []
    size = 0
    for unit in units:
        assert unit.node_copy is not None
        size += unit.node_copy.nbytes
        if group and size > SMALL:
            yield group
            group, size = [], unit.node_copy.nbytes
        group.append(unit)
    if group:
        yield group
