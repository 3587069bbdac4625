"""Divides a model into units, and makes the engine for them; again when requires_grad has changed.

1. Only between steps. Each rank's part of the values, and the optimizers' state for it, are moved. The old engine ends
   before the new one is made, because a node has memory for only one.
2. Groups are always the same modules; their units change.
3. Parameters on the meta device have no values until fully_shard's `values` or a load provides them. Until then no pass
   can begin.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import numpy as np
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from ...core.units import amount
from ..engine import budget
from ..engine.collective_errors import agreed
from ..engine.engine import Engine
from ..engine.node_window import HostCache
from ..engine.topology import Topology
from ..engine.units import Layout, Unit
from ..errors import OrderError, SetupError, is_failure
from ..mpi import MPI
from ..state.state_index import Span, spans
from .device import Device, Staging
from .device import find as find_device
from .grouping import GatherGroup, Member, Units, groups_of
from .meta import Values, materialise, without_values
from .moving import Arrays, moved
from .optimizer import Pieces
from .saving import is_elementwise
from .storage import DeviceStorage, UnitStorage, to_numpy, to_tensor

log = logging.getLogger(__name__)

VALUES = "values of the parameter"


class Division:
    """engine, groups, storages (by unit): now. unset: names of parameters and buffers that have no values yet. pieces:
    what optimizers see."""

    def __init__(
        self,
        module: nn.Module,
        topology: Topology,
        units: Units,
        policy: MixedPrecisionPolicy,
        device: str | Device,
        options: dict[str, Any],
    ) -> None:
        """Collective. options: of Engine; its budget is the device's memory unless it is given. Raises SetupError on
        all ranks, BudgetError."""
        self.module = module
        self._topology, self._units, self._policy, self._options = topology, units, policy, options
        self.device: Device | None = agreed(topology.comm, lambda: find_device(device))
        if self.device and options["budget"] is None:
            options["budget"] = (
                topology.comm.allreduce(self.device.limit, MPI.MIN) if self.device.limit is not None else None
            )
        self.groups = agreed(topology.comm, self._grouped)
        self.engine = self._engine()
        self.unset: set[str] = set()

    def _grouped(self) -> list[GatherGroup]:
        groups = groups_of(self.module, self._units, self._policy.param_dtype)
        own = {parameter.dtype for parameter in self.module.parameters() if parameter.requires_grad}
        if self._policy.reduce_dtype and own - {self._policy.reduce_dtype}:
            summed = ", ".join(sorted(map(str, own)))
            raise SetupError(
                f"mp_policy asks for gradients in {self._policy.reduce_dtype}: they are summed in the type of the "
                f"parameters ({summed})"
            )
        return groups

    def _engine(self) -> Engine:
        self.storages = self._storages({unit.name: self._layout(unit).padded for unit in self.units})
        self._trainable = [
            (parameter, member.unit.trainable) for member in self._members for parameter in member.parameters.values()
        ]
        engine = Engine(
            self._topology, self.units, places=self.storages, copies_ahead=self.device is not None, **self._options
        )
        self._locked = (
            engine.host.memory
            if self.device is not None and engine.host is not None and self._lock(self.device, engine.host)
            else None
        )
        return engine

    def _layout(self, unit: Unit) -> Layout:
        return Layout(unit.size, self._topology.nodes, self._topology.ranks_per_node)

    def _lock(self, device: Device, host: HostCache) -> bool:
        """Collective. Let the device copy from the node's window itself. False where it can't, which one rank says: its
        copies are made over staging buffers."""
        refusals = self._topology.comm.allgather(device.lock(host.memory))
        refused = next((rank for rank, refusal in enumerate(refusals) if refusal), None)
        if refused == self._topology.rank:
            log.warning(
                (
                    "rank %d can't page-lock the node's copy of parameters, %s, for its device, and copies from there "
                    "over a buffer: %s"
                ),
                refused,
                amount(host.nbytes),
                refusals[refused],
            )
        if refusals[self._topology.rank]:
            return False
        for storage, copy in zip(self.storages.values(), host.copies, strict=True):
            if isinstance(storage, DeviceStorage):
                storage.read_from(copy)
        return True

    def _storages(self, elements: dict[str, int]) -> dict[str, UnitStorage]:
        """elements: by unit, with padding."""
        if self.device is None:
            return {member.unit.name: UnitStorage(member, elements[member.unit.name]) for member in self._members}
        largest = max((elements[unit.name] * np.dtype(unit.gathered).itemsize for unit in self.units), default=0)
        staging = Staging(self.device.host, largest, len(self.units))  # as many as are gathered at once
        return {
            member.unit.name: DeviceStorage(member, elements[member.unit.name], self.device, staging)
            for member in self._members
        }

    @property
    def _members(self) -> list[Member]:
        return [member for group in self.groups for member in group.members]

    @property
    def units(self) -> list[Unit]:
        """The units, in order."""
        return [member.unit for member in self._members]

    def __enter__(self) -> Division:
        self.engine.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After a failure copies may be in progress: the memory stays locked.
        if self.device is not None and self._locked is not None and not is_failure(error):
            for storage in self.storages.values():
                storage.settle()
            self.device.unlock(self._locked)
            self._locked = None
        self.engine.__exit__(kind, error, trace)

    def fill(self, values: Values | None) -> None:
        """Collective, once. Shard the parameters' values; those on the meta device become real ones, with values from
        rank 0 if there are any."""
        buffers = materialise(self.module, self._topology.comm, values)
        for member, part in zip(self._members, self.engine.parts(), strict=True):
            absent = [name for name, parameter in member.parameters.items() if parameter.is_meta]
            if absent:
                without_values(self.engine, part, member, values)
                self.unset.update(() if values else absent)
            else:
                self.engine.load(
                    member.unit.name, {name: to_numpy(parameter) for name, parameter in member.parameters.items()}
                )
            self.storages[member.unit.name].hide()
        self._empty = {} if values else buffers
        self.unset.update(self._empty)
        if self.device is not None:
            for buffer in self.module.buffers():
                buffer.data = buffer.to(self.device.place)
        self.pieces = Pieces(self.engine)

    @property
    def is_current(self) -> bool:
        """Whether units are trainable where parameters require gradients."""
        return all(parameter.requires_grad is trainable for parameter, trainable in self._trainable)

    def check_values(self) -> None:
        """Raise OrderError if a parameter or buffer has none. A buffer has values when the program has written to it,
        or put another in its place."""
        if self.unset:
            self.unset -= {
                name
                for name, buffer in self.module.named_buffers()
                if name in self._empty and (buffer is not self._empty[name] or buffer._version > 0)
            }
        if self.unset:
            raise OrderError(
                f"{min(self.unset)} was on the meta device and has no values yet: load() or load_file() them, or give "
                "fully_shard values="
            )

    def check_parameters(self) -> None:
        """Raise SetupError if the module has other parameters than those that are sharded."""
        ours = {name: parameter for member in self._members for name, parameter in member.parameters.items()}
        now = dict(self.module.named_parameters())
        different = next((name for name in [*ours, *now] if ours.get(name) is not now.get(name)), None)
        if different is not None:
            raise SetupError(
                f"parameter {different} has been added, removed or replaced since fully_shard: write into parameters "
                "(copy_(), load_state_dict() without assign=True)"
            )

    def have_values(self, trainable: bool, buffers: Iterable[str] = ()) -> None:
        """Parameters have been loaded, all or the trainable ones, and these buffers."""
        self.unset -= {name for unit in self.units if unit.trainable or not trainable for name, _ in unit.parameters}
        self.unset -= set(buffers)

    def set_prefetch(self, units: int) -> None:
        """See Sharded."""
        self.engine.set_prefetch(units)
        self._options["prefetch"] = units

    def renew(self) -> None:
        """Collective, between steps: requires_grad has changed. Raises SetupError on all ranks if that isn't the same
        everywhere, or can't be, BudgetError; OrderError within a step."""
        if self.engine.in_step:
            raise OrderError("requires_grad has changed within a step: optimizer.step() or discard() comes first")
        before, parts = self.engine, self.engine.parts()
        groups = agreed(before, self._grouped)
        flags = before.allgather(
            [name for name, parameter in self.module.named_parameters() if parameter.requires_grad]
        )
        if any(names != flags[0] for names in flags):
            raise SetupError("requires_grad is not the same on all ranks")
        # what can fail is tried before the old engine ends
        units = [member.unit for group in groups for member in group.members]
        layouts = [self._layout(unit) for unit in units]
        agreed(before, lambda: budget.check(units, layouts, before.strategy, self._options["budget"]))
        self.__exit__(None, None, None)
        self.groups = groups
        self.engine = self._engine()
        self.engine.__enter__()
        for storage in self.storages.values():
            storage.hide()
        self.engine.traffic.bytes += before.traffic.bytes
        self.engine.last_micro_batch = before.last_micro_batch
        self._move(parts)

    def _move(self, before: Iterable[Any]) -> None:
        now = self.engine.parts()
        wanted: dict[str, Span | None] = {name: None for unit in self.units for name, _ in unit.parameters}
        wanted |= {
            span.parameter: span for part in now for span in spans(part.unit, part.start, part.start + part.values.size)
        }
        places = {name: part for part in now for name, _ in part.unit.parameters}
        keepers = {
            id(values): optimizer
            for optimizer in self.pieces.optimizers
            for group in optimizer.param_groups
            for values in group["params"]
        }

        def state_of(name: str) -> dict[str, Any]:
            values = self.pieces[name].values
            return keepers[id(values)].state.get(values, {}) if id(values) in keepers else {}

        def kept(name: str) -> Arrays:
            piece = self.pieces[name]
            return {
                VALUES: to_numpy(piece.values),
                **{key: to_numpy(value) for key, value in state_of(name).items() if is_elementwise(piece, key, value)},
            }

        for name, arrays in moved(self.engine, before, kept, wanted):
            span, values = wanted[name], arrays.pop(VALUES)
            if span:
                span.of(places[name].values)[:] = values
            state_of(name).update({key: to_tensor(array) for key, array in arrays.items()})
        for part in now:
            self.engine.load_part(part, part.values)
        self.pieces.place(self.engine)
