"""A torch optimizer over the shards of an engine.

1. It sees parameters one by one, by name, each with the piece that lies in this rank's shard; the pieces share the shard's memory. All ranks have all names, so parameter groups
   and state have the same structure everywhere; a piece may be empty.
2. Gradients are attached for the time of step() alone: zero_grad() takes nothing away. After step() the engine begins a new step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from ..engine import Engine
from ..state_index import Span, spans
from ..units import Unit

Factory = Callable[[dict[str, nn.Parameter]], Optimizer]


@dataclass(frozen=True, eq=False)
class Piece:
    """What this rank's shard of a unit has of one parameter: values and gradient are flat, and the shard's own memory. size: of the shard; span: None if it has nothing."""

    unit: str
    name: str
    size: int
    span: Span | None
    values: nn.Parameter
    gradient: torch.Tensor

    def of(self, flat: np.ndarray) -> np.ndarray:
        """The same elements of an array as large as the shard: no copy."""
        return self.span.of(flat) if self.span else flat[:0]


def pieces_of(engine: Engine, units: Iterable[Unit]) -> list[Piece]:
    """All of this rank's, in the order of units and of parameters in them."""
    by_name = {unit.name: unit for unit in units}
    pieces = []
    for shard in engine.shards:
        unit = by_name[shard.unit]
        found = {span.parameter: span for span in spans(unit, shard.start, shard.start + shard.values.size)}
        for name, _ in unit.parameters:
            span = found.get(name)
            values, gradient = (torch.from_numpy(span.of(flat) if span else flat[:0]) for flat in (shard.values, shard.gradient))
            pieces.append(Piece(unit.name, name, shard.values.size, span, nn.Parameter(values), gradient))
    return pieces


def shard_optimizer(engine: Engine, pieces: Iterable[Piece], factory: Factory) -> Optimizer:
    """The factory's optimizer, made to work on the engine's shards."""
    optimizer = factory({piece.name: piece.values for piece in pieces})

    def attach(*_: Any) -> None:
        engine.check_complete()
        for piece in pieces:
            piece.values.grad = piece.gradient

    def updated(*_: Any) -> None:
        for piece in pieces:
            piece.values.grad = None
        engine.updated()

    optimizer.register_step_pre_hook(attach)
    optimizer.register_step_post_hook(updated)
    return optimizer
