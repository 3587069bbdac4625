"""manapy.fcdp.pytorch call by call, on 2 emulated nodes of 2 ranks: which values are present at which time, and calls
that are refused. The argument is a device (devices.py)."""

from __future__ import annotations

import copy
import pickle
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from manapy.fcdp import Topology
from manapy.fcdp.errors import OrderError, SetupError, StateError

sys.path.append(str(Path(__file__).resolve().parent))
from devices import fully_shard, normal  # noqa: E402

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
        if inputs[0].requires_grad:  # when this gradient exists, this layer is done, and the one before is next
            inputs[0].register_hook(note)

    for layer in model:
        layer.register_forward_hook(note_both)
    with fully_shard(model, topology=topology) as sharded:
        optimizer = sharded.shard_optimizer(sgd)
        stays = sharded.engine.arena.used
        for _ in range(2):
            present.clear()
            loss = model(examples()).square().sum()
            # tensors that autograd has saved keep no memory
            assert [storage.nbytes() for storage in storages] == [0] * len(storages)
            loss.backward()
            assert present == [[0], [1], [2], [3], [2], [1], [0]], present
            assert sharded.engine.arena.used == stays
            # of 4 layers: one, and all gradients that are being sent, because they are small
            assert sharded.engine.arena.peak <= stays + 5 * (WIDTH + 1) * WIDTH * 4
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
            with pytest.raises(OrderError, match="not inside itself"), sharded.summon_full_params():
                pass
        assert (whole(examples()) == outputs).all()
        assert sharded.engine.arena.used == stays and not any(map(is_there, model))
    with pytest.raises(OrderError, match="inside `with engine:`"):
        model(examples())


def steps_end_when_they_should() -> None:
    model = layers()
    with fully_shard(model, topology=topology) as sharded:
        optimizer = sharded.shard_optimizer(sgd)
        with pytest.raises(OrderError, match="gradients are incomplete"):
            optimizer.step()
        with sharded.no_sync():
            model(examples()).sum().backward()
        with pytest.raises(OrderError, match="gradients are incomplete"):
            sharded.clip_grad_norm_(1)
        for number in sharded.accumulate(2):
            assert sharded.engine.last_micro_batch == (number == 1)
            model(examples()).sum().backward()
        assert sharded.clip_grad_norm_(1) > 1
        assert sharded.clip_grad_norm_(1).item() == pytest.approx(1)
        with pytest.raises(OrderError, match="call optimizer.step\\(\\) next"):
            model(examples()).sum().backward()


def a_frozen_layer_with_frozen_ones_below_is_gathered_once() -> None:
    """The backward pass needs layers 2 and 3, and the frozen one between trainable ones."""
    model = layers()
    for number in (0, 2):
        model[number].requires_grad_(False)
    with fully_shard(model, topology=topology, prefetch=0) as sharded:
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
    """Not after a backward pass, and not without one; with frozen parameters and inputs that have gradients."""
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
    everything = torch.cat([normal(5, WIDTH, seed=rank) for rank in range(topology.size)])
    whole(everything).square().sum().backward()
    sums = torch.cat([parameter.grad.flatten() for parameter in whole.parameters() if parameter.grad is not None])
    with fully_shard(model, topology=topology, units=lambda root: root.children()) as sharded:
        model(everything.chunk(topology.size)[topology.rank]).square().sum().backward()
        norm = sharded.clip_grad_norm_(1e9)
    assert norm.item() * topology.size == pytest.approx(sums.norm().item(), rel=1e-5)


def norm_of_means(whole: nn.Module) -> float:
    """The norm of the ranks' mean gradients; a missing gradient is zero."""
    mine = torch.cat(
        [(torch.zeros_like(values) if values.grad is None else values.grad).flatten() for values in whole.parameters()]
    )
    return float(np.linalg.norm(topology.comm.allreduce(mine.cpu().numpy()) / topology.size))


class Pair(nn.Module):
    """An encoder and a head that share a bias. The second half of each is a unit of its own."""

    def __init__(self) -> None:
        super().__init__()
        first, second, third, fourth = layers()
        self.encoder, self.head = (
            nn.Sequential(first, nn.Sequential(nn.Tanh(), second)),
            nn.Sequential(third, nn.Sequential(nn.Tanh(), fourth)),
        )
        self.head[0].bias = self.encoder[0].bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


