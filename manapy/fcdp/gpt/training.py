"""The training of the GPT: an example of a program with manapy.fcdp.pytorch. It compares bytes and memory with the
closed forms of costs.py.

1. The batch of a step depends only on the seed and the step, on any number of ranks: each micro-batch is divided among
   the ranks.
2. Errors that every rank can detect are raised on all ranks before the engine begins; errors in a state, after all
   ranks have left it. So the job ends with one message.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ..costs import Phases, bytes_per_node
from ..engine.collective_errors import agree, agreed, error_of
from ..engine.strategy import find
from ..engine.topology import Topology
from ..engine.units import Layout, Unit
from ..errors import SetupError
from ..mpi import MPI
from ..pytorch import Sharded, fully_shard
from ..state.state_files import parameters
from . import options, text
from .lora import add_adapters
from .model import GPT
from .options import Run, Saved, Training

PHASES = ("forward", "backward", "reduce")
CLIP = 1.0  # norm of gradients

Traffic = dict[str, dict[str, int]]  # bytes by phase and scope, of one node
Show = Callable[[int, float], None]  # gets step and loss


@dataclass
class Result:
    """The result of a training. Bytes are those that the ranks of a node send; memory is in bytes.

    losses: of all steps, those before a resume included; sent: by step of this run; form: what costs.py says of a step
    that isn't the first; device: most that was in use on a rank.
    """

    training: Training
    run: Run
    text: str
    nodes: int
    ranks_per_node: int
    first: int  # steps that had been made before
    trainable: int = 0  # parameters
    frozen: int = 0
    form: Phases | None = None
    validation: list[float] = field(default_factory=list)  # loss before and after
    losses: list[float] = field(default_factory=list)
    sent: list[Traffic] = field(default_factory=list)
    seconds: float = 0.0  # for the steps
    device: int = 0
    host: int = 0  # of a node


def is_first() -> bool:
    """Is this rank 0?"""
    return MPI.COMM_WORLD.rank == 0


def train(given: Mapping[str, Any], run: Run, show: Show) -> Result:
    """Collective. given: those of Training's fields that aren't to be defaults, or those of the state that is begun
    from; show: called on every rank after each step.

    Raises on all ranks ManapyError, OSError.
    """
    topology = Topology(ranks_per_node=run.ranks_per_node)
    comm = topology.comm
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(_threads(comm))
    training, before, data = agreed(comm, lambda: _prepare(given, run, topology))
    agree(
        comm,
        None if comm.bcast(data.digest) == data.digest else SetupError(f"{data.name}: not the same text as on rank 0"),
    )
    agree(comm, error_of(lambda: options.check_targets(run)) if topology.rank == 0 else None)
    model = agreed(comm, lambda: _model(training, run))
    done = Result(
        training,
        run,
        data.name,
        topology.nodes,
        topology.ranks_per_node,
        before.step if before else 0,
        losses=list(before.losses) if before else [],
    )
    with fully_shard(model, topology=topology, strategy=run.strategy, tau=run.tau, budget=run.device_memory) as sharded:
        optimizer = sharded.shard_optimizer(lambda shards: torch.optim.AdamW(shards.values(), lr=training.rate))
        failed = error_of(functools.partial(sharded.load, run.resume)) if run.resume else None
        if failed is None:
            _steps(model, sharded, optimizer, data, done, show)
            _describe(sharded, done)
            if run.save:
                extra = Saved(training, run.steps, data.digest, done.losses).extra()
                failed = error_of(functools.partial(sharded.save, run.save, extra=extra))
    if failed:
        raise failed
    return done


def _threads(comm: MPI.Comm) -> int:
    """Return the number of PyTorch's threads for each rank: the host's processors are divided among its ranks."""
    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    ranks = host.size
    host.Free()
    return max(1, len(os.sched_getaffinity(0)) // ranks)


def _prepare(given: Mapping[str, Any], run: Run, topology: Topology) -> tuple[Training, Saved | None, text.Text]:
    find(run.strategy, run.tau)
    training, before = options.settle(given, run)
    share = topology.size * run.micro_batches
    if training.batch % share:
        raise SetupError(
            f"--batch {training.batch} isn't a multiple of {share}: {topology.size} ranks, {run.micro_batches} "
            "micro-batches"
        )
    data = text.load(run.text, bool(training.lora), training.context)
    if before and before.text != data.digest:
        raise SetupError(
            f"{run.resume} was trained on another text than {data.name}: name that text with --text, or use --base to "
            "begin a new training with its model"
        )
    return training, before, data


def _model(training: Training, run: Run) -> GPT:
    """The same on all ranks. A base's values are set before there are adapters, whose layers have other names. Raises
    SetupError if memory is short."""
    torch.manual_seed(training.seed)
    try:
        model = GPT(**training.shape)
    except RuntimeError as error:  # of torch's allocator, in whose first line is how much was wanted
        raise SetupError(f"the model can't be made: {str(error).splitlines()[0]}") from None
    if run.base:
        named = dict(model.named_parameters())
        with torch.no_grad():
            for name, values in parameters(run.base).items():
                named[name].copy_(torch.from_numpy(values))
    if training.lora:
        add_adapters(model, training.lora, lambda path: path.startswith("blocks."))
    return model


def _steps(
    model: nn.Module, sharded: Sharded, optimizer: torch.optim.Optimizer, data: text.Text, done: Result, show: Show
) -> None:
    """Validation, the steps of this run, validation."""
    training, run, topology = done.training, done.run, sharded.engine.topology
    windows = torch.from_numpy(data.windows(training.context))[topology.rank :: topology.size]
    done.validation.append(_validation(model, sharded, windows))
    sent, begin = sharded.comm_report(), time.perf_counter()
    for step in range(done.first, run.steps):
        batch = torch.from_numpy(data.batch(training.seed, step, training.batch, training.context))
        parts = batch.view(run.micro_batches, topology.size, -1, training.context + 1)[:, topology.rank]
        loss = 0.0
        for number in sharded.accumulate(run.micro_batches):
            part = _loss(model, parts[number], "mean") / run.micro_batches
            part.backward()
            loss += part.item()
        sharded.clip_grad_norm_(CLIP)
        optimizer.step()
        done.losses.append(sum(sharded.engine.allgather(loss)) / topology.size)
        before, sent = sent, sharded.comm_report()
        done.sent.append(
            {phase: {scope: sent[phase][scope] - before[phase][scope] for scope in sent[phase]} for phase in PHASES}
        )
        show(step + 1, done.losses[-1])
    done.seconds = time.perf_counter() - begin
    done.validation.append(_validation(model, sharded, windows))


def _loss(model: nn.Module, tokens: torch.Tensor, reduction: str) -> torch.Tensor:
    """Cross entropy, in nats, of each next byte. tokens: (sequences, context + 1)."""
    return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten(), reduction=reduction)


def _validation(model: nn.Module, sharded: Sharded, windows: torch.Tensor) -> float:
    """Mean over the windows of all ranks; one that has none takes part in gathering."""
    model.eval()
    with torch.no_grad():
        total = _loss(model, windows, "sum").item()
    model.train()
    rows = sharded.engine.allgather((total, windows[:, 1:].numel()))
    return sum(loss for loss, _ in rows) / sum(count for _, count in rows)


def _describe(sharded: Sharded, done: Result) -> None:
    """Sizes, and what follows from them."""
    engine = sharded.engine
    units = sharded.units
    done.trainable, done.frozen = (sum(unit.size for unit in units if unit.trainable is kind) for kind in (True, False))
    trainable, frozen = (sum(_bytes(unit, done) for unit in units if unit.trainable is kind) for kind in (True, False))
    done.form = bytes_per_node(
        done.run.strategy, done.nodes, done.ranks_per_node, trainable, frozen, trainable, done.run.micro_batches
    )
    done.device = max(engine.allgather(engine.arena.peak))
    done.host = engine.host_bytes


def _bytes(unit: Unit, done: Result) -> int:
    """Return the bytes of a unit on the network: it has whole elements for every rank."""
    return Layout(unit.size, done.nodes, done.ranks_per_node).padded * np.dtype(unit.dtype).itemsize
