"""A small GPT over bytes, as in "Language Models are Unsupervised Multitask Learners" (Radford et al., 2019):
normalisation before each layer, learned positions, and an output layer whose weight is the embedding's. Plain PyTorch:
nothing here knows of sharding.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

TOKENS = 256  # a byte each


class Block(nn.Module):
    """Attention to what came before, then a perceptron for each token."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(hidden)
        self.attention = nn.Linear(hidden, 3 * hidden)
        self.projection = nn.Linear(hidden, hidden)
        self.norm_2 = nn.LayerNorm(hidden)
        self.expansion = nn.Linear(hidden, 4 * hidden)
        self.contraction = nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(sequences, tokens, hidden) to the same."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.attention(self.norm_1(x)).chunk(3, -1)
        )
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(seen.transpose(1, 2).flatten(2))
        return x + self.contraction(gelu(self.expansion(self.norm_2(x))))


class GPT(nn.Module):
    """Predicts each next byte."""

    def __init__(self, layers: int, hidden: int, heads: int, context: int) -> None:
        """hidden: a multiple of heads. context: the most tokens of a sequence."""
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, hidden)
        self.positions = nn.Embedding(context, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, TOKENS, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(_initialise)
        for block in self.blocks:  # what is added to the stream grows with the number of layers
            for layer in (block.projection, block.contraction):
                nn.init.normal_(layer.weight, std=0.02 / math.sqrt(2 * layers))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(sequences, tokens) of integers to (sequences, tokens, TOKENS): logarithms of probabilities, except for a
        constant."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