def parts_are_called_by_themselves() -> None:
    """As in generate() of an encoder-decoder: parameters that a part shares with others are present for it, in both
    passes, but not longer."""
    model, whole = Pair(), Pair()
    x = examples()
    expected = whole(x)
    expected.square().sum().backward()
    with fully_shard(model, topology=topology, units=lambda root: [root.encoder[1], root.head[1]]) as sharded:
        for use in (
            model,
            lambda x: model.head(model.encoder(x)),
            lambda x: model.head[1](model.head[0](model.encoder(x))),
        ):
            outputs = use(x)
            assert (outputs == expected).all() and not is_there(model.head[0])
            outputs.square().sum().backward()
            assert not is_there(model.head[0])
            assert sharded.clip_grad_norm_(1e9).item() == pytest.approx(norm_of_means(whole), rel=1e-5)
            sharded.discard()


class Experts(nn.Module):
    """Each rank uses another expert in each pass, and rank 3 uses none."""

    passes = 0

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(layers(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Experts.passes += 1
        return x + (self.experts[(topology.rank + Experts.passes) % 3](x.tanh()) if topology.rank != 3 else 0)


def ranks_use_different_parameters_of_a_unit() -> None:
    for strategy in ("fcdp", "zero3"):
        model, whole = (nn.Sequential(layers(1)[0], Experts(), Experts(), layers(1)[0], Experts()) for _ in range(2))
        with fully_shard(model, topology=topology, strategy=strategy) as sharded:
            for number in sharded.accumulate(2):
                passes = Experts.passes
                for each in (whole, model):
                    Experts.passes = passes
                    each(examples() + number).square().sum().backward()
            assert sharded.clip_grad_norm_(1e9).item() == pytest.approx(norm_of_means(whole), rel=1e-5)


def what_would_train_nothing_is_refused() -> None:
    model = layers()
    pending = fully_shard(model, topology=topology)
    with pytest.raises(AttributeError, match="no 'shard_optimizer': enter it once for the whole model: `with"):
        pending.shard_optimizer(sgd)  # type: ignore[attr-defined]
    with pytest.raises(OrderError, match="was called but not entered"):
        model(examples())
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    with pending as sharded:
        loss = model(examples()).sum()
        with pytest.raises(
            OrderError,
            match="the sharded module's own parameters, and cannot train them: make it with sharded.shard_optimizer",
        ):
            own.step()
        for use in (copy.deepcopy, pickle.dumps):
            for part in (model, model[1]):
                with pytest.raises(OrderError, match="can't be copied or pickled"):
                    use(part)
        whole = layers().state_dict()
        for inside in (nullcontext, sharded.summon_full_params):
            with inside(), pytest.raises(OrderError, match="writeback=True"):
                model.load_state_dict(whole)
        with pytest.raises(SetupError, match="Adafactor can't work on shards, .* as a whole"):
            sharded.shard_optimizer(lambda shards: torch.optim.Adafactor(shards.values()))
        with pytest.raises(SetupError, match="LBFGS can't work on shards"):
            sharded.shard_optimizer(lambda shards: torch.optim.LBFGS(shards.values()))
        with sharded.summon_full_params(writeback=True):
            model.load_state_dict({name: values + 1 for name, values in whole.items()})
        assert model(examples()).sum() != loss
    own.step()
    with pytest.raises(SetupError, match="sharded already"), fully_shard(nn.Sequential(model), topology=topology):
        pass


def a_compiled_module_is_what_it_was() -> None:
    """All of its layers are compiled, but nothing of manapy."""
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model, whole = layers(), layers()
    whole(examples()).square().sum().backward()
    with fully_shard(model, topology=topology) as sharded:
        compiled = torch.compile(model, backend=backend)
        for _ in range(2):
            compiled(examples()).square().sum().backward()
            assert sharded.clip_grad_norm_(1e9).item() == pytest.approx(norm_of_means(whole), rel=1e-5)
            sharded.discard()
    assert graphs
    assert all("torch.compiler.disable" in reason for reason in torch._dynamo.utils.counters["graph_break"])


def a_generator_that_trains_is_closed() -> None:
    """By all ranks, which is a normal end of the block."""

    def losses() -> Iterator[float]:
        model = layers()
        with fully_shard(model, topology=topology) as sharded:
            optimizer = sharded.shard_optimizer(sgd)
            while True:  # the consumer decides
                loss = model(examples()).square().mean()
                loss.backward()
                optimizer.step()
                yield loss.item()

    training = losses()
    assert next(training) != next(training)
    training.close()


def frozen_weights_are_read_on_each_node() -> None:
    with tempfile.TemporaryDirectory() as mine:
        directory = Path(topology.comm.bcast(mine))
        with fully_shard(layers(), topology=topology) as sharded:
            sharded.save(directory / "state")
            sharded.export(directory / "whole.safetensors")
        nbytes = (WIDTH + 1) * WIDTH * 4
        crossing = nbytes * (topology.nodes - 1) // topology.nodes
        for local, layers_sent in ((True, 1), (False, 4)):
            for load, place in (("load", "state"), ("load_file", "whole.safetensors")):
                torch.manual_seed(4)
                model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH).requires_grad_(number == 2) for number in range(4)))
                with fully_shard(model, topology=topology) as sharded:
                    getattr(sharded, load)(directory / place, local_weights=local)
                    assert (model(examples()) == layers()(examples())).all()
                    assert sharded.comm_report()["forward"]["inter"] == layers_sent * crossing
        topology.comm.Barrier()


