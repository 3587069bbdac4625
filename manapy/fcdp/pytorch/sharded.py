"""fully_shard: a module whose parameters, gradients and optimizer state are sharded over all ranks.

    with fully_shard(model, strategy="fcdp") as sharded:
        optimizer = sharded.shard_optimizer(lambda shards: torch.optim.AdamW(shards.values(), lr=1e-3))
        for batch in batches:
            loss(model(batch)).backward()
            sharded.clip_grad_norm_(1.0)
            optimizer.step()

1. The program uses its module as before: it calls it, switches it to eval mode and inspects it. Parameters keep their
   names and shapes.
2. A step ends with backward(), or with the last one of no_sync() or accumulate(): then gradients are complete, and
   optimizer.step() comes next.
3. Gradients are means over ranks and sums over micro-batches, as in torch's own data parallelism: the program divides
   its loss by the number of micro-batches.
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

from ..engine.collective_errors import agree
from ..engine.engine import Engine
from ..engine.topology import Topology
from ..engine.units import Unit
from ..errors import OrderError, SetupError
from ..state import save_load
from .device import Device
from .division import Division
from .grouping import Units, blocks
from .meta import Values
from .optimizer import Factory, refused
from .saving import SavedOptimizers, TorchGenerator
from .unit_hooks import UnitHooks, is_sharded
from .storage import to_numpy, to_tensor


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
    values: Values | None = None,
    device: str | Device = "cpu",
) -> AbstractContextManager[Sharded]:
    """Shard a module in place. Collective when entered. The module must have the same values on all ranks, and cannot
    be used after the block.

    units: gives the modules of the model that are gathered as a whole; strategy, tau, budget (bytes), prefetch: see
    Engine; mp_policy: FSDP2's, where reduce_dtype can only be the type of the parameters, in which gradients are always
    summed. values: for a model on the meta device, called on rank 0 for each parameter and buffer there, by name, one
    unit at a time; without it they are to be loaded. device: cpu, or cuda for torch's current GPU: units are gathered
    and computed there, shards stay on the host (device.py), and its free memory is the budget unless one is given.
    Raises on all ranks SetupError if module or options can't be used or differ between ranks, BudgetError.
    """
    policy = mp_policy or MixedPrecisionPolicy()
    options = {"strategy": strategy, "tau": tau, "budget": budget, "prefetch": prefetch}

    @contextmanager
    def block() -> Iterator[Sharded]:
        ranks = topology or Topology()
        agree(
            ranks.comm,
            SetupError("the module, or a part of it, is sharded already: call fully_shard once, for the whole model")
            if is_sharded(module)
            else None,
        )
        with Division(module, ranks, units, policy, device, options) as division, refused(module.parameters()):
            division.fill(values)
            yield Sharded(division, UnitHooks(division, policy))
        if topology is None:
            ranks.close()

    return _Block(module, block())


class _Block(AbstractContextManager["Sharded"]):
    """The result of fully_shard. A module that is called without being entered raises an error, as each rank would
    train alone.
    """

    def __init__(self, module: nn.Module, block: AbstractContextManager[Sharded]) -> None:
        self._block = block
        self._unentered = module.register_forward_pre_hook(_refuse)

    def __enter__(self) -> Sharded:
        self._unentered.remove()
        return self._block.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._block.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"fully_shard has no '{name}': {ENTERED}")


ENTERED = "enter it once for the whole model: `with fully_shard(model) as sharded:`"


def _refuse(*_: Any) -> None:
    raise OrderError(f"fully_shard of this module was called but not entered: {ENTERED}")


class Sharded:
    """The functions of a sharded module."""

    def __init__(self, division: Division, hooks: UnitHooks) -> None:
        self._division = division
        self._hooks = hooks
        hooks.guard(division.module)

    @property
    def engine(self) -> Engine:
        """Its bytes, memory and strategy. Another one after requires_grad has changed."""
        return self._division.engine

    @property
    def module(self) -> nn.Module:
        """The program's."""
        return self._division.module

    @property
    def units(self) -> list[Unit]:
        """The units into which the module is divided."""
        return self._division.units

    def shard_optimizer(self, factory: Factory) -> Optimizer:
        """Make an optimizer of this rank's shards; step() updates them on all ranks. There may be several optimizers,
        of different parameters; then each steps once per step.

        factory: receives this rank's piece of each parameter, by name: flat, of any size from 0. Frozen ones do not
        require gradients, and are skipped until they do. It returns any optimizer of torch that treats elements
        independently (SGD, Adam; not optimizers that need a whole matrix), with any parameter groups. The optimizer
        works as usual, also with schedulers. Raises SetupError if a parameter already has an optimizer.
        """
        self._hooks.prepare()
        return self._division.pieces.add(factory)

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Collective. Scale the gradients of a complete step so that their 2-norm over all parameters is at most
        max_norm; returns the norm before.

        Raises GradientError if it isn't finite, OrderError in the middle of a step.
        """
        return torch.tensor(self.engine.clip_gradients(max_norm))

    def discard(self) -> None:
        """Collective. End the step without an update, and drop its gradients. Needed after a backward pass that has
        raised an exception; also possible for an unwanted one.
        """
        self._hooks.discard()

    def invalidate(self) -> None:
        """Collective, between steps. Call this after the program has changed the tensors that optimizer factories
        received (for example for an average of weights): gathered copies are then out of date.
        """
        self._hooks.prepare()
        for part in self.engine.parts():
            self.engine.load_part(part, part.values)

    def set_prefetch(self, units: int) -> None:
        """Collective, between passes. How many units are gathered ahead of the one in use, from now on. Raises on all
        ranks SetupError if it is negative or not the same."""
        self._division.set_prefetch(units)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, micro-batches are not the last one of a step: their gradients are summed only in the node."""
        before, self.engine.last_micro_batch = self.engine.last_micro_batch, False
        try:
            yield
        finally:
            self.engine.last_micro_batch = before

    def accumulate(self, micro_batches: int) -> Iterator[int]:
        """The numbers of a step's micro-batches: `for number in sharded.accumulate(4)` is three times no_sync() and
        once not."""
        for number in range(micro_batches):
            if number < micro_batches - 1:
                with self.no_sync():
                    yield number
            else:
                yield number

    def summon_full_params(self, writeback: bool = False) -> AbstractContextManager[None]:
        """Collective, outside of the forward and backward pass. Inside, parameters are whole on every rank, to be read:
        for state_dict() and the like. state_dict() makes copies; other tensors that share a parameter's memory must not
        be read afterwards.

        writeback: between steps; what has been changed inside, in the same way on all ranks, is kept. Otherwise changes
        are lost. Raises SetupError if ranks differ, if a parameter has another shape or type at the end, or another one
        is in its place; BudgetError if not all of them fit on the device.
        """
        return self._hooks.summoned(writeback)

    def save(
        self, directory: str | os.PathLike[str], *, optimizer: bool = True, trainable: bool = False, extra: Any = None
    ) -> None:
        """Collective, between steps. Write parameters, buffers (rank 0's), the optimizer's state, torch's generator and
        anything JSON-able; see state.save.

        optimizer: False leaves that out; trainable: leaves frozen parameters out. Raises on all ranks StateError,
        OrderError within a step.
        """
        self._hooks.prepare()
        self._division.check_values()
        generators: Any = {"torch": TorchGenerator()}
        save_load.save(
            self.engine,
            directory,
            optimizer=self._saved(optimizer, trainable),
            buffers=self._buffers(),
            generators=generators,
            extra=extra,
            trainable=trainable,
            name_of=_own_name,
        )

    def load(
        self,
        directory: str | os.PathLike[str],
        *,
        optimizer: bool = True,
        trainable: bool = False,
        local_weights: bool = False,
        random: bool = True,
    ) -> Any:
        """Collective, between steps. Go on from what save() has written, by any number of ranks, strategy and units;
        returns its `extra`. See state.load.

        optimizer, trainable: as in save(); local_weights: every node reads frozen parameters by itself, from its own
        disk if it likes, and they never cross the network; random: False leaves torch's generator as it is, which
        another number of ranks needs if generators weren't all alike. Raises on all ranks StateError (not a complete
        state, or of another model or optimizer), SetupError if nodes have different weights, OrderError within a step.
        """
        self._hooks.prepare()
        generators: Any = {"torch": TorchGenerator()} if random else None
        buffers = self._buffers()
        options: Any = {"trainable": trainable, "local_weights": local_weights, "name_of": _own_name}
        extra = save_load.load(
            self.engine,
            directory,
            optimizer=self._saved(optimizer, trainable),
            buffers=buffers,
            generators=generators,
            **options,
        )
        for name, buffer in self._division.module.named_buffers():
            buffer.copy_(to_tensor(buffers[name]))
        self._division.have_values(trainable, buffers)
        return extra

    def load_file(self, file: str | os.PathLike[str], *, trainable: bool = False, local_weights: bool = False) -> None:
        """Collective, between steps. Set parameters to those of one file of safetensors, with the names that they have
        here; see state.load_file. Options and errors as in load()."""
        self._hooks.prepare()
        save_load.load_file(self.engine, file, trainable=trainable, local_weights=local_weights, name_of=_own_name)
        self._division.have_values(trainable)

    def export(self, file: str | os.PathLike[str], *, trainable: bool = False) -> None:
        """Collective, between steps. Write one file of safetensors with whole parameters, for other tools; see
        state.export."""
        self._hooks.prepare()
        self._division.check_values()
        save_load.export(self.engine, file, trainable=trainable, name_of=_own_name)

    def _saved(self, wanted: bool, trainable: bool) -> SavedOptimizers | None:
        pieces = self._division.pieces
        return SavedOptimizers(pieces, trainable) if wanted and pieces.optimizers else None

    def _buffers(self) -> dict[str, np.ndarray]:
        return {name: to_numpy(buffer) for name, buffer in self._division.module.named_buffers()}

    def comm_report(self) -> dict[str, dict[str, int]]:
        """Collective. Bytes that the ranks of this node have sent so far, by phase and scope: {"forward": {"inter":
        ..., "intra": ...}, ...}.

        Phases: forward and backward (parameters for these passes), reduce (gradients), control (norms, checksums, this
        report), state (what the program looks at or moves between steps). Scopes: inter, between nodes; intra, within
        one, by messages or through memory that ranks share. See traffic.py.
        """
        return self.engine.report()


def _own_name(unit: Unit, parameter: str) -> str:
    """Parameters have the names that the module gives them, whatever the units."""
    return parameter
