"""The libraries that train the model. Each is used as its own documentation describes: manapy over MPI; PyTorch's FSDP2
and DeepSpeed's ZeRO over torch.distributed with gloo.

Each is a context manager that gives a Training, with the same optimizer. It imports nothing of the other libraries.
They differ in what a rank keeps:

    fcdp, zero3, hpz, hpz_naive, mics    manapy's strategies
    fsdp2            FSDP2, resharded after the forward pass: ZeRO-3
    fsdp2-node       resharded within the node (reshard_after_forward=RANKS): the secondary copy of ZeRO++
    fsdp2-kept       whole until the step ends (reshard_after_forward=False): ZeRO-2
    hsdp             FSDP2 on a mesh of nodes and ranks: sharded in each node, like MiCS
    deepspeed        ZeRO-3
    deepspeed-hpz    ZeRO-3 with zero_hpz_partition_size=RANKS: ZeRO++'s
    alone            one process, with the data of all ranks
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from model import loss_of, sentences
from torch import nn

RATE = 1e-3
MANAPY = ("fcdp", "zero3", "hpz", "hpz_naive", "mics")


@dataclass
class Training:
    """One rank's part. step(): a step of the optimizer, after all micro-batches; returns the mean loss of this rank's
    sentences. share(): the values of all ranks, by rank."""

    rank: int
    step: Callable[[], float]
    share: Callable[[Any], list[Any]]


@contextmanager
def alone(model: nn.Module, options: argparse.Namespace) -> Iterator[Training]:
    """One process with the sentences of all ranks."""
    optimizer = torch.optim.AdamW(filter(_trainable, model.parameters()), lr=RATE)
    tokens = sentences(options, options.ranks).flatten(0, 2)

    def step() -> float:
        loss = loss_of(model, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    yield Training(0, step, lambda value: [value])


@contextmanager
def manapy(model: nn.Module, options: argparse.Namespace, strategy: str) -> Iterator[Training]:
    from mpi4py import MPI

    from manapy.fcdp.pytorch import fully_shard

    world = MPI.COMM_WORLD
    tokens = sentences(options, world.size)[:, world.rank]
    with fully_shard(model, strategy=strategy, tau=options.tau, budget=options.budget) as sharded:
        optimizer = sharded.shard_optimizer(lambda shards: torch.optim.AdamW(shards.values(), lr=RATE))

        def step() -> float:
            loss = _accumulate(model, tokens, sharded.accumulate(len(tokens)))
            optimizer.step()
            return loss

        yield Training(world.rank, step, world.allgather)


@contextmanager
def fsdp2(model: nn.Module, options: argparse.Namespace, kind: str) -> Iterator[Training]:
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    distributed.init_process_group("gloo")
    size, local = distributed.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
    mesh = (
        init_device_mesh("cpu", (size // local, local), mesh_dim_names=("nodes", "ranks"))
        if kind == "hsdp"
        else init_device_mesh("cpu", (size,))
    )
    reshard = {"fsdp2": True, "hsdp": True, "fsdp2-node": local, "fsdp2-kept": False}[kind]
    for module in [*model.blocks, model]:
        fully_shard(module, mesh=mesh, reshard_after_forward=reshard)
    optimizer = torch.optim.AdamW(filter(_trainable, model.parameters()), lr=RATE)
    tokens = sentences(options, size)[:, distributed.get_rank()]

    def micro_batches() -> Iterator[int]:
        for number in range(len(tokens)):
            last = number == len(tokens) - 1
            if kind == "hsdp":
                model.set_requires_all_reduce(last)
            elif options.defer:
                model.set_requires_gradient_sync(last)
            if kind == "fsdp2-kept":
                model.set_reshard_after_backward(last)
            yield number

    def step() -> float:
        loss = _accumulate(model, tokens, micro_batches())
        optimizer.step()
        optimizer.zero_grad()
        return loss

    yield Training(distributed.get_rank(), step, _share)
    distributed.destroy_process_group()


@contextmanager
def zero(model: nn.Module, options: argparse.Namespace, hpz: bool) -> Iterator[Training]:
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed
    from torch import distributed

    # the kernel is for jobs on one node, and would be compiled here first
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    sharding: dict[str, Any] = {
        "stage": 3,
        "stage3_param_persistence_threshold": 0,
        "stage3_max_live_parameters": 0,
        "stage3_max_reuse_distance": 0,
    }
    if hpz:
        sharding["zero_hpz_partition_size"] = int(os.environ["LOCAL_WORLD_SIZE"])
    config = {
        "train_micro_batch_size_per_gpu": options.batch,
        "gradient_accumulation_steps": options.micro_batches,
        "zero_optimization": sharding,
        # torch's defaults
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": RATE, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01, "torch_adam": True},
        },
    }
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=list(filter(_trainable, model.parameters())), config=config
    )
    tokens = sentences(options, distributed.get_world_size())[:, distributed.get_rank()]

    def step() -> float:
        total = 0.0
        for part in tokens:
            loss = loss_of(engine, part)
            engine.backward(loss)  # divided by the number of micro-batches
            engine.step()
            total += loss.item()
        return total / len(tokens)

    yield Training(distributed.get_rank(), step, _share)
    distributed.destroy_process_group()


LIBRARIES: dict[str, Callable[..., AbstractContextManager[Training]]] = {
    **{strategy: partial(manapy, strategy=strategy) for strategy in MANAPY},
    **{kind: partial(fsdp2, kind=kind) for kind in ("fsdp2", "fsdp2-node", "fsdp2-kept", "hsdp")},
    "deepspeed": partial(zero, hpz=False),
    "deepspeed-hpz": partial(zero, hpz=True),
    "alone": alone,
}


def _accumulate(model: nn.Module, tokens: torch.Tensor, numbers: Iterator[int]) -> float:
    total = 0.0
    for number in numbers:
        loss = loss_of(model, tokens[number]) / len(tokens)
        loss.backward()
        total += loss.item()
    return total


def _trainable(parameter: nn.Parameter) -> bool:
    return parameter.requires_grad


def _share(value: Any) -> list[Any]:
    from torch import distributed

    values: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values
