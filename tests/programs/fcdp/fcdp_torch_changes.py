"""manapy.fcdp.pytorch when something changes: which parameters are trained, whole values, optimizers; and passes that
fail. On 2 emulated nodes of 2 ranks, compared with one process. The argument is a device (devices.py)."""

from __future__ import annotations

import copy
import logging
import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from manapy.fcdp import Topology
from manapy.fcdp.errors import OrderError, SetupError

sys.path.append(str(Path(__file__).resolve().parent))
from devices import KIND, NAME, fully_shard, normal  # noqa: E402

WIDTH = 9  # doesn't divide evenly
topology = Topology(ranks_per_node=2)
torch.set_num_threads(1)


def layers(seed: int = 3, count: int = 4) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(count)))


def batch(number: int) -> torch.Tensor:
    """The batch of all ranks."""
    return normal(topology.size, 5, WIDTH, seed=number)


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


def adam(shards: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW([shard for name, shard in shards.items() if name.endswith("weight")], lr=0.01)


def sgd(shards: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD([shard for name, shard in shards.items() if name.endswith("bias")], lr=0.1, momentum=0.9)


class Reference:
    """One process, with the same optimizers over all parameters."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model)
        self.optimizers = [make(dict(self.model.named_parameters())) for make in (adam, sgd)]

    def step(self, number: int, micro_batches: int = 1) -> float:
        total = 0.0
        for x in batch(number).chunk(micro_batches, 1):
            loss = loss_of(self.model, x.flatten(0, 1)) / micro_batches
            loss.backward()
            total += loss.item()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return total


class Training:
    """The same, sharded."""

    def __init__(self, model: nn.Module, sharded: Any) -> None:
        self.model, self.sharded = model, sharded
        self.optimizers = [sharded.shard_optimizer(make) for make in (adam, sgd)]

    def step(self, number: int, micro_batches: int = 1) -> float:
        total = 0.0
        parts = batch(number)[topology.rank].chunk(micro_batches)
        for index in self.sharded.accumulate(micro_batches):
            loss = loss_of(self.model, parts[index]) / micro_batches
            loss.backward()
            total += loss.item()
        for optimizer in self.optimizers:
            optimizer.step()
        return topology.comm.allreduce(total) / topology.size


@contextmanager
def both(model: nn.Module, **options: Any) -> Iterator[tuple[Training, Reference]]:
    reference = Reference(model)
    with fully_shard(model, topology=topology, **options) as sharded:
        yield Training(model, sharded), reference


def agree_at(number: int, ours: Training, reference: Reference, micro_batches: int = 1) -> None:
    assert ours.step(number, micro_batches) == pytest.approx(reference.step(number, micro_batches), rel=1e-5), number


def agree_at_the_end(ours: Training, reference: Reference) -> None:
    with ours.sharded.summon_full_params():
        for name, values in reference.model.state_dict().items():
            assert torch.allclose(ours.model.state_dict()[name], values, rtol=1e-4, atol=1e-6), name


@contextmanager
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as mine:
        yield Path(topology.comm.bcast(mine))
        topology.comm.Barrier()


def layers_are_frozen_and_thawed(strategy: str) -> None:
    """Units are divided again, and moments are kept; everything can be saved and loaded."""
    frozen: list[set[str]] = [
        {"0.weight"},
        set(),
        {"1.weight", "1.bias", "2.bias"},
        {"2.bias"},
        {"0.weight", "3.bias"},
        set(),
    ]
    with directory() as place:
        with both(layers(), strategy=strategy) as (ours, reference):
            for number, names in enumerate(frozen):
                for model in (ours.model, reference.model):
                    for name, parameter in model.named_parameters():
                        parameter.requires_grad = name not in names
                if strategy == "zero3":
                    ours.sharded.set_prefetch(number % 3)
                agree_at(number, ours, reference, 1 + number % 2)
                assert {
                    name for unit in ours.sharded.units if not unit.trainable for name, _ in unit.parameters
                } == names
            agree_at_the_end(ours, reference)
            ours.sharded.save(place / "state")
        with fully_shard(layers(seed=4), topology=topology, strategy="zero3") as sharded:
            again = Training(sharded.module, sharded)
            sharded.load(place / "state")
            agree_at(99, again, reference)
            agree_at_the_end(again, reference)


def requires_grad_changes_between_steps_only() -> None:
    with both(layers()) as (ours, reference):
        with ours.sharded.no_sync():
            loss_of(ours.model, batch(0)[topology.rank]).backward()
        ours.model[0].requires_grad_(False)
        with pytest.raises(OrderError, match="within a step"):
            ours.step(0)
        ours.model[0].requires_grad_(True)
        ours.model[topology.rank // 2].requires_grad_(False)
        ours.sharded.discard()
        with pytest.raises(SetupError, match="not the same on all ranks"):
            ours.step(0)
        ours.model.requires_grad_(True)
        agree_at(0, ours, reference)


def every_optimizer_steps_once() -> None:
    with both(layers()) as (ours, reference):
        with pytest.raises(SetupError, match="parameter 0.bias has an optimizer already"):
            ours.sharded.shard_optimizer(sgd)
        x = batch(0)[topology.rank]
        loss_of(ours.model, x).backward()
        ours.optimizers[0].step()
        with pytest.raises(OrderError, match="AdamW has stepped already"):
            ours.optimizers[0].step()
        with pytest.raises(OrderError, match="1 of 2 optimizers have stepped"):
            ours.model(x)
        ours.sharded.discard()  # the other one doesn't
        loss_of(reference.model, batch(0).flatten(0, 1)).backward()
        reference.optimizers[0].step()
        reference.model.zero_grad()
        agree_at(1, ours, reference)


class Fails(torch.autograd.Function):
    """In the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError


def a_pass_that_fails_spoils_nothing(strategy: str) -> None:
    def forward_fails(*_: object) -> None:
        raise ZeroDivisionError

    with both(nn.Sequential(layers(), layers(5)), strategy=strategy) as (ours, reference):
        x = batch(7)[topology.rank]
        stays = ours.sharded.engine.arena.used
        for number, (hook, in_backward) in enumerate(
            ((forward_fails, False), (lambda *arguments: Fails.apply(arguments[-1]), True))
        ):
            handle = ours.model[1][2].register_forward_hook(hook)
            with pytest.raises(ZeroDivisionError):
                loss_of(ours.model, x).backward()
            handle.remove()
            if in_backward:
                for use in (
                    lambda: ours.model(x),
                    ours.sharded.summon_full_params().__enter__,
                    lambda: ours.sharded.save("nowhere"),
                ):
                    with pytest.raises(OrderError, match="discard"):
                        use()
                ours.sharded.discard()
            # the units that are gathered ahead
            assert ours.sharded.engine.arena.used <= stays + (
                0 if (strategy, NAME) == ("fcdp", "cpu") else 3 * WIDTH * (WIDTH + 3) * 4
            )
            agree_at(number, ours, reference, 2)
        agree_at_the_end(ours, reference)


def activations_are_computed_again_by_one_of_the_two_ways() -> None:
    class Recomputing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers()
            self.reentrant = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = checkpoint(lambda x, layer=layer: layer(x).tanh(), x, use_reentrant=self.reentrant)
            return x

    with both(Recomputing()) as (ours, reference):
        with pytest.raises(OrderError, match="use_reentrant=False"):
            loss_of(ours.model, batch(0)[topology.rank].requires_grad_()).backward()
        ours.sharded.discard()
        ours.model.reentrant = reference.model.reentrant = False
        for number in range(2):
            agree_at(number, ours, reference)


def backward_passes_of_all_kinds() -> None:
    """Two passes through one graph are two micro-batches. A pass for the inputs alone is none. Gradients of gradients
    are refused."""
    with both(layers()) as (ours, reference):
        x = batch(0)[topology.rank].requires_grad_()
        (slope,) = torch.autograd.grad(loss_of(ours.model, x), x)
        (expected,) = torch.autograd.grad(loss_of(reference.model, x), x)
        assert torch.allclose(slope, expected)
        with pytest.raises(OrderError, match="gradients are incomplete"):
            ours.optimizers[0].step()
        with pytest.raises(OrderError, match="create_graph"):
            torch.autograd.grad(loss_of(ours.model, x), x, create_graph=True)
        ours.sharded.discard()
        loss = loss_of(ours.model, x)
        with ours.sharded.no_sync():
            loss.backward(retain_graph=True)
        (2 * loss).backward()
        (3 * loss_of(reference.model, batch(0).flatten(0, 1))).backward()
        norm = nn.utils.clip_grad_norm_(reference.model.parameters(), 1e9)
        assert ours.sharded.clip_grad_norm_(1e9).item() == pytest.approx(norm.item(), rel=1e-5)
        with pytest.raises(OrderError, match="are complete: call optimizer.step"):
            loss_of(ours.model, x).backward()


def changed_values_are_kept_where_asked_for() -> None:
    for bf16 in (False, True):
        model = layers()
        if bf16:
            model[1].requires_grad_(False).to(torch.bfloat16)
            model[2].register_forward_pre_hook(lambda _, args: args[0].float())
            model[1].register_forward_pre_hook(lambda _, args: args[0].bfloat16())
        with both(model) as (ours, reference):
            with ours.sharded.summon_full_params(writeback=True), torch.no_grad():
                model[1].weight[2] += 1
            with torch.no_grad():
                reference.model[1].weight[2] += 1
            with ours.sharded.summon_full_params(), torch.no_grad():
                model[2].weight[2] += 1  # lost
            agree_at(0, ours, reference)
            with (
                pytest.raises(SetupError, match="not the same on ranks 0 and 2"),
                ours.sharded.summon_full_params(writeback=True),
                torch.no_grad(),
            ):
                model[3].bias[0] += topology.rank // 2
            with torch.no_grad():
                for values in (
                    shard
                    for optimizer in ours.optimizers
                    for group in optimizer.param_groups
                    for shard in group["params"]
                ):
                    values *= 0.5
                for values in reference.model.parameters():
                    values *= 0.5
            ours.sharded.invalidate()
            agree_at(1, ours, reference)
            with directory() as place:  # including types that numpy does not have
                ours.sharded.save(place / "state")
                agree_at(2, ours, reference)
                ours.sharded.load(place / "state")
                again = Reference(reference.model)
                with ours.sharded.summon_full_params():
                    again.model.load_state_dict(model.state_dict())
                assert ours.step(3) == pytest.approx(again.step(3), rel=1e-5)


def peak() -> int:
    """The largest memory since the last reset, in bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def nobody_holds_all_of_a_model_that_is_built_on_the_meta_device() -> None:
    wide, count = 768, 24  # 54 MiB
    nbytes = count * wide * wide * 4

    class Model(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(*(nn.Linear(wide, wide, bias=False) for _ in range(count)))
            self.register_buffer("scale", torch.full((2,), 3.0))

    def meta() -> nn.Module:
        with torch.device("meta"):
            return Model().requires_grad_(False)

    def value(name: str) -> torch.Tensor:
        assert topology.rank == 0
        return (
            torch.full((2,), 3.0) if name == "scale" else torch.full((wide, wide), (1 + int(name.split(".")[0])) / wide)
        )

    def check(sharded: Any) -> None:
        stays = sharded.engine.arena.used
        with torch.no_grad():
            assert model(torch.full((wide,), 2.0**-40)).log2().sum().item() / wide == pytest.approx(expected)
        assert model.scale.tolist() == [3.0, 3.0] and sharded.engine.arena.used == stays

    expected = -40 + math.log2(math.factorial(count))
    with directory() as place:
        for source in ("values", "state", "file"):
            model = meta()
            Path("/proc/self/clear_refs").write_text("5")
            before = peak()
            with fully_shard(
                model, topology=topology, strategy="zero3", prefetch=0, values=value if source == "values" else None
            ) as sharded:
                if source != "values":
                    for use in (lambda: model(torch.ones(wide)), lambda: sharded.export(place / "none")):
                        with pytest.raises(OrderError, match="was on the meta device and has no values yet"):
                            use()
                if source == "state":
                    sharded.load(place / "state", optimizer=False)
                elif source == "file":
                    sharded.load_file(place / "whole.safetensors")
                    with pytest.raises(OrderError, match="scale was on the meta"):
                        check(sharded)
                    model.scale.fill_(3)
                check(sharded)
                grown = peak() - before
                assert sharded.engine.arena.peak < nbytes / 2
                # a rank that had held all would need another quarter; loading takes a quarter twice, and maps the
                # quarter in the rank's file (for a plain file the size is unknown)
                assert source == "file" or grown < nbytes, (source, grown)
                if source == "values":
                    sharded.save(place / "state")
                    sharded.export(place / "whole.safetensors")


class Refusing(KIND):
    """Can't copy from the node's window itself."""

    def lock(self, memory: Any) -> str | None:
        return "out of memory" if topology.rank != 2 else None


@contextmanager
def one_rank_says(text: str) -> Iterator[None]:
    """The message is one line."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("manapy").addHandler(handler)
    yield
    logging.getLogger("manapy").removeHandler(handler)
    assert [text in line and "\n" not in line for line in said] == ([True] if topology.rank == 0 else [])


with (
    one_rank_says("can't page-lock the node's copy of parameters"),
    both(layers(), device=Refusing()) as (training, expected),
):
    for step in range(2):
        agree_at(step, training, expected)
for strategy in ("fcdp", "zero3") if NAME == "cpu" else ("fcdp", "mics", "zero3"):
    layers_are_frozen_and_thawed(strategy)
    a_pass_that_fails_spoils_nothing(strategy)
requires_grad_changes_between_steps_only()
every_optimizer_steps_once()
activations_are_computed_again_by_one_of_the_two_ways()
backward_passes_of_all_kinds()
changed_values_are_kept_where_asked_for()
nobody_holds_all_of_a_model_that_is_built_on_the_meta_device()
if topology.rank == 0:
    print("ok", flush=True)
