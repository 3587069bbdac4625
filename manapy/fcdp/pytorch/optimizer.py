"""A torch optimizer over the shards of an engine.

1. It sees parameters one by one, by name, each with the piece that lies in this rank's shard; the pieces share the shard's memory. All ranks have all names, so parameter groups
   and state have the same structure everywhere; a piece may be empty.
2. Gradients are attached for the time of step() alone: zero_grad() takes nothing away. After step() the engine begins a new step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..engine import Engine, Shard
from ..units import Unit


def shard_optimizer(engine: Engine, units: Iterable[Unit], factory: Callable[[dict[str, nn.Parameter]], Optimizer]) -> Optimizer:
    """The factory's optimizer, made to work on the engine's shards of units."""
    by_name = {unit.name: unit for unit in units}
    pieces = {name: (piece, gradient) for shard in engine.shards for name, piece, gradient in _pieces(by_name[shard.unit], shard)}
    optimizer = factory({name: piece for name, (piece, _) in pieces.items()})

    def attach(*_: Any) -> None:
        engine.check_complete()
        for piece, gradient in pieces.values():
            piece.grad = gradient

    def updated(*_: Any) -> None:
        for piece, _gradient in pieces.values():
            piece.grad = None
        engine.updated()

    optimizer.register_step_pre_hook(attach)
    optimizer.register_step_post_hook(updated)
    return optimizer


def _pieces(unit: Unit, shard: Shard) -> list[tuple[str, nn.Parameter, torch.Tensor]]:
    """Of each parameter of the unit: its name, and what the shard has of it, values and gradient, flat."""
    pieces = []
    values, gradient = torch.from_numpy(shard.values), torch.from_numpy(shard.gradient)
    begin = -shard.start
    for name, shape in unit.parameters:
        end = begin + prod(shape)
        low, high = (min(max(position, 0), len(values)) for position in (begin, end))
        pieces.append((name, nn.Parameter(values[low:high]), gradient[low:high]))
        begin = end
    return pieces
