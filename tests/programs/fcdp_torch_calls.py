"""manapy.fcdp.pytorch call by call, on 2 emulated nodes of 2 ranks: what is where at which time, and calls that can't be."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from manapy.fcdp import Topology
from manapy.fcdp.errors import OrderError, SetupError, StateError
from manapy.fcdp.pytorch import fully_shard

WIDTH, RANKS_PER_NODE = 8, 2
topology = Topology(ranks_per_node=RANKS_PER_NODE)
torch.set_num_threads(1)


def layers(count: int = 4) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(count)))


def examples() -> torch.Tensor:
    torch.manual_seed(topology.rank)
    return torch.randn(5, WIDTH)


def is_there(layer: nn.Module) -> bool:
    return not torch.isnan(layer.weight).any()


def sgd(shards: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(shards.values(), lr=0.1)


def each_layer_is_there_for_its_own_passes() -> None:
    model, whole = layers(), layers()
    present: list[list[int]] = []

    def note(*_: object) -> None:
        present.append([number for number, layer in enumerate(model) if is_there(layer)])

    storages: list[torch.UntypedStorage] = []

    def note_both(layer: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        note()
        storages.append(layer.weight.untyped_storage())
        if inputs[0].requires_grad:  # when it has its gradient, this layer is done and the one before is next
            inputs[0].register_hook(note)

    for layer in model:
        layer.register_forward_hook(note_both)
    with fully_shard(model, topology=topology) as sharded:
        optimizer = sharded.shard_optimizer(sgd)
        stays = sharded.engine.arena.used
        for _ in range(2):
            present.clear()
            loss = model(examples()).square().sum()
            assert [storage.nbytes() for storage in storages] == [0] * len(storages)  # what autograd has saved keeps no memory
            loss.backward()
            assert present == [[0], [1], [2], [3], [2], [1], [0]], present
            assert sharded.engine.arena.used == stays
            assert sharded.engine.arena.peak <= stays + 3 * (WIDTH + 1) * WIDTH * 4  # of 4 layers: one, its gradient, and that of another on its way
            assert all(parameter.grad is None for parameter in model.parameters())
            optimizer.step()
        present.clear()
        with torch.inference_mode():
            outputs = model(examples())
        assert present == [[0], [1], [2], [3]] and sharded.engine.arena.used == stays
        with pytest.raises(OrderError, match="take state_dict"):
            model.state_dict()
        with sharded.summon_full_params():
            whole.load_state_dict(model.state_dict())
            assert (model(examples()) == outputs).all()
            with pytest.raises(OrderError, match="once at a time"), sharded.summon_full_params():
                pass
        assert (whole(examples()) == outputs).all()
        assert sharded.engine.arena.used == stays and not any(map(is_there, model))
    with pytest.raises(OrderError, match="inside `with engine:`"):
        model(examples())


def steps_end_when_they_should() -> None:
    model = layers()
    with fully_shard(model, topology=topology) as sharded:
        optimizer = sharded.shard_optimizer(sgd)
        with pytest.raises(OrderError, match="gradients aren't complete"):
            optimizer.step()
        with sharded.no_sync():
            model(examples()).sum().backward()
        with pytest.raises(OrderError, match="gradients aren't complete"):
            sharded.clip_grad_norm_(1)
        for number in sharded.accumulate(2):
            assert sharded.engine.last_micro_batch == (number == 1)
            model(examples()).sum().backward()
        assert sharded.clip_grad_norm_(1) > 1
        assert sharded.clip_grad_norm_(1).item() == pytest.approx(1)
        with pytest.raises(OrderError, match="optimizer.step\\(\\) comes next"):
            model(examples()).sum().backward()


def a_frozen_layer_with_frozen_ones_below_is_gathered_once() -> None:
    """In the backward pass layers 2 and 3 are needed, and the frozen one between trainable ones."""
    model = layers()
    for number in (0, 2):
        model[number].requires_grad_(False)
    with fully_shard(model, topology=topology) as sharded:
        before = sharded.comm_report()
        model(examples()).sum().backward()
        report = sharded.comm_report()
    nbytes = (WIDTH + 1) * WIDTH * 4
    for phase, layers_gathered in (("forward", 4), ("backward", 3)):
        sent = report[phase]["intra"] - before[phase]["intra"]
        assert sent == layers_gathered * nbytes * (RANKS_PER_NODE - 1), (phase, sent)


class Twice(nn.Module):
    """One layer, half of it frozen, used twice in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again = layers(2)
        self.again.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(self.again(self.first(x)).tanh())


