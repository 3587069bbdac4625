"""fully_shard: a module whose parameters, gradients and optimizer state are sharded over all ranks.

    with fully_shard(model, strategy="fcdp") as sharded:
        optimizer = sharded.shard_optimizer(lambda shards: torch.optim.AdamW(shards.values(), lr=1e-3))
        for batch in batches:
            loss(model(batch)).backward()
            sharded.clip_grad_norm_(1.0)
            optimizer.step()

1. The module stays the program's: it is called, switched to eval mode and looked at as before; parameters keep their names and shapes.
2. A step ends with backward(), or with the last one of no_sync() or accumulate(): then gradients are complete, and optimizer.step() comes next.
3. Gradients are means over ranks and sums over micro-batches, as in torch's own data parallelism: the program divides its loss by the number of micro-batches.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.optim import Optimizer

from .. import state
from ..agreement import agree, error_of
from ..engine import Engine
from ..errors import SetupError
from ..topology import Topology
from ..units import Layout, Unit
from .grouping import Group, Units, blocks, groups_of
from .optimizer import Factory, pieces_of, shard_optimizer
from .saving import SavedOptimizer, TorchGenerator
from .schedule import Schedule
from .storage import UnitStorage, to_numpy


@contextmanager
def fully_shard(
    module: nn.Module,
    *,
    topology: Topology | None = None,
    units: Units = blocks,
    strategy: str = "fcdp",
    tau: float = 0.0,
    budget: int | None = None,
    prefetch: int = 1,
    mp_policy: MixedPrecisionPolicy | None = None,
) -> Iterator[Sharded]:
    """Collective. Shard a module in place; it is to have the same values on all ranks, and is of no use after the block.

    units: gives the modules of the model that are gathered as a whole; strategy, tau, budget (bytes), prefetch: see Engine; mp_policy: FSDP2's, where reduce_dtype can only be
    the type of the parameters, in which gradients are always summed. Raises on all ranks SetupError if module or options can't be used or differ between ranks, BudgetError.
    """
    policy = mp_policy or MixedPrecisionPolicy()
    topology = topology or Topology()
    groups: list[Group] = []
    agree(topology.comm, error_of(lambda: groups.extend(_groups(module, units, policy))))
    members = [member for group in groups for member in group.members]
    storages = {member.unit.name: UnitStorage(member, Layout(member.unit.size, topology.nodes, topology.ranks_per_node).padded) for member in members}
    with Engine(topology, [member.unit for member in members], strategy=strategy, tau=tau, budget=budget, prefetch=prefetch, places=storages) as engine:
        for member in members:
            engine.load(member.unit.name, {name: to_numpy(parameter) for name, parameter in member.parameters.items()})
            storages[member.unit.name].hide()
        yield Sharded(module, engine, [member.unit for member in members], Schedule(engine, groups, storages, policy))


class Sharded:
    """What a sharded module can do beside being called. engine: its bytes, memory and strategy; units: what it was divided into."""

    def __init__(self, module: nn.Module, engine: Engine, units: list[Unit], schedule: Schedule) -> None:
        self._module = module
        self.engine = engine
        self.units = units
        self._schedule = schedule
        self._optimizer: SavedOptimizer | None = None
        schedule.guard(module)

    def shard_optimizer(self, factory: Factory) -> Optimizer:
        """An optimizer of this rank's shards, which step() updates on all ranks; one per model.

        factory: gets, by name, what this rank has of each trainable parameter: flat, of any size from 0. It makes any optimizer of torch's kind that treats elements
        alike (SGD, Adam; not those that need a matrix as a whole), with parameter groups as it likes. The optimizer works as ever, with schedulers of its rate, too.
        """
        pieces = pieces_of(self.engine, self.units)
        optimizer = shard_optimizer(self.engine, pieces, factory)
        self._optimizer = SavedOptimizer(optimizer, pieces)
        return optimizer

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Collective. Scale the gradients of a complete step so that their 2-norm over all parameters is at most max_norm; returns the norm before.

        Raises GradientError if it isn't finite, OrderError in the middle of a step.
        """
        return torch.tensor(self.engine.clip_gradients(max_norm))

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Micro-batches inside aren't the last one of a step: their gradients are summed in the node only."""
        before, self.engine.last_micro_batch = self.engine.last_micro_batch, False
        try:
            yield
        finally:
            self.engine.last_micro_batch = before

    def accumulate(self, micro_batches: int) -> Iterator[int]:
        """The numbers of a step's micro-batches: `for number in sharded.accumulate(4)` is three times no_sync() and once not."""
        for number in range(micro_batches):
            if number < micro_batches - 1:
                with self.no_sync():
                    yield number
            else:
                yield number

    def summon_full_params(self) -> AbstractContextManager[None]:
        """Collective, outside of the forward and backward pass. Inside, parameters are whole on every rank, to be read: for state_dict() and the like. Changes are lost."""
        return self._schedule.summoned()

    def save(self, directory: str | os.PathLike[str], *, optimizer: bool = True, trainable: bool = False, extra: Any = None) -> None:
        """Collective, between steps. Write parameters, buffers (rank 0's), the optimizer's state, torch's generator and anything JSON-able; see state.save.

        optimizer: False leaves that out; trainable: leaves frozen parameters out. Raises on all ranks StateError, OrderError within a step.
        """
        generators: Any = {"torch": TorchGenerator()}
        state.save(self.engine, directory, optimizer=self._saved(optimizer), buffers=self._buffers(), generators=generators, extra=extra, trainable=trainable, name_of=_own_name)

    def load(self, directory: str | os.PathLike[str], *, optimizer: bool = True, trainable: bool = False, random: bool = True) -> Any:
        """Collective, between steps. Go on from what save() has written, by any number of ranks, strategy and units; returns its `extra`. See state.load.

        optimizer, trainable: as in save(); random: False leaves torch's generator as it is, which another number of ranks needs if generators weren't all alike.
        Raises on all ranks StateError (not a complete state, or of another model or optimizer), OrderError within a step.
        """
        generators: Any = {"torch": TorchGenerator()} if random else None
        return state.load(self.engine, directory, optimizer=self._saved(optimizer), buffers=self._buffers(), generators=generators, trainable=trainable, name_of=_own_name)

    def _saved(self, wanted: bool) -> SavedOptimizer | None:
        return self._optimizer if wanted else None

    def _buffers(self) -> dict[str, np.ndarray]:
        return {name: to_numpy(buffer) for name, buffer in self._module.named_buffers()}

    def comm_report(self) -> dict[str, dict[str, int]]:
        """Collective. Bytes that the ranks of this node have sent so far, by phase and scope (traffic.py)."""
        return self.engine.report()


def _own_name(unit: Unit, parameter: str) -> str:
    """Parameters have the names that the module gives them, whatever the units."""
    return parameter


def _groups(module: nn.Module, units: Units, policy: MixedPrecisionPolicy) -> list[Group]:
    groups = groups_of(module, units, policy.param_dtype)
    own = {parameter.dtype for parameter in module.parameters() if parameter.requires_grad}
    if policy.reduce_dtype and own - {policy.reduce_dtype}:
        raise SetupError(f"mp_policy asks for gradients in {policy.reduce_dtype}: they are summed in the type of the parameters ({', '.join(sorted(map(str, own)))})")
    return groups
