"""manapy.fcdp.pytorch: whole parameters that the program looks at, keeps and replaces; divisions, optimizers and loads
that fail. On 2 emulated nodes of 2 ranks. The argument is a device (devices.py)."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from manapy.fcdp import Topology
from manapy.fcdp.errors import BudgetError, OrderError, SetupError
from manapy.fcdp.mpi import MPI

sys.path.append(str(Path(__file__).resolve().parent))
from devices import fully_shard, normal  # noqa: E402

WIDTH = 9
topology = Topology(ranks_per_node=2)
torch.set_num_threads(1)


def layers(count: int = 3) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(count)))


def inputs() -> torch.Tensor:
    return normal(5, WIDTH, seed=topology.rank)


def adam(shards: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(shards.values(), lr=0.01)


def step(sharded: Any, optimizer: torch.optim.Optimizer) -> None:
    sharded.module(inputs()).square().mean().backward()
    optimizer.step()


@contextmanager
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as mine:
        yield Path(topology.comm.bcast(mine))
        topology.comm.Barrier()


def a_state_dict_outlives_the_summoning() -> None:
    model, whole = layers(), layers()
    with fully_shard(model, topology=topology) as sharded:
        with sharded.summon_full_params():
            taken = [model.state_dict(), model.state_dict(prefix="outer."), model[1].state_dict()]
            own = model.state_dict(keep_vars=True)
            assert all(own[name] is parameter for name, parameter in model.named_parameters())
        model(inputs())
        for state, expected in zip(
            taken, (whole.state_dict(), whole.state_dict(prefix="outer."), whole[1].state_dict()), strict=True
        ):
            assert state.keys() == expected.keys()
            assert all(torch.equal(state[name], expected[name]) for name in expected)


def what_is_written_without_writeback_is_lost() -> None:
    """Also where units would stay on the device."""
    model, whole = layers(), layers()
    with fully_shard(model, topology=topology, tau=1.0, budget=10**9) as sharded:
        for _ in range(2):
            with sharded.summon_full_params(), torch.no_grad():
                for parameter in model.parameters():
                    parameter += topology.rank + 1
            with torch.no_grad():
                assert torch.allclose(model(inputs()), whole(inputs()))
        with torch.no_grad():
            for parameter in model.parameters():
                nn.init.zeros_(parameter)
        model(inputs())
        assert all(parameter.isnan().all() for parameter in model.parameters())


def parameters_of_other_types_and_other_parameters_are_refused() -> None:
    model, whole = layers(), layers()
    state = {name: values + 1 for name, values in whole.state_dict().items()}
    with fully_shard(model, topology=topology) as sharded:
        with (
            pytest.raises(SetupError, match="parameter 1.bias has another type than before"),
            sharded.summon_full_params(writeback=True),
        ):
            model[1].bias.data = model[1].bias.data.double()
        with torch.no_grad():
            assert torch.allclose(model(inputs()), whole(inputs()))
        for writeback in (True, False):
            own = model[1].bias
            with (
                pytest.raises(SetupError, match="parameter 1.bias has been added, removed or replaced since fully"),
                sharded.summon_full_params(writeback=writeback),
            ):
                model[1].bias = nn.Parameter(torch.ones(WIDTH))
            for use in (lambda: model(inputs()), lambda: sharded.save("nowhere")):
                with pytest.raises(SetupError, match="parameter 1.bias has been added"):
                    use()
            model[1].bias = own
        parameters = [(layer, dict(layer._parameters)) for layer in model]
        with (
            pytest.raises(SetupError, match="parameter 0.weight has been added"),
            sharded.summon_full_params(writeback=True),
        ):
            model.load_state_dict(state, assign=True)
        for layer, own_parameters in parameters:
            layer._parameters.update(own_parameters)
        with sharded.summon_full_params(writeback=True):
            model.load_state_dict(state)
        whole.load_state_dict(state)
        with torch.no_grad():
            assert torch.allclose(model(inputs()), whole(inputs()))


def units_of_two_types_are_trained() -> None:
    """Slices of 11 elements of 4 bytes each, and smaller ones of 8 bytes."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.narrow, self.wide = nn.Parameter(torch.ones(43)), nn.Parameter(torch.ones(3).double())

        def forward(self) -> torch.Tensor:
            return self.narrow.sum() + self.wide.square().sum()

    one_node = Topology(ranks_per_node=4)
    with fully_shard(Mixed(), topology=one_node) as sharded:
        sharded.module().backward()
        assert sharded.clip_grad_norm_(1e9).item() == pytest.approx((43 + 3 * 4) ** 0.5)
    one_node.close()


def a_division_is_made_in_inference_mode() -> None:
    model = layers()
    with fully_shard(model, topology=topology) as sharded:
        optimizer = sharded.shard_optimizer(adam)
        model[0].requires_grad_(False)
        with torch.inference_mode():
            sharded.invalidate()
        for _ in range(2):
            step(sharded, optimizer)


def a_division_that_does_not_fit_changes_nothing() -> None:
    model, whole = layers().requires_grad_(False), layers()
    model[0].requires_grad_(True)
    # bytes: a buffer of 184, shards of 92 and gradients of 92 for each layer, one layer and its gradient of 368
    with fully_shard(model, topology=topology, budget=1400) as sharded:
        optimizer = sharded.shard_optimizer(lambda shards: torch.optim.SGD([shards["0.weight"]], lr=0.1))
        model.requires_grad_(True)
        with pytest.raises(BudgetError, match="are missing"):
            model(inputs())
        model[1:].requires_grad_(False)
        assert torch.allclose(model(inputs()), whole(inputs()))
        step(sharded, optimizer)
    for error in (SetupError("no engine"), None):
        model = layers()
        with pytest.raises(OrderError if error is None else SetupError):
            with fully_shard(model, topology=topology) as sharded:
                model[0].requires_grad_(False)
                sharded._division._engine = fails
                try:
                    model(inputs())
                except SetupError:
                    if error:
                        raise


