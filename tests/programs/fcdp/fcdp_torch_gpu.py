"""manapy.fcdp.pytorch on a GPU whose computation is made slow, or whose copies are, on 2 ranks that share it.

Any number of units gathered ahead, and any way to copy, must give the same values bit for bit: a copy that begins too
early, or a computation that doesn't wait for one, would mix units up.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # deterministic

import torch
from torch import nn

from manapy.fcdp import Topology
from manapy.fcdp.pytorch import fully_shard
from manapy.fcdp.pytorch.device import Cuda

WIDTH, LAYERS, STEPS = 1024, 10, 3
LAYER = 4 * WIDTH * (WIDTH + 1)  # bytes
CYCLES = 4_000_000  # some 2 ms
topology = Topology()
torch.use_deterministic_algorithms(True)
said: list[str] = []


class Slow(Cuda):
    """Each copy takes longer than a layer's computation."""

    def _copy(self, stream: Any, target: torch.Tensor, source: torch.Tensor) -> Any:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(CYCLES)
        return super()._copy(stream, target, source)


class Buffered(Cuda):
    """Copies are made over staging buffers."""

    def lock(self, memory: Any) -> str | None:
        return "as a test"


def model_of() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def batch(step: int) -> torch.Tensor:
    return torch.randn(topology.size, 32, WIDTH, generator=torch.Generator().manual_seed(step)).cuda()


def train(make: Callable[[], Cuda], slow_computation: bool, prefetch: int, **options: Any) -> dict[str, Any]:
    """The losses, whole parameters, and the most memory of the GPU, in bytes."""
    model = model_of()
    if slow_computation:
        for layer in model:
            layer.register_forward_pre_hook(lambda *_: torch.cuda._sleep(CYCLES))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    losses = []
    with fully_shard(model, topology=topology, device=make(), prefetch=prefetch, **options) as sharded:
        optimizer = sharded.shard_optimizer(lambda shards: torch.optim.AdamW(shards.values(), lr=1e-3))
        for step in range(STEPS):
            for micro_batch in sharded.accumulate(2):
                loss = model(batch(2 * step + micro_batch)[topology.rank]).square().mean()
                loss.backward()
                losses.append(loss)  # not looked at before the end: nothing waits for the GPU
            optimizer.step()
        most = torch.cuda.max_memory_allocated() - before
        with sharded.summon_full_params():
            values = {name: value.cpu() for name, value in model.state_dict().items()}
    return {"losses": [loss.item() for loss in losses], "values": values, "most": most}


def reference() -> dict[str, torch.Tensor]:
    """The whole model on the GPU, without manapy."""
    model = model_of().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        for micro_batch in range(2):
            model(batch(2 * step + micro_batch).flatten(0, 1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.cpu() for name, value in model.state_dict().items()}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one["losses"] == other["losses"] and all(
        torch.equal(value, other["values"][name]) for name, value in one["values"].items()
    )


handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
logging.getLogger("manapy").addHandler(handler)
first = train(Cuda, False, 0)
assert not said, said  # the node's window is page-locked
expected = reference()
for name, value in first["values"].items():
    # Adam's steps have full size even where a gradient is only rounding
    assert torch.allclose(value, expected[name], rtol=1e-3, atol=2e-3 * STEPS), name
    assert (value - expected[name]).abs().mean() < 1e-5, name
for strategy in ("fcdp", "zero3"):
    for make in (Cuda, Slow, Buffered):
        for slow_computation in (False, True):
            for prefetch in (0, 1, 4):
                found = train(make, slow_computation, prefetch, strategy=strategy)
                what = strategy, make.__name__, slow_computation, prefetch
                assert same(found, first), what
                # units in use and gathered ahead; gradients of a layer twice; activations are small
                assert found["most"] < (2 + prefetch + 3) * LAYER, (*what, found["most"] / LAYER)
with torch.cuda.stream(torch.cuda.Stream()) if topology.rank == 0 else nullcontext():  # a stream of the program's
    assert same(train(Slow, True, 2), first)
if topology.rank == 0:
    print("ok", flush=True)
