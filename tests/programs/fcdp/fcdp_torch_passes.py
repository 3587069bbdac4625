"""manapy.fcdp.pytorch: passes of unusual kinds have the gradients of one process without manapy, or are refused.
Reading a parameter that isn't there would end a rank by a signal. On 2 emulated nodes of 2 ranks. The argument is a
device (devices.py)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from manapy.fcdp import Topology
from manapy.fcdp.errors import OrderError

sys.path.append(str(Path(__file__).resolve().parent))
from devices import fully_shard, normal  # noqa: E402

WIDTH = 7
topology = Topology(ranks_per_node=2)
torch.set_num_threads(1)


class Adapted(nn.Module):
    """A frozen layer and a trainable one beside it, which comes last in the backward pass."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.base, self.down, self.up = nn.Linear(width, width), nn.Linear(width, 2), nn.Linear(2, width)
        self.base.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x).tanh() + self.up(self.down(x))


def adapted(count: int = 3) -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(*(Adapted() for _ in range(count)))


def inputs(seed: int = 0) -> torch.Tensor:
    return normal(topology.size, 4, WIDTH, seed=seed)[topology.rank].requires_grad_()


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """The means over ranks."""
    return {
        name: torch.from_numpy(topology.comm.allreduce(parameter.grad.cpu().numpy()) / topology.size)
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def sharded_gradients(sharded: Any) -> dict[str, torch.Tensor]:
    """The same of a complete step."""
    shards = {shard.unit: shard for shard in sharded.engine.shards}
    found = {}
    for unit in sharded.units:
        if unit.trainable:
            shard = shards[unit.name]
            pieces = topology.comm.allgather((shard.start, shard.gradient))
            flat = torch.cat([torch.from_numpy(piece) for _, piece in sorted(pieces, key=lambda piece: piece[0])])
            found |= {name: torch.from_numpy(view) for name, view in unit.views(flat.numpy()).items()}
    return found


def same_gradients(sharded: Any, whole: nn.Module) -> None:
    ours, expected = sharded_gradients(sharded), gradients(whole)
    for name, values in ours.items():
        assert torch.allclose(values, expected.get(name, torch.zeros(())), rtol=1e-4, atol=1e-6), name


def check(make: Callable[[], nn.Module], use: Callable[[Any, nn.Module], None], **options: Any) -> None:
    """Use a sharded model and a whole one. use: receives a function that gives no_sync() or nothing, and the model."""

    @contextmanager
    def nothing() -> Iterator[None]:
        yield

    whole = make()
    use(nothing, whole)
    model = make()
    with fully_shard(model, topology=topology, **options) as sharded:
        stays = sharded.engine.arena.used
        use(sharded.no_sync, model)
        same_gradients(sharded, whole)
        sharded.discard()
        assert options.get("tau") or sharded.engine.arena.used == stays


def twice_through_one_graph(no_sync: Any, model: nn.Module) -> None:
    loss = model(inputs()).square().sum()
    with no_sync():
        loss.backward(retain_graph=True)
    (2 * loss).backward()


def two_graphs_one_after_the_other(no_sync: Any, model: nn.Module) -> None:
    first, second = (model(inputs(seed)).square().sum() for seed in range(2))
    with no_sync():
        first.backward()
    second.backward()


def first_for_the_inputs_alone(no_sync: Any, model: nn.Module) -> None:
    x = inputs()
    loss = model(x).square().sum()
    (slope,) = torch.autograd.grad(loss, x, retain_graph=True)
    loss.backward()
    assert torch.allclose(slope, x.grad, rtol=1e-5)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = adapted(2)
        self.heads = nn.ModuleList(adapted(2))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = self.body(x)
        return [head(x).square().sum() for head in self.heads]


def two_heads(no_sync: Any, model: nn.Module) -> None:
    first, second = model(inputs())
    with no_sync():
        first.backward(retain_graph=True)
    second.backward()


def passes_through_frozen_and_trainable_parameters() -> None:
    for strategy in ("fcdp", "zero3"):
        for use in (twice_through_one_graph, two_graphs_one_after_the_other, first_for_the_inputs_alone):
            check(adapted, use, strategy=strategy)
    check(Heads, two_heads)


class Detached(nn.Module):
    """Uses its weight without a gradient; with one, too, if `both`."""

    def __init__(self, both: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.Parameter(torch.randn(WIDTH))
        self.both = both

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = linear(x, self.weight.detach()).tanh() + self.bias
        return linear(x, self.weight) if self.both else x


def detached(both: bool) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch.manual_seed(6)
        return nn.Sequential(*(Detached(both) for _ in range(3)))

    return make


def once(no_sync: Any, model: nn.Module) -> None:
    model(inputs()).square().sum().backward()


def for_some_parameters(no_sync: Any, model: nn.Module) -> None:
    x = inputs()
    chosen = [parameter for name, parameter in model.named_parameters() if name in ("0.bias", "1.weight")]
    model(x).square().sum().backward(inputs=[x, *chosen])
    assert x.grad is not None


def parameters_are_used_without_gradients() -> None:
    for both in (False, True):
        check(detached(both), once)
    check(detached(True), for_some_parameters)


class Recomputed(nn.Module):
    """Regions of several layers, one of which is used in all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = adapted()
        self.shared = nn.ModuleList([Adapted().requires_grad_(False)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(lambda x, layer=layer: self.shared[0](layer(x).tanh()).tanh(), x, use_reentrant=False)
        return x


def recomputed() -> nn.Module:
    torch.manual_seed(8)
    return Recomputed()


def regions_are_computed_again() -> None:
    for strategy in ("fcdp", "zero3"):
        for use in (once, twice_through_one_graph):
            check(recomputed, use, strategy=strategy)


@dataclass
class State:
    """torch's containers don't know it."""

    x: torch.Tensor
    number: int


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


class Boxes(nn.Module):
    """Layers that receive and return objects."""

    def __init__(self, kind: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.layers = nn.ModuleList(Boxed(kind) for _ in range(3))
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        box = self.kind(x)
        for layer in self.layers:
            box = layer(box)
        return box.x


class Boxed(nn.Module):
    def __init__(self, kind: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.kind = Adapted(), kind

    def forward(self, box: Any) -> Any:
        return self.kind(self.layer(box.x))


class Closed:
    """Holds a tensor where nobody finds it. As if it were made in C."""

    __slots__ = ()
    tensors: dict[int, torch.Tensor] = {}

    def __init__(self, x: torch.Tensor) -> None:
        self.tensors[0] = x

    @property
    def x(self) -> torch.Tensor:
        return self.tensors[0]


def tensors_are_found_in_objects() -> None:
    for kind in (lambda x: State(x, 3), Slotted):
        check(lambda kind=kind: Boxes(kind), once)
        check(lambda kind=kind: Boxes(kind), twice_through_one_graph)
    with (
        fully_shard(Boxes(Closed), topology=topology) as sharded,
        pytest.raises(OrderError, match="Boxed returns an object of type Closed, in which tensors can't be found"),
    ):
        sharded.module(inputs())


class Prompt(nn.Module):
    """Returns a part of its parameter."""

    def __init__(self, wrap: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.weight, self.wrap = nn.Parameter(torch.randn(9, WIDTH)), wrap

    def forward(self) -> Any:
        return self.wrap(self.weight[:4])


class Prompted(nn.Module):
    def __init__(self, wrap: Callable[[torch.Tensor], Any] = lambda x: x) -> None:
        super().__init__()
        torch.manual_seed(10)
        self.prompts = nn.ModuleList(Prompt(wrap) for _ in range(2))
        self.layers = adapted(1)

    def forward(self, x: torch.Tensor) -> Any:
        first, second = (prompt() for prompt in self.prompts)
        return self.layers(x * first) + second


def views_of_parameters_are_returned() -> None:
    check(Prompted, once)
    model, whole = Prompted(), Prompted()
    with fully_shard(model, topology=topology), torch.no_grad():
        assert torch.allclose(model(inputs()), whole(inputs()))
    with (
        fully_shard(Prompted(lambda x: State(x, 1)), topology=topology) as sharded,
        pytest.raises(OrderError, match="Prompt returns a view of a parameter inside an object of type State"),
    ):
        sharded.module(inputs())


class Reading(nn.Module):
    """Reads the parameters of a container, which nobody calls; and of a layer, if asked to."""

    def __init__(self, head: bool) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.body = adapted(1)
        self.scales = nn.ParameterList([nn.Parameter(torch.randn(WIDTH)) for _ in range(2)])
        self.heads = nn.ModuleList([nn.Linear(WIDTH, 2)] if head else [])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x * self.scales[0]) * self.scales[1]
        return linear(x, self.heads[0].weight) if self.heads else x


def parameters_are_read_by_other_modules() -> None:
    check(lambda: Reading(False), once)
    with fully_shard(Reading(True), topology=topology) as sharded:
        with pytest.raises(OrderError, match="parameter heads.0.weight was used outside the call of its module"):
            once(None, sharded.module)
        sharded.discard()
    check(lambda: Reading(True), once, units=lambda root: [root.body])


def disabled(model: nn.Module, value: bool) -> None:
    """What PEFT's disable_adapter() does."""
    for name, parameter in model.named_parameters():
        if "base" not in name:
            parameter.requires_grad_(not value)


def a_reference_between_a_forward_pass_and_its_backward_pass(no_sync: Any, model: nn.Module) -> None:
    policy = model(inputs())
    disabled(model, True)
    with torch.no_grad():
        reference = model(inputs(1))
    disabled(model, False)
    (policy - reference).square().sum().backward()


def adapters_are_disabled() -> None:
    use = a_reference_between_a_forward_pass_and_its_backward_pass
    check(adapted, use)
    model = adapted()
    with fully_shard(model, topology=topology) as sharded:
        loss = model(inputs()).sum()
        disabled(model, True)
        model(inputs())
        disabled(model, False)
        model(inputs())
        with pytest.raises(OrderError, match="requires_grad has changed between a forward pass and its backward pass"):
            loss.backward()
        use(None, model)
        sharded.clip_grad_norm_(1)


passes_through_frozen_and_trainable_parameters()
parameters_are_used_without_gradients()
regions_are_computed_again()
tensors_are_found_in_objects()
views_of_parameters_are_returned()
parameters_are_read_by_other_modules()
adapters_are_disabled()
if topology.rank == 0:
    print("ok", flush=True)
