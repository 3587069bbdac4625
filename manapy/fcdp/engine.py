"""The engine: units are gathered for use and released, gradients are reduced, and the strategy decides what crosses the network for it.

What sits on top (numpy layers, modules of another library) calls, on every rank in the same order, and inside `with engine:`

    load(unit, values)                               once per unit
    for each micro-batch, with last_micro_batch set for the last one of a step:
        gather(unit, FORWARD)   ... release(unit)    for each unit in order
        gather(unit, BACKWARD)  ... release(unit)    in the reverse order
        gradients(unit)         ... reduce(unit)     when the unit's gradient is computed
        finish()
    clip_gradients(max_norm)                         if wanted
    the optimizer changes shard.values by shard.gradient for each of shards
    updated()

Between steps state.py reads and sets `parts`, what this rank keeps of each unit.

Invariants
1. The communication thread does one thing after another, in the order of these calls. It alone sends and receives.
2. A unit is `changed` from load() or updated() until its slice has been fetched again; where the strategy keeps slices, nothing else makes one cross the network.
3. Gradients are sums, over ranks and micro-batches: the program scales its loss.
4. Whether to keep a gathered unit on the device (tau) is each rank's own decision: it changes no message. What changes messages (order, units gathered ahead) is
   the same on all ranks.
5. At most one gradient is being reduced while the next is computed.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, IntEnum
from types import TracebackType
from typing import Any

import numpy as np
from mpi4py import MPI

from . import budget as memory
from . import units as unit_checks
from .agreement import agree, error_of
from .alarm import Alarm
from .arena import Arena, Block, Place
from .control import Control
from .errors import GradientError, OrderError, SetupError
from .exchange import Group
from .host import HostCache
from .strategy import Fetch, Keep, Reduce, Strategy, find
from .topology import Topology
from .traffic import Phase, Scope, Traffic, table
from .units import Layout, Unit


class Operation(IntEnum):
    """What a message's tag stands for, together with the number of the unit."""

    FETCH = 0
    GATHER = 1
    REDUCE = 2
    REDUCE_ACROSS = 3
    LOAD = 4
    NORM = 5
    REPORT = 6
    STATE = 7
    CLOSE = 8


class Residence(Enum):
    """Where the gathered unit is on the device."""

    ABSENT = "absent"
    AHEAD = "ahead"  # being gathered, nobody has asked for it yet
    IN_USE = "in use"
    KEPT = "kept"  # released, but left on the device (tau): may be evicted at any time


@dataclass(frozen=True)
class Shard:
    """What this rank's optimizer updates of a unit: flat arrays of one size, on the device. values are changed in place (values[:] -= ...); gradient is the sum of all ranks'.

    start: where they begin in the flat unit. They may reach into its padding.
    """

    unit: str
    values: np.ndarray
    gradient: np.ndarray
    start: int = 0


@dataclass(frozen=True)
class Part:
    """What this rank keeps of a unit, trainable or frozen. values: flat, elements [start, start + values.size) of the unit with its padding."""

    unit: Unit
    layout: Layout
    start: int
    values: np.ndarray


@dataclass
class _State:
    """One unit on one rank. Sizes are those of the layout."""

    unit: Unit
    layout: Layout
    index: int
    values: np.ndarray  # what the optimizer updates: the shard, or the slice
    gradient: np.ndarray | None  # of the same size; None if frozen
    cached: np.ndarray | None = None  # the slice between uses, where the strategy keeps one
    node_copy: np.ndarray | None = None  # the whole unit in the host's window
    partial: np.ndarray | None = None  # gradients of the slice, summed over the node and over micro-batches, not yet over nodes
    unsummed: bool = False  # partial holds something
    changed: bool = True
    fetched: Future[None] | None = None
    residence: Residence = Residence.ABSENT
    block: Block | None = None  # the gathered unit
    arrival: Future[None] | None = None  # of the block's contents
    whole_gradient: Block | None = None  # being computed


