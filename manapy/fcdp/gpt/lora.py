"""Low-rank adapters ("LoRA", Hu et al., arXiv 2106.09685): a model is frozen, and beside chosen layers two small
matrices are trained. Plain PyTorch, for any model.

PEFT's adapters work on sharded modules as well; these need no package.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

SCALE = 2.0  # of what an adapter adds: alpha / r of the paper, with alpha twice the rank


class Adapted(nn.Module):
    """base(x) + SCALE x Aᵀ Bᵀ: A is (rank, inputs), B is (outputs, rank) and zero at first, so that training begins
    where the base is."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.empty(rank, base.in_features, dtype=base.weight.dtype))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, dtype=base.weight.dtype))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))  # as nn.Linear's own weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., inputs) to (..., outputs)."""
        return self.base(x) + SCALE * (x @ self.down.T @ self.up.T)


def add_adapters(model: nn.Module, rank: int, chosen: Callable[[str], bool]) -> None:
    """Freeze the model, and put adapters beside those linear layers whose path is chosen. In place."""
    model.requires_grad_(False)
    for path, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and chosen(path):
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, Adapted(layer, rank))
