"""Trainings of wide layers over manapy.fcdp on the nodes that MPI reports, one JSON line for each.

    mpirun ... python sharded.py bytes --strategies fcdp zero3 --models full lora --micro-batches 1 2 4

bytes: the bytes that a node has sent in a step, counted at its interface and by the engine. First some ordinary steps;
then some steps in which all ranks wait for each other wherever the phase changes, so that the interface's count can be
divided by phases, too (forward: gathers for the forward pass; backward; reduce: gradients).

Sizes are bytes of float32. Data for other ranks of the node cross no interface that is counted here, but go through
memory or lo.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from manapy.fcdp import Engine, Phase, Topology
from manapy.fcdp.layers import Adapted, Dense, Layer, Tanh
from manapy.fcdp.layers.adam import Adam
from manapy.fcdp.layers.numpy_training import initialise, micro_batch, units_of

PHASES = ("forward", "backward", "reduce")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Options for build()."""
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--rank", type=int, default=16, help="of the adapters")
    parser.add_argument("--batch", type=int, default=8, help="of a rank in a micro-batch")


def build(options: argparse.Namespace, kind: str) -> list[Layer]:
    """`full`: all parameters are trained; `lora`: an adapter beside each layer is trained."""
    layers: list[Layer] = []
    for number in range(options.layers):
        name = f"layer {number}"
        layers += [
            Adapted(name, options.hidden, options.hidden, options.rank)
            if kind == "lora"
            else Dense(name, options.hidden, options.hidden),
            Tanh(),
        ]
    return layers


def sizes(layers: list[Layer]) -> tuple[int, int]:
    """Bytes of trainable and of frozen parameters."""
    trainable, frozen = (
        sum(4 * unit.size for unit in units_of(layers) if unit.trainable is kind) for kind in (True, False)
    )
    return trainable, frozen


class Training:
    """One training. engine: the engine or a wrapper around it, which makes the steps."""

    def __init__(
        self, engine: Engine, layers: list[Layer], options: argparse.Namespace, micro_batches: int = 1
    ) -> None:
        self.engine, self._layers, self._options, self._micro_batches = engine, layers, options, micro_batches
        initialise(engine, layers, np.random.default_rng(7))
        self._random = np.random.default_rng(100 + engine.topology.rank)
        self._optimizer = Adam(1e-4)

    def step(self, engine: Any = None) -> None:
        """Make one, with random examples; on `engine` if it is given."""
        batch, hidden = self._options.batch, self._options.hidden
        for number in range(self._micro_batches):
            self.engine.last_micro_batch = number == self._micro_batches - 1
            inputs = self._random.standard_normal((batch, hidden), np.float32)
            labels = self._random.integers(0, hidden, batch)
            micro_batch(
                engine or self.engine,
                self._layers,
                inputs,
                labels,
                1 / (batch * self._micro_batches * self.engine.topology.size),
            )
        self._optimizer.step(self.engine.shards)
        self.engine.updated()


class Watched:
    """Wraps an engine. `changed` is called before a call that belongs to another phase than the previous call. Then
    nothing of the next phase may have been gathered ahead."""

    def __init__(self, engine: Engine, changed: Callable[[Phase], None]) -> None:
        self._engine, self._changed = engine, changed
        self._phase: Phase | None = None

    def gather(self, name: str, phase: Phase) -> dict[str, np.ndarray]:
        """The engine's."""
        self._at(phase)
        return self._engine.gather(name, phase)

    def reduce(self, name: str) -> None:
        """The engine's."""
        self._at(Phase.REDUCE)
        self._engine.reduce(name)

    def _at(self, phase: Phase) -> None:
        if phase is not self._phase:
            self._phase = phase
            self._changed(phase)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class Meter:
    """Bytes that the node has sent between two reports. A report is a barrier: report() returns when all ranks have
    done everything that came before it, and no rank of the node sends anything until all have read the count."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._before = self._now()

    def _now(self) -> np.ndarray:
        self._engine.report()  # of the work that was done before the report is requested, so this is not the answer yet
        report = self._engine.report()
        counts = np.array([interface_bytes(), *(report[phase]["inter"] for phase in PHASES)])
        self._engine.topology.node.Barrier()
        return counts

    def look(self) -> np.ndarray:
        """(at the interface, by the engine for each of PHASES)"""
        before, self._before = self._before, self._now()
        return self._before - before


def interface_bytes() -> int:
    """Bytes sent over all interfaces of this node except lo, with headers."""
    with open("/proc/self/net/dev") as stream:
        lines = [line.partition(":") for line in stream if ":" in line]
    return sum(int(counts.split()[8]) for name, _, counts in lines if name.strip() != "lo")


def count_bytes(topology: Topology, options: argparse.Namespace) -> None:
    """The mode `bytes`."""
    for kind in options.models:
        layers = build(options, kind)
        for micro_batches in options.micro_batches:
            for strategy in options.strategies:
                counts = as_it_is(topology, options, layers, strategy, micro_batches) | apart(
                    topology, options, layers, strategy, micro_batches
                )
                trainable, frozen = sizes(layers)
                said = {
                    "model": kind,
                    "strategy": strategy,
                    "micro_batches": micro_batches,
                    "nodes": topology.nodes,
                    "ranks": topology.ranks_per_node,
                }
                say(topology, {**said, "trainable": trainable, "frozen": frozen, **counts})


Counts = dict[str, dict[str, float]]  # by step or phase, then by who counts


def as_it_is(
    topology: Topology, options: argparse.Namespace, layers: list[Layer], strategy: str, micro_batches: int
) -> Counts:
    """Bytes of the first step, and of a later one."""
    with Engine(topology, units_of(layers), strategy=strategy) as engine:
        training = Training(engine, layers, options, micro_batches)
        meter = Meter(engine)
        training.step()
        first = meter.look()
        for _ in range(options.steps):
            training.step()
        later = meter.look() / options.steps
    return {
        name: {"interface": float(count[0]), "engine": float(count[1:].sum())}
        for name, count in (("first", first), ("step", later))
    }


def apart(
    topology: Topology, options: argparse.Namespace, layers: list[Layer], strategy: str, micro_batches: int
) -> Counts:
    """Bytes of the phases of the second step."""
    counts = {phase: {"interface": 0.0, "engine": 0.0} for phase in PHASES}
    with Engine(topology, units_of(layers), strategy=strategy, prefetch=0) as engine:
        training = Training(engine, layers, options, micro_batches)
        training.step()
        meter = Meter(engine)
        current = PHASES[0]

        def count() -> None:
            interface, *by_phase = meter.look()
            counts[current]["interface"] += float(interface)
            for phase, sent in zip(PHASES, by_phase, strict=True):
                counts[phase]["engine"] += float(sent)

        def changed(phase: Phase) -> None:
            nonlocal current
            count()
            current = phase.name.lower()

        training.step(Watched(engine, changed))
        count()
    return counts


def say(topology: Topology, record: dict[str, Any]) -> None:
    """From rank 0."""
    if topology.rank == 0:
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    mode = modes.add_parser("bytes")
    mode.set_defaults(run=count_bytes)
    mode.add_argument("--strategies", nargs="+", default=["fcdp"])
    mode.add_argument("--models", nargs="+", choices=("full", "lora"), default=["full"])
    mode.add_argument("--micro-batches", type=int, nargs="+", default=[1])
    mode.add_argument("--steps", type=int, default=2)
    add_model(mode)
    given = parser.parse_args()
    given.run(Topology(), given)