class Engine:
    """One rank's part of a sharded training job. arena: the device; traffic: what this rank has sent; last_micro_batch: whether finish() ends a step."""

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
    ) -> None:
        """Collective. tau: share of the device up to which gathered units stay there; budget: of the device, in bytes; prefetch: units gathered ahead;
        places: of units that aren't gathered into memory of the engine's, by name.

        Raises on all ranks SetupError if options or units can't be used or differ between ranks, BudgetError if a unit doesn't fit.
        """
        self.topology = topology
        self.strategy = self._checked(tuple(units), strategy, tau, prefetch)
        self.traffic = Traffic()
        self.arena = Arena(budget)
        self.last_micro_batch = True
        self._tau = tau
        self._places = places or {}
        layouts = [Layout(unit.size, topology.nodes, topology.ranks_per_node) for unit in units]
        agree(topology.comm, error_of(lambda: memory.check(units, layouts, self.strategy, budget)))
        self._ahead = topology.comm.allreduce(memory.deepest(units, layouts, self.strategy, budget, prefetch), MPI.MIN)
        self._states = {unit.name: self._allocate(index, unit, layout) for index, (unit, layout) in enumerate(zip(units, layouts, strict=True))}
        self._order = list(self._states.values())
        self._scratch = self.arena.take(memory.scratch(units, layouts), "uint8", "the buffer for gradients")
        self._host = self._place_on_host() if self.strategy.keep is Keep.HOST else None
        self._alarm = Alarm(topology)
        members = [topology.rank_of(topology.node_index, local) for local in range(topology.ranks_per_node)]
        self._node = Group(topology.node, members, Scope.INTRA, self.traffic, self._alarm, self._describe)
        peers = [topology.rank_of(node, topology.local) for node in range(topology.nodes)]
        self._cross = Group(topology.cross, peers, Scope.INTER, self.traffic, self._alarm, self._describe)
        self._control = Control(topology, self._node, self._cross)
        self._thread = ThreadPoolExecutor(1, "fcdp")
        self._open = False
        self._accumulating = False  # gradients aren't all zero: a step has begun
        self._summed = False  # gradients are complete: updated() comes next
        self._reducing: deque[tuple[Future[None], Block]] = deque()  # oldest first
        self._pending: list[Future[Any]] = []  # everything else that finish() waits for

    # ---- setting up ----

    def _checked(self, units: tuple[Unit, ...], strategy: str, tau: float, prefetch: int) -> Strategy:
        def check() -> None:
            find(strategy, tau)
            unit_checks.check(units)
            if prefetch < 0:
                raise SetupError(f"prefetch must not be negative, as {prefetch} is")

        comm = self.topology.comm
        agree(comm, error_of(check))
        options = f"strategy {strategy}, tau {tau:g}, prefetch {prefetch}"
        first_units, first_options = comm.bcast((units, options))
        where = f"{options} here, {first_options} there" if options != first_options else unit_checks.difference(units, first_units)
        agree(comm, SetupError(f"not the same as on rank 0: {where}") if where else None)
        return find(strategy, tau)

    def _allocate(self, index: int, unit: Unit, layout: Layout) -> _State:
        owned = memory.owned(layout, self.strategy)
        values = self._resident(owned, unit.dtype, unit)
        gradient = self._resident(owned, unit.dtype, unit) if unit.trainable else None
        state = _State(unit, layout, index, values, gradient)
        if self.strategy.keep is Keep.DEVICE:
            state.cached = self._resident(layout.slice, unit.gathered, unit)
        elif self.strategy.keep is Keep.SHARD:
            state.cached = values
        if unit.trainable and self.strategy.reduce is Reduce.LAST:
            state.partial = gradient if self.strategy.keep is Keep.SHARD else np.zeros(layout.slice, unit.dtype)  # on the host
        return state

    def _resident(self, elements: int, dtype: str, unit: Unit) -> np.ndarray:
        array = self.arena.take(elements, dtype, f"unit '{unit.name}'").array
        array[:] = 0
        return array

    def _place_on_host(self) -> HostCache:
        host = HostCache(self.topology, [(state.layout, state.unit.gathered) for state in self._order])
        for state, copy in zip(self._order, host.copies, strict=True):
            state.node_copy = copy
            state.cached = copy[state.layout.slice_of(self.topology.local)]
        return host

    def __enter__(self) -> Engine:
        self._open = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Collective. An error that leaves the block ends the job on all ranks (alarm.py)."""
        try:
            if error is None:
                self._settle()
                self._rows(NOTHING_TO_SAY, Operation.CLOSE)
            else:
                self._alarm.spread(error)
        finally:
            self._open = False
            self._thread.shutdown(cancel_futures=True)
        if error is None:
            self._close()

    def _close(self) -> None:
        for state in self._order:
            state.cached = state.node_copy = None
        if self._host:
            self._host.close()
        for part in (self._node, self._cross, self._alarm):
            part.close()

    def load(self, name: str, values: Mapping[str, np.ndarray]) -> None:
        """Set a unit's parameters; all ranks give all of it. Raises SetupError if names or shapes are wrong, or values differ between ranks."""
        state = self._state(name)
        if state.residence is Residence.IN_USE:
            raise OrderError(f"unit '{name}' is in use: it can't be loaded")
        flat = np.zeros(state.layout.padded, state.unit.dtype)
        views = state.unit.views(flat)
        if {key: value.shape for key, value in values.items()} != {key: view.shape for key, view in views.items()}:
            raise SetupError(f"unit '{name}' has other parameters than those given")
        for key, view in views.items():
            view[...] = values[key]
        digest = np.frombuffer(hashlib.blake2b(flat, digest_size=16).digest(), np.uint8)
        rows = self._rows(digest, Operation.LOAD)
        different = [self._control.rank_of_row(row) for row in range(len(rows)) if (rows[row] != rows[0]).any()]
        if different:
            raise SetupError(f"the values of unit '{name}' are not the same on ranks {self._control.rank_of_row(0)} and {different[0]}")
        start = self._start(state)
        state.values[:] = flat[start : start + state.values.size]
        self._outdate(state)

    def _start(self, state: _State) -> int:
        """Where the rank's part begins in the unit."""
        start = state.layout.slice_of(self.topology.local).start
        return start if self.strategy.keep is Keep.SHARD else start + state.layout.shard_of(self.topology.node_index).start

    # ---- between steps ----

    def parts(self) -> list[Part]:
        """What this rank keeps, in the order of units. Raises OrderError in the middle of a step."""
        if self._accumulating or any(state.residence is Residence.IN_USE for state in self._order):
            raise OrderError("a step has begun, and its gradients are no part of a state: save and load after updated()")
        return [Part(state.unit, state.layout, self._start(state), state.values) for state in self._order]

    def load_part(self, part: Part, values: np.ndarray) -> None:
        """Set what this rank keeps of a unit, as large as part.values; all ranks set theirs."""
        state = self._state(part.unit.name)
        state.values[:] = values
        self._outdate(state)

    def allgather(self, value: Any) -> list[Any]:
        """Collective. Every rank's value, by rank: something small that can be pickled. Raises RemoteError if a rank has failed."""
        return self._submit(lambda: self._control.objects(value, self._tag(Operation.STATE))).result()

    # ---- parameters ----

    def gather(self, name: str, phase: Phase) -> dict[str, np.ndarray]:
        """The parameters of a unit, on the device until release(). Raises BudgetError if there is no room, RemoteError if another rank has failed."""
        self._check_open()
        state = self._state(name)
        if state.residence is Residence.IN_USE:
            raise OrderError(f"unit '{name}' is gathered already")
        if state.residence is Residence.ABSENT:
            self._request(state, phase)
        for other in self._next(state, phase):
            if other.residence is Residence.ABSENT:
                self._request(other, phase)
        state.residence = Residence.IN_USE
        assert state.block is not None
        if state.arrival is not None:
            state.arrival.result()
        return state.unit.views(state.block.array)

    def release(self, name: str) -> None:
        """The unit isn't needed for now. It stays on the device while less than tau of that is in use."""
        state = self._state(name)
        if state.residence is not Residence.IN_USE:
            raise OrderError(f"unit '{name}' is released without being gathered")
        if self.arena.utilisation < self._tau:
            state.residence = Residence.KEPT
        else:
            self._drop(state)

    def _next(self, state: _State, phase: Phase) -> list[_State]:
        if phase is Phase.STATE:
            return []
        if phase is Phase.FORWARD:
            return self._order[state.index + 1 : state.index + 1 + self._ahead]
        return self._order[max(0, state.index - self._ahead) : state.index][::-1]

    def _request(self, state: _State, phase: Phase) -> None:
        state.block = self._take(state, state.unit.gathered, f"unit '{state.unit.name}'", self._places.get(state.unit.name))
        state.residence = Residence.AHEAD
        if self._host:
            self._copy_from_host(state, state.block, phase)
            state.arrival = None
        else:
            state.arrival = self._gather_from_ranks(state, state.block, phase)

    def _copy_from_host(self, state: _State, block: Block, phase: Phase) -> None:
        if state.changed:
            for other in self._order:  # all at once: the host's memory has room for them, so the network need not wait for the computation
                if other.changed:
                    other.changed = False
                    other.fetched = self._submit(lambda other=other: self._fetch_to_host(other, phase))
        assert state.fetched is not None and state.node_copy is not None
        state.fetched.result()
        block.array[:] = state.node_copy
        self.traffic.add(phase, Scope.INTRA, block.nbytes * (self.topology.ranks_per_node - 1) // self.topology.ranks_per_node)

    def _gather_from_ranks(self, state: _State, block: Block, phase: Phase) -> Future[None]:
        fetch = self.strategy.fetch
        fetched = fetch is Fetch.ALWAYS or (fetch is Fetch.FORWARD and phase is Phase.FORWARD) or (fetch is not Fetch.NEVER and state.changed)
        state.changed = False

        def job() -> None:
            mine = block.array[state.layout.slice_of(self.topology.local)]
            cached = mine if state.cached is None else state.cached
            if fetched:
                self._fetch(state, cached, phase)
            if state.cached is not None:
                mine[:] = cached
            self._node.all_gather(block.array, self._tag(Operation.GATHER, state), phase)

        return self._submit(job)

    def _fetch_to_host(self, state: _State, phase: Phase) -> None:
        assert self._host is not None and state.cached is not None
        tag = self._tag(Operation.FETCH, state)
        self._node.barrier(tag)
        self._fetch(state, state.cached, phase)
        self._host.sync()
        self._node.barrier(tag)
        self._host.sync()

    def _fetch(self, state: _State, target: np.ndarray, phase: Phase) -> None:
        """The rank's slice from the other nodes."""
        target[state.layout.shard_of(self.topology.node_index)] = state.values
        self._cross.all_gather(target, self._tag(Operation.FETCH, state), phase)

    def _outdate(self, state: _State) -> None:
        """The unit's values have changed: what was gathered of it is of no use."""
        state.changed = True
        if state.residence is not Residence.ABSENT:
            if state.arrival is not None:
                state.arrival.result()
            self._drop(state)

    def _drop(self, state: _State) -> None:
        assert state.block is not None
        state.block.free()
        state.block = state.arrival = None
        state.residence = Residence.ABSENT

    # ---- gradients ----

    def gradients(self, name: str) -> dict[str, np.ndarray]:
        """Zeros of the shapes of a trainable unit's parameters, to add this micro-batch's gradients to. Raises BudgetError."""
        state = self._state(name)
        if state.gradient is None:
            raise OrderError(f"unit '{name}' is frozen: it has no gradients")
        if self._summed:
            raise OrderError("gradients are complete: call updated() before the next micro-batch")
        self._accumulating = True
        if state.whole_gradient is None:
            while len(self._reducing) > 1:
                self._collect_reduced()
            state.whole_gradient = self._take(state, state.unit.dtype, f"the gradient of unit '{name}'")
            state.whole_gradient.array[:] = 0
        return state.unit.views(state.whole_gradient.array)

    def reduce(self, name: str) -> None:
        """The arrays of gradients() are complete for this micro-batch: sum them over the ranks, in the background."""
        state = self._state(name)
        block, state.whole_gradient = state.whole_gradient, None
        if block is None:
            raise OrderError(f"unit '{name}' is reduced without gradients")
        self._reducing.append((self._submit(lambda: self._reduce_in_node(state, block.array)), block))
        state.unsummed = state.partial is not None
        if state.unsummed and self.last_micro_batch:
            self._reduce_across(state)

    def _collect_reduced(self) -> None:
        future, block = self._reducing.popleft()
        future.result()
        block.free()

    def _reduce_in_node(self, state: _State, whole: np.ndarray) -> None:
        self._node.reduce_scatter(whole, self._scratch.array.view(state.unit.dtype), self._tag(Operation.REDUCE, state), Phase.REDUCE)
        mine = whole[state.layout.slice_of(self.topology.local)]
        if state.partial is not None:
            state.partial += mine
        else:
            state.gradient += self._sum_across(state, mine)

    def _reduce_across(self, state: _State) -> None:
        """Once per step, for strategies that collect gradients in the node."""
        assert state.partial is not None
        state.unsummed = False

        def job() -> None:
            mine = self._sum_across(state, state.partial)
            if self.strategy.keep is Keep.SHARD:  # the slice is on every node, so all need the sum
                self._cross.all_gather(state.partial, self._tag(Operation.REDUCE_ACROSS, state), Phase.REDUCE)
            else:
                state.gradient[:] = mine
                state.partial[:] = 0

        self._pending.append(self._submit(job))

    def _sum_across(self, state: _State, part: np.ndarray) -> np.ndarray:
        """Sum a slice's gradients over nodes; returns the rank's shard of it."""
        scratch = self._scratch.array.view(state.unit.dtype)
        self._cross.reduce_scatter(part, scratch, self._tag(Operation.REDUCE_ACROSS, state), Phase.REDUCE)
        return part[state.layout.shard_of(self.topology.node_index)]

    # ---- steps ----

    def finish(self) -> None:
        """End a micro-batch; with last_micro_batch, gradients are complete afterwards. Raises RemoteError if another rank has failed."""
        if self.last_micro_batch:
            for state in reversed(self._order):
                if state.unsummed:  # used in an earlier micro-batch, but not in this one
                    self._reduce_across(state)
        self._settle()
        for state in self._order:
            if state.residence is Residence.AHEAD:  # gathered ahead and not used
                self._drop(state)
        self._summed = self.last_micro_batch

    def _settle(self) -> None:
        """Wait for all communication that has been asked for."""
        while self._reducing:
            self._collect_reduced()
        arrivals = [state.arrival for state in self._order if state.arrival is not None]
        for future in [*self._pending, *arrivals]:
            future.result()
        self._pending.clear()

    @property
    def shards(self) -> Iterator[Shard]:
        """What the optimizer updates, in the order of units."""
        for state in self._order:
            if state.gradient is not None:
                yield Shard(state.unit.name, state.values, state.gradient, self._start(state))

    def check_complete(self) -> None:
        """Raise OrderError unless the step's gradients are complete."""
        if not self._summed:
            raise OrderError("gradients aren't complete: finish() with last_micro_batch comes first")

    def clip_gradients(self, max_norm: float) -> float:
        """Collective. Scale all gradients so that their global 2-norm is at most max_norm; returns the norm before. Raises GradientError if it isn't finite."""
        self.check_complete()
        shards = list(self.shards)
        squares = [float(np.dot(shard.gradient.astype(np.float64), shard.gradient)) for shard in shards]
        bad = next((index for index, square in enumerate(squares) if not math.isfinite(square)), -1)
        row = np.array([sum(squares), bad])
        rows = self._rows(row, Operation.NORM)
        for index in range(len(rows)):
            if rows[index, 1] >= 0:
                raise GradientError(f"gradients of unit '{shards[int(rows[index, 1])].unit}' aren't finite (in the shard of rank {self._control.rank_of_row(index)}): they can't be clipped")
        if self.strategy.keep is Keep.SHARD:
            rows = rows[: self.topology.ranks_per_node]  # every node has all gradients
        norm = math.sqrt(rows[:, 0].sum())
        if norm > max_norm:
            for shard in shards:
                shard.gradient[:] *= max_norm / norm
        return norm

    def updated(self) -> None:
        """The optimizer has changed the shards' values: what was gathered of trainable units is out of date, and gradients begin at zero."""
        if not self._summed:
            raise OrderError("updated() comes after finish() with last_micro_batch")
        in_use = next((state for state in self._order if state.residence is Residence.IN_USE), None)
        if in_use:
            raise OrderError(f"unit '{in_use.unit.name}' is in use: release() comes before updated()")
        self._summed = self._accumulating = False
        for state in self._order:
            if state.gradient is not None:
                state.gradient[:] = 0
                self._outdate(state)

    # ---- looking ----

    def hold(self, nbytes: int, what: str) -> Block:
        """Account for device memory that the program uses, for activations say; free it by the block. Raises BudgetError."""
        self._make_room(nbytes)
        return self.arena.hold(nbytes, what)

    def report(self) -> dict[str, dict[str, int]]:
        """Collective. Bytes that the ranks of this node have sent so far, by phase and scope (traffic.py)."""
        counts = self.traffic.bytes.copy().reshape(-1)
        rows = self._rows(counts, Operation.REPORT)
        first = self.topology.node_index * self.topology.ranks_per_node
        return table(rows[first : first + self.topology.ranks_per_node].sum(axis=0).reshape(self.traffic.bytes.shape))

    @property
    def host_bytes(self) -> int:
        """Of the node's window."""
        return self._host.nbytes if self._host else 0

    # ---- the thread and the device ----

    def _check_open(self) -> None:
        if not self._open:
            raise OrderError("the engine is used inside `with engine:`")

    def _submit(self, job: Callable[[], Any]) -> Future[Any]:
        self._check_open()
        return self._thread.submit(self._run, job)

    def _run(self, job: Callable[[], Any]) -> Any:
        try:
            self._alarm.check()
            return job()
        except BaseException as error:
            self._alarm.spread(error)  # here and not where the result is looked at: the caller may be computing for long
            raise

    def _rows(self, row: np.ndarray, operation: Operation) -> np.ndarray:
        return self._submit(lambda: self._control.rows(row, self._tag(operation))).result()

    def _tag(self, operation: Operation, state: _State | None = None) -> int:
        return (state.index if state else len(self._order)) * len(Operation) + operation

    def _describe(self, tag: int) -> str:
        index, operation = divmod(tag, len(Operation))
        text = Operation(operation).name.lower().replace("_", " ")
        return f"{text} of unit '{self._order[index].unit.name}'" if index < len(self._order) else text

    def _state(self, name: str) -> _State:
        if name not in self._states:
            raise SetupError(f"there is no unit '{name}'")
        return self._states[name]

    def _take(self, state: _State, dtype: str, what: str, place: Place | None = None) -> Block:
        self._make_room(state.layout.padded * np.dtype(dtype).itemsize)
        return self.arena.take(state.layout.padded, dtype, what, place)

    def _make_room(self, nbytes: int) -> None:
        """Wait for reductions that give memory back, then evict kept units, as far as it is needed."""
        kept = [state for state in self._order if state.residence is Residence.KEPT]
        while not self.arena.fits(nbytes):
            if self._reducing:
                self._collect_reduced()
            elif kept:
                self._drop(kept.pop())
            else:
                return


NOTHING_TO_SAY = np.zeros(1, np.uint8)