class Marker(torch.autograd.Function):
    """Does nothing. Its graph keeps an object alive."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, what: object) -> torch.Tensor:
        ctx.what = what
        return x.clone()

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor, None]:
        return slope, None


def nothing_keeps_a_graph_alive() -> None:
    """Neither after a backward pass nor without one, with frozen parameters and inputs that have gradients."""
    model = layers().requires_grad_(False)
    model[1].bias.requires_grad_(True)
    with fully_shard(model, topology=topology) as sharded:
        for backward in (False, True):
            what = set[int]()
            alive = weakref.ref(what)
            x = Marker.apply(examples().requires_grad_(), what)
            outputs = model(x)
            del what, x
            assert alive() is not None
            if backward:
                outputs.sum().backward()
            del outputs
            assert alive() is None
        sharded.clip_grad_norm_(1)


def a_layer_used_twice_is_there_both_times() -> None:
    model, whole = Twice(), Twice()
    everything = torch.cat([torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(rank)) for rank in range(topology.size)])
    whole(everything).square().sum().backward()
    sums = torch.cat([parameter.grad.flatten() for parameter in whole.parameters() if parameter.grad is not None])
    with fully_shard(model, topology=topology, units=lambda root: root.children()) as sharded:
        model(everything.chunk(topology.size)[topology.rank]).square().sum().backward()
        norm = sharded.clip_grad_norm_(1e9)
    assert norm.item() * topology.size == pytest.approx(sums.norm().item(), rel=1e-5)


def states_have_generators_and_know_their_optimizer() -> None:
    with tempfile.TemporaryDirectory() as mine:
        directory = Path(topology.comm.bcast(mine)) / "state"
        with fully_shard(layers(), topology=topology) as sharded:
            torch.manual_seed(100 + topology.rank)
            with pytest.raises(OrderError, match="a step has begun"), sharded.summon_full_params():
                sharded.save(directory)
            sharded.shard_optimizer(sgd)
            sharded.save(directory, extra="what")
            numbers = torch.rand(3)
            assert sharded.load(directory) == "what"
            assert (torch.rand(3) == numbers).all()
            assert sharded.load(directory, random=False) == "what"
            assert (torch.rand(3) != numbers).any()
        with fully_shard(layers(), topology=topology) as sharded:
            sharded.shard_optimizer(lambda shards: torch.optim.Adam(shards.values()))
            with pytest.raises(StateError, match="is one of SGD with 1 parameter groups, the optimizer is Adam with 1"):
                sharded.load(directory)
            sharded.load(directory, optimizer=False)
        with fully_shard(layers(3), topology=topology) as sharded, pytest.raises(StateError, match="3.weight"):
            sharded.load(directory, optimizer=False)
        topology.comm.Barrier()


def what_cannot_be_sharded() -> None:
    def frozen() -> nn.Module:
        return layers().requires_grad_(topology.rank != 3)

    refusals: list[tuple[Callable[[], nn.Module], dict[str, object], str]] = [
        (lambda: layers().to(torch.bfloat16), {}, "parameter 0.weight is bfloat16 and trainable"),
        (layers, {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16)}, "asks for gradients in torch.bfloat16"),
        (layers, {"strategy": "ddp"}, "unknown strategy 'ddp'"),
        (nn.Tanh, {}, "there are no units"),
        (frozen, {}, "unit '0, frozen' here, '0' there"),
    ]
    for make, options, text in refusals:
        with pytest.raises(SetupError, match=text), fully_shard(make(), topology=topology, **options):  # type: ignore[arg-type]
            pass


each_layer_is_there_for_its_own_passes()
steps_end_when_they_should()
a_frozen_layer_with_frozen_ones_below_is_gathered_once()
a_layer_used_twice_is_there_both_times()
nothing_keeps_a_graph_alive()
states_have_generators_and_know_their_optimizer()
what_cannot_be_sharded()
if topology.rank == 0:
    print("ok", flush=True)
