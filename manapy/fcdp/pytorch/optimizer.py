"""torch optimizers over the shards of an engine.

1. Optimizers get parameters one by one, by name, each as the piece in this rank's shard; the pieces share the shard's
   memory. All ranks have all names, so that parameter groups and state have the same structure everywhere. A piece may
   be empty.
2. A piece is the same tensor object for good: when units are divided again (division.py), other elements come into it,
   and what optimizers keep for it moves along.
3. Gradients are attached for the time of step() alone: zero_grad() takes nothing away. Frozen parameters have none, so
   torch's optimizers pass over them.
4. After the step() of the last optimizer the engine begins a new step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..engine.engine import Engine
from ..errors import OrderError, SetupError
from ..state.state_index import Span, spans
from .storage import to_tensor

Factory = Callable[[dict[str, nn.Parameter]], Optimizer]


@dataclass(eq=False)
class Piece:
    """The part of one parameter in this rank's part of a unit. values and gradient (None if frozen) are flat, and are
    the part's own memory. size: of the part; span: None if this rank has nothing of the parameter."""

    name: str
    values: nn.Parameter
    unit: str
    size: int
    span: Span | None
    gradient: torch.Tensor | None

    def of(self, flat: np.ndarray) -> np.ndarray:
        """The same elements of an array as large as the part: no copy."""
        return self.span.of(flat) if self.span else flat[:0]


class Pieces:
    """All of this rank's, by name, in the order of units and of parameters in them, and their optimizers."""

    def __init__(self, engine: Engine) -> None:
        self.optimizers: list[Optimizer] = []
        self._stepped: list[Optimizer] = []
        self._stepping: Optimizer | None = None  # is in step(), or has raised there
        self._of: dict[str, Piece] = {}
        self.place(engine)

    def __iter__(self) -> Any:
        return iter(self._of.values())

    def __getitem__(self, name: str) -> Piece:
        return self._of[name]

    def place(self, engine: Engine) -> None:
        """Place the pieces in the engine's parts. This does not change what optimizers keep for them."""
        self._engine = engine
        gradients = {shard.unit: shard.gradient for shard in engine.shards}
        before, self._of = self._of, {}
        for part in engine.parts():
            found = {span.parameter: span for span in spans(part.unit, part.start, part.start + part.values.size)}
            for name, _ in part.unit.parameters:
                span = found.get(name)
                values, gradient = (_elements(flat, span) for flat in (part.values, gradients.get(part.unit.name)))
                if name in before:
                    before[name].values.data = values
                    values = before[name].values.requires_grad_(part.unit.trainable)
                else:
                    values = nn.Parameter(values, requires_grad=part.unit.trainable)
                self._of[name] = Piece(name, values, part.unit.name, part.values.size, span, gradient)

    def add(self, factory: Factory) -> Optimizer:
        """The factory's optimizer, made to work on the engine's shards. Raises SetupError if it has a parameter that
        isn't one of the pieces, or is another optimizer's, or treats parameters as a whole.
        """
        optimizer = factory({piece.name: piece.values for piece in self})
        taken = {id(values) for other in self.optimizers for values in parameters_of(other)}
        names = {id(piece.values): piece.name for piece in self}
        for values in parameters_of(optimizer):
            if id(values) not in names:
                raise SetupError("the optimizer must use the parameters that the factory receives")
            if id(values) in taken:
                raise SetupError(f"parameter {names[id(values)]} has an optimizer already")
        _check_elementwise(optimizer)
        optimizer.register_step_pre_hook(self._attach)
        optimizer.register_step_post_hook(self._detach)
        self.optimizers.append(optimizer)
        return optimizer

    def check(self) -> None:
        """Raise OrderError if some optimizers have stepped and others not, or one has raised: caches wouldn't know that
        they are out of date."""
        if self._stepping is not None:
            raise OrderError(
                f"{type(self._stepping).__name__}.step() has raised an exception, and values may be partly changed: "
                "end the step with discard() on all ranks"
            )
        if self._stepped:
            raise OrderError(
                f"{len(self._stepped)} of {len(self.optimizers)} optimizers have stepped: call step() of each, or end "
                "the step with discard()"
            )

    def end_step(self) -> None:
        """Without those that haven't stepped."""
        if self._stepped or self._stepping is not None:
            if self._stepping is not None:
                self._without_gradients(self._stepping)
            self._stepping = None
            self._stepped.clear()
            self._engine.updated()

    def _attach(self, optimizer: Optimizer, *_: Any) -> None:
        if not self._engine.is_complete:
            raise OrderError(
                "gradients are incomplete: call step() after the step's last backward(), outside no_sync(), and "
                "without a closure that calls backward()"
            )
        if self._stepping is not None:
            self.check()
        if optimizer in self._stepped:
            raise OrderError(f"{type(optimizer).__name__} has stepped already, but other optimizers have not")
        self._stepping = optimizer
        gradients = {id(piece.values): piece.gradient for piece in self}
        for values in parameters_of(optimizer):
            values.grad = gradients[id(values)]

    def _detach(self, optimizer: Optimizer, *_: Any) -> None:
        self._without_gradients(optimizer)
        self._stepping = None
        self._stepped.append(optimizer)
        if len(self._stepped) == len(self.optimizers):
            self.end_step()

    @staticmethod
    def _without_gradients(optimizer: Optimizer) -> None:
        for values in parameters_of(optimizer):
            values.grad = None