def optimizers_of_all_kinds() -> None:
    """Optimizers that treat all elements alike, with pieces of a bias that may be empty; schedulers, too."""
    makers: list[Callable[[Any], torch.optim.Optimizer]] = [
        *(
            lambda values, kind=kind: kind(values, lr=0.01)
            for kind in (
                torch.optim.Adamax,
                torch.optim.NAdam,
                torch.optim.RAdam,
                torch.optim.Adagrad,
                torch.optim.Adadelta,
                torch.optim.ASGD,
            )
        ),
        lambda values: torch.optim.SGD(values, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1, foreach=True),
        lambda values: torch.optim.RMSprop(values, lr=0.01, momentum=0.5, centered=True),
        lambda values: torch.optim.Adam(values, lr=0.01, foreach=True, amsgrad=True),
        lambda values: torch.optim.AdamW(values, lr=0.01, fused=True),
    ]
    everything = torch.cat([normal(5, WIDTH, seed=rank) for rank in range(topology.size)])
    x = everything.chunk(topology.size)[topology.rank]
    for make in makers:
        model, whole = layers(2), layers(2)
        with fully_shard(model, topology=topology) as sharded:
            optimizers = (
                sharded.shard_optimizer(lambda shards, make=make: make(shards.values())),
                make(whole.parameters()),
            )
            schedulers = [
                torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5, cycle_momentum=False)
                for optimizer in optimizers
            ]
            for _ in range(3):
                for each, inputs, optimizer, scheduler in zip(
                    (model, whole), (x, everything), optimizers, schedulers, strict=True
                ):
                    optimizer.zero_grad()
                    each(inputs).square().mean().backward()
                    optimizer.step()
                    scheduler.step()
            with sharded.summon_full_params():
                for values, expected in zip(model.parameters(), whole.parameters(), strict=True):
                    assert torch.allclose(values, expected, rtol=1e-4, atol=1e-5), type(optimizers[0])


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
        (lambda: layers().to(torch.bfloat16), {}, "parameter 0.weight is bfloat16: trainable parameters must be"),
        (
            layers,
            {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16)},
            "asks for gradients in torch.bfloat16",
        ),
        (layers, {"strategy": "ddp"}, "unknown strategy 'ddp'"),
        (nn.Tanh, {}, "there are no units"),
        (frozen, {}, "unit '0, frozen' here, '0' there"),
    ]
    for make, options, text in refusals:
        with pytest.raises(SetupError, match=text):
            with fully_shard(make(), topology=topology, **options):  # type: ignore[arg-type]
                pass


each_layer_is_there_for_its_own_passes()
steps_end_when_they_should()
a_frozen_layer_with_frozen_ones_below_is_gathered_once()
a_layer_used_twice_is_there_both_times()
nothing_keeps_a_graph_alive()
states_have_generators_and_know_their_optimizer()
what_cannot_be_sharded()
parts_are_called_by_themselves()
ranks_use_different_parameters_of_a_unit()
what_would_train_nothing_is_refused()
a_compiled_module_is_what_it_was()
a_generator_that_trains_is_closed()
frozen_weights_are_read_on_each_node()
optimizers_of_all_kinds()
if topology.rank == 0:
    print("ok", flush=True)
