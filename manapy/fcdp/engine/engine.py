"""The engine: units are gathered for use and released, gradients are reduced, and the strategy decides what crosses the
network for it.

A front end (numpy layers, modules of another library) makes these calls, on every rank in the same order, and inside
`with engine:`

    load(unit, values)                               once per unit
    for each micro-batch, with last_micro_batch set for the last one of a step:
        gather(unit, FORWARD)   ... release(unit)    for each unit in order
        gather(unit, BACKWARD)  ... release(unit)    in the reverse order
        gradients(unit)         ... reduce(unit)     when the unit's gradient is computed
        finish()
    clip_gradients(max_norm)                         if wanted
    the optimizer changes shard.values by shard.gradient for each of shards
    updated()

Between steps, state/ reads and sets `parts`: the part of each unit that this rank keeps.

The engine does the set-up and checks the order of calls. parameters.py and gradients.py do the work, on the thread of
messenger.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np

from ..errors import OrderError, SetupError, is_failure
from ..mpi import MPI
from . import budget as memory
from . import units as unit_checks
from .arena import Arena, ArenaBlock, Place
from .collective_errors import agree, error_of
from .gradients import Gradients
from .messenger import Messenger, Operation
from .node_window import HostCache
from .parameters import Parameters
from .strategy import Keep, Strategy, find
from .topology import Topology
from .traffic import Phase, table
from .unit_state import GatherState, LocalUnit, Part, Placement, Shard
from .units import Layout, Unit


class Engine:
    """One rank's part of a sharded training job. arena: the device; traffic: what this rank has sent; last_micro_batch:
    whether finish() ends a step."""

    def __init__(
        self,
        topology: Topology,
        units: Sequence[Unit],
        *,
        strategy: str = "fcdp",
        tau: float = 0.0,
        budget: int | None = None,
        prefetch: int = 1,
        places: Mapping[str, Place] | None = None,
        copies_ahead: bool = False,
    ) -> None:
        """Collective. tau: share of the device up to which gathered units stay there; budget: of the device, in bytes;
        prefetch: units gathered ahead; places: of units that aren't gathered into memory of the engine's, by name;
        copies_ahead: places have copies of their own to make, also of what is in the host's memory.

        Raises on all ranks SetupError if options or units can't be used or differ between ranks, BudgetError if a unit
        doesn't fit.
        """
        self.topology = topology
        self.strategy = _agreed_strategy(topology, tuple(units), strategy, tau, prefetch)
        self.arena = Arena(budget)
        self.last_micro_batch = True
        layouts = [Layout(unit.size, topology.nodes, topology.ranks_per_node) for unit in units]
        agree(topology.comm, error_of(lambda: memory.check(units, layouts, self.strategy, budget)))
        self._deepest = partial(memory.deepest, units, layouts, self.strategy, budget, copies_ahead=copies_ahead)
        ahead = topology.comm.allreduce(self._deepest(prefetch), MPI.MIN)
        self._units = {
            unit.name: self._allocate(index, unit, layout)
            for index, (unit, layout) in enumerate(zip(units, layouts, strict=True))
        }
        self._order = list(self._units.values())
        scratch = self.arena.take(memory.scratch(units, layouts), "uint8", "the buffer for gradients").array
        self._host = self._place_on_host() if self.strategy.keep is Keep.HOST else None
        self._messenger = Messenger(topology, list(self._units))
        self.traffic = self._messenger.traffic
        shared = topology, self.strategy, self._messenger, self.arena
        self._gradients = Gradients(*shared, self._order, scratch)
        self._parameters = Parameters(*shared, self._host, self._order, tau=tau, ahead=ahead, places=places or {})
        self.arena.reclaimers += [self._gradients.collect, self._parameters.evict]
        self._accumulating = False  # gradients aren't all zero: a step has begun
        self._summed = False  # gradients are complete: updated() comes next

    # ---- setting up ----

    def _allocate(self, index: int, unit: Unit, layout: Layout) -> LocalUnit:
        owned = memory.owned(layout, self.strategy)
        start = layout.slice_of(self.topology.local).start + (
            0 if self.strategy.keep is Keep.SHARD else layout.shard_of(self.topology.node_index).start
        )
        values = self._resident(owned, unit.dtype, unit)
        gradient = self._resident(owned, unit.dtype, unit) if unit.trainable else None
        mine = LocalUnit(unit, layout, index, start, values, gradient)
        if self.strategy.keep is Keep.DEVICE:
            mine.cached = self._resident(layout.slice, unit.gathered, unit)
        elif self.strategy.keep is Keep.SHARD:
            mine.cached = values
        return mine

    def _resident(self, elements: int, dtype: str, unit: Unit) -> np.ndarray:
        array = self.arena.take(elements, dtype, f"unit '{unit.name}'").array
        array[:] = 0
        return array

    def _place_on_host(self) -> HostCache:
        host = HostCache(self.topology, [(mine.layout, mine.unit.gathered) for mine in self._order])
        for mine, copy in zip(self._order, host.copies, strict=True):
            mine.node_copy = copy
            mine.cached = copy[mine.layout.slice_of(self.topology.local)]
        return host

    def __enter__(self) -> Engine:
        self._messenger.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Collective. An error that leaves the block ends the job on all ranks (failure_broadcast.py)."""
        try:
            if error is not None and is_failure(error):
                self._messenger.spread(error)
            else:
                self._settle()
                self._messenger.rows(NOTHING_TO_SAY, Operation.CLOSE)
        finally:
            self._messenger.stop()
        if not is_failure(error):
            self._close()

    def _close(self) -> None:
        for mine in self._order:
            mine.cached = mine.node_copy = None
        if self._host:
            self._host.close()
        self._messenger.close()
        self.arena.reclaimers.clear()  # the one cycle: without it, memory goes with the last reference to the engine

    def load(self, name: str, values: Mapping[str, np.ndarray]) -> None:
        """Set a unit's parameters. All ranks pass the whole unit. Raises SetupError if names or shapes are wrong, or if
        values differ between ranks.
        """
        mine = self._unit(name)
        if mine.residence is GatherState.IN_USE:
            raise OrderError(f"unit '{name}' is in use: it can't be loaded")
        flat = np.zeros(mine.layout.padded, mine.unit.dtype)
        views = mine.unit.views(flat)
        if {key: value.shape for key, value in values.items()} != {key: view.shape for key, view in views.items()}:
            raise SetupError(f"unit '{name}' has other parameters than those given")
        for key, view in views.items():
            view[...] = values[key]
        self._check_same(name, flat, 1)
        mine.values[:] = flat[mine.start : mine.start + mine.values.size]
        self._parameters.outdate(mine)

    def _check_same(self, name: str, values: np.ndarray, period: int) -> None:
        """Collective. Raise SetupError unless ranks have the same values as each rank `period` places further on, node
        by node."""
        digest = np.frombuffer(hashlib.blake2b(values.view(np.uint8).data, digest_size=16).digest(), np.uint8)
        rows = self._messenger.rows(digest, Operation.LOAD)
        for row in range(period, len(rows)):
            if (rows[row] != rows[row % period]).any():
                one, other = self._messenger.rank_of_row(row % period), self._messenger.rank_of_row(row)
                raise SetupError(f"the values of unit '{name}' are not the same on ranks {one} and {other}")

    # ---- between steps ----

    def parts(self) -> list[Part]:
        """The parts that this rank keeps, in the order of units. Raises OrderError in the middle of a step."""
        if self._accumulating or any(mine.residence is GatherState.IN_USE for mine in self._order):
            raise OrderError(
                "a step has begun, and its gradients are not part of a state: save and load after updated()"
            )
        return [Part(mine.unit, mine.layout, mine.start, mine.values) for mine in self._order]

    def load_part(self, part: Part, values: np.ndarray) -> None:
        """Set this rank's part of a unit, of the size of part.values. All ranks must set their parts."""
        mine = self._unit(part.unit.name)
        mine.values[:] = values
        self._parameters.outdate(mine)

    def load_slice(self, name: str, read: Callable[[int, int], np.ndarray]) -> None:
        """Collective. Set a unit from data that each node has itself, for example on its own disk. If the strategy
        keeps slices, nothing crosses the network for the unit until it changes.

        read: is given where this rank's slice begins and ends, and returns these elements of the flat unit (parameters
        one after the other, zeros behind them). Raises on all ranks what read raises on one, and SetupError if two
        nodes have different values.
        """
        mine = self._unit(name)
        if mine.residence is GatherState.IN_USE:
            raise OrderError(f"unit '{name}' is in use: it can't be loaded")
        where = mine.layout.slice_of(self.topology.local)
        values = np.zeros(mine.layout.slice, mine.unit.dtype)

        def fill() -> None:
            values[:] = read(where.start, where.stop)

        agree(self, error_of(fill))
        self._check_same(name, values, self.topology.ranks_per_node)
        mine.values[:] = values[mine.start - where.start :][: mine.values.size]
        self._parameters.place(mine, values)

    @property
    def in_step(self) -> bool:
        """Are there gradients that neither updated() nor discard() has consumed?"""
        return self._accumulating

    def set_prefetch(self, prefetch: int) -> None:
        """Collective, between passes. Units gathered ahead of the one in use, fewer if the budget says so. Raises
        SetupError on all ranks if it is negative or not the same."""
        error = SetupError(f"prefetch must not be negative, as {prefetch} is") if prefetch < 0 else None
        agree(self, error)
        wanted = self.allgather((prefetch, self._deepest(prefetch)))
        different = next((rank for rank, (other, _) in enumerate(wanted) if other != wanted[0][0]), None)
        if different is not None:
            raise SetupError(f"prefetch is {wanted[0][0]} on rank 0, {wanted[different][0]} on rank {different}")
        self._parameters.drop_unused()
        self._parameters.ahead = min(depth for _, depth in wanted)

    def allgather(self, value: Any) -> list[Any]:
        """Collective. The values of all ranks, by rank; each must be small and picklable. Raises RemoteError if a rank
        has failed.
        """
        return self._messenger.objects(value)

    # ---- parameters ----

    def gather(self, name: str, phase: Phase) -> dict[str, np.ndarray]:
        """The parameters of a unit, on the device until release(). Raises BudgetError if there is no room, RemoteError
        if another rank has failed."""
        self._messenger.check_open()
        return self._parameters.gather(self._unit(name), phase)

    def release(self, name: str) -> None:
        """Release a gathered unit. It stays on the device while less than tau of the device is in use."""
        self._parameters.release(self._unit(name))

    # ---- gradients ----

    def gradients(self, name: str) -> dict[str, np.ndarray]:
        """Zeros of the shapes of a trainable unit's parameters, to add this micro-batch's gradients to. Raises
        BudgetError."""
        mine = self._unit(name)
        if mine.gradient is None:
            raise OrderError(f"unit '{name}' is frozen: it has no gradients")
        if self._summed:
            raise OrderError("gradients are complete: call updated() before the next micro-batch")
        self._accumulating = True
        return self._gradients.arrays(mine)

    def reduce(self, name: str, ready: Callable[[], object] = lambda: None) -> None:
        """The arrays of gradients() are complete for this micro-batch, once ready() has returned: sum them over the
        ranks, in the background. ready runs there, too."""
        self._gradients.reduce(self._unit(name), self.last_micro_batch, ready)

    # ---- steps ----

    def finish(self) -> None:
        """End a micro-batch; with last_micro_batch, gradients are complete afterwards. Raises RemoteError if another
        rank has failed."""
        if self.last_micro_batch:
            self._gradients.complete()
        self._settle()
        self._parameters.finish()
        self._summed = self.last_micro_batch

    def _settle(self) -> None:
        """Wait for all communication that was requested."""
        self._gradients.settle()
        self._parameters.settle()

    @property
    def shards(self) -> Iterator[Shard]:
        """The shards that the optimizer updates, in the order of units."""
        return self._gradients.shards

    @property
    def is_complete(self) -> bool:
        """Whether the step's gradients are."""
        return self._summed

    def check_complete(self) -> None:
        """Raise OrderError unless the step's gradients are complete."""
        if not self._summed:
            raise OrderError("gradients are incomplete: call finish() with last_micro_batch first")

    def clip_gradients(self, max_norm: float) -> float:
        """Collective. Scale all gradients so that their global 2-norm is at most max_norm; returns the norm before.

        Raises GradientError if it isn't finite, SetupError if max_norm is negative, no number, or not the same on all
        ranks.
        """
        self.check_complete()
        if not max_norm >= 0:
            raise SetupError(f"max_norm must be 0 or more, not {max_norm:g}")
        return self._gradients.clip(max_norm)

    def updated(self) -> None:
        """The optimizer has changed the shards' values: gathered trainable units are out of date, and gradients begin
        at zero."""
        if not self._summed:
            raise OrderError("call updated() after finish() with last_micro_batch")
        in_use = next((mine for mine in self._order if mine.residence is GatherState.IN_USE), None)
        if in_use:
            raise OrderError(f"unit '{in_use.unit.name}' is in use: call release() before updated()")
        self._summed = self._accumulating = False
        for mine in self._order:
            if mine.gradient is not None:
                mine.gradient[:] = 0
                self._parameters.outdate(mine)

    def discard(self) -> None:
        """Collective. Drop the step's gradients, complete or not. A micro-batch that was begun is not finished; the
        next one begins a step.

        Raises OrderError if ranks are at different operations.
        """
        in_use = next((mine for mine in self._order if mine.residence is GatherState.IN_USE), None)
        if in_use:
            raise OrderError(f"unit '{in_use.unit.name}' is in use: call release() before discard()")
        self._settle()
        # a rank that has reduced something else than others fails here, and not by wrong sums later
        self.allgather(None)
        self._parameters.drop_unused()
        self._gradients.discard()
        self._summed = self._accumulating = False

    # ---- looking ----

    def hold(self, nbytes: int, what: str) -> ArenaBlock:
        """Account for device memory that the program uses, for example for activations. Free it through the returned
        block. Raises BudgetError.
        """
        return self.arena.hold(nbytes, what)

    def report(self) -> dict[str, dict[str, int]]:
        """Collective. Bytes that the ranks of this node have sent so far, by phase and scope (traffic.py)."""
        counts = self.traffic.bytes.copy().reshape(-1)
        rows = self._messenger.rows(counts, Operation.REPORT)
        first = self.topology.node_index * self.topology.ranks_per_node
        return table(rows[first : first + self.topology.ranks_per_node].sum(axis=0).reshape(self.traffic.bytes.shape))

    def placement(self) -> dict[str, Placement]:
        """Where this rank's next gather would find each unit. After a forward pass this shows which units tau has kept
        on the device (FCDP-Cache).
        """
        return self._parameters.placement()

    @property
    def host(self) -> HostCache | None:
        """The node's window, where the strategy keeps one; units in order."""
        return self._host

    @property
    def host_bytes(self) -> int:
        """Bytes of the node's window."""
        return self._host.nbytes if self._host else 0

    def _unit(self, name: str) -> LocalUnit:
        if name not in self._units:
            raise SetupError(f"there is no unit '{name}'")
        return self._units[name]


def _agreed_strategy(topology: Topology, units: tuple[Unit, ...], name: str, tau: float, prefetch: int) -> Strategy:
    """Collective. The strategy of that name. Raises SetupError on all ranks if options or units can't be used, or
    aren't the same everywhere."""

    def check() -> None:
        find(name, tau)
        unit_checks.check(units)
        if prefetch < 0:
            raise SetupError(f"prefetch must not be negative, as {prefetch} is")

    agree(topology.comm, error_of(check))
    options = f"strategy {name}, tau {tau:g}, prefetch {prefetch}"
    first_units, first_options = topology.comm.bcast((units, options))
    where = (
        f"{options} here, {first_options} there"
        if options != first_options
        else unit_checks.difference(units, first_units)
    )
    agree(topology.comm, SetupError(f"not the same as on rank 0: {where}") if where else None)
    return find(name, tau)


NOTHING_TO_SAY = np.zeros(1, np.uint8)