def _elements(flat: np.ndarray | None, span: Span | None) -> torch.Tensor | None:
    return None if flat is None else to_tensor(span.of(flat) if span else flat[:0])


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """Return the parameters in the order in which PyTorch numbers them."""
    return [values for group in optimizer.param_groups for values in group["params"]]


@contextmanager
def refused(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Inside this context, optimizers with these parameters raise an error in step().

    A sharded module's own parameters get no gradients, so that a step would silently do nothing.
    """
    ours = {id(parameter) for parameter in parameters}

    def check(optimizer: Optimizer, *_: Any) -> None:
        if not ours.isdisjoint(map(id, parameters_of(optimizer))):
            kind = type(optimizer).__name__
            raise OrderError(
                f"this {kind} has the sharded module's own parameters, and cannot train them: make it with"
                f" sharded.shard_optimizer(lambda shards: {kind}(shards.values(), ...))"
            )

    handle = register_optimizer_step_pre_hook(check)
    try:
        yield
    finally:
        handle.remove()


def _check_elementwise(optimizer: Optimizer) -> None:
    """Raise SetupError if a vector is treated otherwise than its halves: ranks have pieces of parameters. Tried, with
    other parameters, in each of the optimizer's groups that differs from the others by more than a rate."""

    def after_steps(settings: dict[str, Any], *pieces: torch.Tensor) -> torch.Tensor:
        probe = object.__new__(type(optimizer))
        group = {**settings, "params": [nn.Parameter(piece.clone()) for piece in pieces], "lr": 0.1}
        probe.__dict__ = {**optimizer.__dict__, "state": defaultdict(dict), "param_groups": [group]}
        for slope in (1.0, 5.0, -2.0):
            for values in group["params"]:
                values.grad = slope * values.detach() ** 3
            type(optimizer).step(probe)
        return torch.cat([values.detach() for values in group["params"]])

    vector = torch.linspace(-1, 3, 8)
    kinds = {
        repr([(key, value) for key, value in group.items() if key not in ("params", "param_names", "lr")]): group
        for group in optimizer.param_groups
    }
    error = None
    try:
        for group in kinds.values():
            if not torch.allclose(
                after_steps(group, vector), after_steps(group, *vector.split(4)), rtol=1e-4, atol=1e-4
            ):
                error = "it treats a parameter as a whole"
    except Exception as raised:  # what an optimizer of any kind may raise
        error = f"{type(raised).__name__}: {raised}"
    if error:
        raise SetupError(f"{type(optimizer).__name__} can't work on shards, flat pieces of parameters: {error}")