def fails() -> Any:
    raise SetupError("no engine")


def a_summoning_that_does_not_fit_changes_nothing() -> None:
    model, whole = layers(), layers()
    # bytes: all but the three layers of 368 need 736
    with fully_shard(model, topology=topology, strategy="zero3", budget=1700) as sharded:
        stays = sharded.engine.arena.used
        for _ in range(2):
            with pytest.raises(BudgetError, match="are missing"), sharded.summon_full_params():
                pass
            assert sharded.engine.arena.used == stays
            with torch.no_grad():
                assert torch.allclose(model(inputs()), whole(inputs()))


def what_has_been_frozen_is_saved_and_loaded() -> None:
    for trainable, local_weights in ((True, False), (False, True), (False, False)):
        with directory() as place, fully_shard(layers(), topology=topology) as sharded:
            optimizer = sharded.shard_optimizer(adam)
            step(sharded, optimizer)
            sharded.module[0].requires_grad_(False)
            step(sharded, optimizer)
            sharded.save(place / "state", trainable=trainable)
            sharded.save(place / "full")
            losses = []
            for saved in ("state", "full"):
                sharded.load(place / saved, trainable=trainable, local_weights=local_weights)
                moments = [kept["exp_avg"].clone() for kept in optimizer.state.values()]
                assert len(moments) == 6
                step(sharded, optimizer)
                with sharded.summon_full_params():
                    losses.append(sum(values.sum().item() for values in sharded.module.state_dict().values()))
                sharded.module[0].requires_grad_(True)  # its moments are still there
                step(sharded, optimizer)
                assert all(kept["exp_avg"].shape == kept["exp_avg_sq"].shape for kept in optimizer.state.values())
                sharded.module[0].requires_grad_(False)
            assert local_weights or trainable or losses[0] == pytest.approx(losses[1], rel=1e-6)


class Breaks(torch.optim.SGD):
    """Raises after its first parameter."""

    broken = False

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for number, values in enumerate(value for group in self.param_groups for value in group["params"]):
            if self.broken and number:
                raise ZeroDivisionError
            if values.grad is not None:
                values -= 0.1 * values.grad


def an_optimizer_breaks() -> None:
    """Ranks then compute with the values that there are."""
    for strategy in ("fcdp", "zero3"):
        model = layers()
        with fully_shard(model, topology=topology, strategy=strategy) as sharded:
            optimizer = sharded.shard_optimizer(lambda shards: Breaks(shards.values(), lr=0.1))
            optimizer.broken = True
            with pytest.raises(ZeroDivisionError):
                step(sharded, optimizer)
            for use in (lambda: model(inputs()), optimizer.step, lambda: sharded.save("nowhere")):
                with pytest.raises(OrderError, match="Breaks.step\\(\\) has raised an exception"):
                    use()
            sharded.discard()
            optimizer.broken = False
            assert all(values.grad is None for group in optimizer.param_groups for values in group["params"])
            with sharded.summon_full_params():
                whole = layers()
                whole.load_state_dict(model.state_dict())
            shard = next(iter(sharded.engine.shards))
            assert (torch.from_numpy(shard.values) == 0).sum() < shard.values.size
            gathered = torch.cat([parameter.detach().flatten() for parameter in whole[0].parameters()])
            piece = gathered[shard.start : shard.start + shard.values.size].cpu()
            assert torch.equal(piece, torch.from_numpy(shard.values)[: len(piece)])
            step(sharded, optimizer)


class HalfWhole(torch.optim.SGD):
    """Treats the parameters of some groups as a whole."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for values in group["params"]:
                if values.grad is not None:
                    values -= 0.1 * (values.grad / values.grad.norm() if group["whole"] else values.grad)


def every_group_of_an_optimizer_is_tried() -> None:
    def make(shards: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
        groups = [{"params": [values], "whole": name == "1.bias"} for name, values in shards.items()]
        return HalfWhole(groups, lr=0.1)

    with (
        fully_shard(layers(), topology=topology) as sharded,
        pytest.raises(SetupError, match="HalfWhole can't work on shards, .* as a whole"),
    ):
        sharded.shard_optimizer(make)


def communicators_are_given_back() -> None:
    """MPICH has 2048 of them. A topology that the program has made stays open."""
    for _ in range(700):
        Topology(ranks_per_node=2).close()
    with fully_shard(layers()) as sharded:
        own = sharded.engine.topology
    assert MPI.COMM_NULL in (own.comm, own.node, own.cross) and topology.comm != MPI.COMM_NULL


a_state_dict_outlives_the_summoning()
what_is_written_without_writeback_is_lost()
parameters_of_other_types_and_other_parameters_are_refused()
units_of_two_types_are_trained()
a_division_is_made_in_inference_mode()
a_division_that_does_not_fit_changes_nothing()
a_summoning_that_does_not_fit_changes_nothing()
what_has_been_frozen_is_saved_and_loaded()
an_optimizer_breaks()
every_group_of_an_optimizer_is_tried()
communicators_are_given_back()
if topology.rank == 0:
    print("ok", flush=True)
