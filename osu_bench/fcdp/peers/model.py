"""The model: a decoder like GPT-2 with an output layer of its own. All of it, or adapters of low rank (LoRA), learn to
predict a few random sentences."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from manapy.fcdp.gpt.lora import add_adapters
from manapy.fcdp.gpt.model import Block

SEED = 7


class Decoder(nn.Module):
    """tokens (batch, length) to logits (batch, length, words)."""

    def __init__(self, layers: int, width: int, heads: int, words: int, length: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Sizes."""
    add = parser.add_argument
    add("--layers", type=int, default=4)
    add("--hidden", type=int, default=512)
    add("--words", type=int, default=2048, help="in the vocabulary")
    add("--length", type=int, default=64, help="of a sentence, in words")
    add("--batch", type=int, default=2, help="sentences for a rank in a micro-batch")
    add("--micro-batches", type=int, default=1, help="of a step")
    add("--lora", type=int, default=0, metavar="RANK", help="train adapters only")


def build(options: argparse.Namespace) -> Decoder:
    """The model, with the same values in every process."""
    torch.manual_seed(SEED)
    model = Decoder(options.layers, options.hidden, max(1, options.hidden // 64), options.words, options.length)
    if options.lora:
        add_adapters(model, options.lora, lambda path: path.endswith((".attention", ".projection")))
    return model


def sentences(options: argparse.Namespace, ranks: int) -> torch.Tensor:
    """(micro-batches, ranks, batch, length + 1). Every step uses the same sentences, so the loss falls, and shows if an
    update is wrong."""
    shape = (options.micro_batches, ranks, options.batch, options.length + 1)
    return torch.randint(options.words, shape, generator=torch.Generator().manual_seed(SEED))


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """(sentences, length + 1): each word predicts the next one."""
    return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
