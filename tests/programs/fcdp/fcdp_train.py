"""Trains a small model over manapy.fcdp, as its arguments say, and prints the results as JSON: losses, bytes by step,
memory.

`--trouble` makes the last rank, or the last node's ranks, misbehave. `--reference` trains the same model in one
process, without the engine. `--until` trains until a file exists.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from manapy.fcdp import Engine, Phase, Topology, Unit, state
from manapy.fcdp.engine.unit_state import Shard
from manapy.fcdp.layers import Adapted, Dense, Layer, Tanh, cross_entropy
from manapy.fcdp.layers.adam import Adam
from manapy.fcdp.layers.numpy_training import initialise, micro_batch, units_of
from manapy.fcdp.state import state_files as files

sys.path.append(str(Path(__file__).resolve().parents[1]))
import tracebacks  # noqa: E402, F401  in one piece

WIDTH, HIDDEN, CLASSES, EXAMPLES = 24, 33, 7, 48  # size of the global batch, in every step

parser = argparse.ArgumentParser()
parser.add_argument("--strategy", nargs="+", default=["fcdp"], help="one training for each")
parser.add_argument("--tau", type=float, default=0.0)
parser.add_argument("--budget", type=int)
parser.add_argument("--prefetch", type=int, default=1)
parser.add_argument("--nodes-of", type=int, default=2, help="ranks of an emulated node; 0: real nodes")
parser.add_argument("--hidden", type=int, default=HIDDEN)
parser.add_argument(
    "--micro-batches", type=int, nargs="+", default=[1], help="one training for each of each strategy's"
)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--until", type=Path)
parser.add_argument("--adapted", action="store_true")
parser.add_argument("--clip", type=float)
parser.add_argument(
    "--local-weights", type=Path, help="a folder: each node reads frozen parameters from a file of its own in there"
)
parser.add_argument("--trouble", default="")
parser.add_argument("--reference", action="store_true")


def layers(adapted: bool, hidden: int, width: int = WIDTH) -> list[Layer]:
    """Odd sizes, so that units need padding."""
    if adapted:
        return [
            Adapted("first", WIDTH, hidden, 3),
            Tanh(),
            Adapted("second", hidden, width, 3),
            Tanh(),
            Dense("last", width, CLASSES),
        ]
    return [
        Dense("first", WIDTH, hidden),
        Tanh(),
        Dense("second", hidden, width),
        Tanh(),
        Dense("last", width, CLASSES),
    ]


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """The global batch of a step."""
    random = np.random.default_rng(1000 + step)
    return random.standard_normal((EXAMPLES, WIDTH)).astype(np.float32), random.integers(0, CLASSES, EXAMPLES)


def train(options: argparse.Namespace) -> None:
    topology = Topology(ranks_per_node=options.nodes_of or None)
    results = [
        train_once(topology, options, strategy, micro_batches)
        for strategy in options.strategy
        for micro_batches in options.micro_batches
    ]
    if topology.rank == 0:
        print("RESULT", json.dumps(results), flush=True)


def train_once(topology: Topology, options: argparse.Namespace, strategy: str, micro_batches: int) -> dict[str, object]:
    odd = options.trouble if topology.rank == topology.size - 1 else ""  # the last rank's misbehaviour
    model = layers(options.adapted, options.hidden, WIDTH + 1 if odd == "shape" else WIDTH)
    units = units_of(model)
    if odd == "frozen":  # the others train this unit
        units[-1] = Unit(units[-1].name, units[-1].parameters, trainable=False)
    strategy = "fdcp" if odd == "strategy" else strategy
    losses, steps = [], []
    with Engine(
        topology, units, strategy=strategy, tau=options.tau, budget=options.budget, prefetch=options.prefetch
    ) as engine:
        initialise(engine, model, np.random.default_rng(8 if odd == "values" else 7))
        if options.local_weights:
            load_locally(engine, options.local_weights, wrong=odd == "weights")
        optimizer = Adam(1e-2)
        before = inter(engine)
        for step in range(options.steps) if options.until is None else until(options.until, topology):
            inputs, labels = batch(step)
            if odd == "nan" and step == 1:
                inputs[:] = np.nan
            if odd == "raise" and step == 1:
                raise ZeroDivisionError("the program's own")
            if options.trouble == "absent" and step == 1:
                topology.comm.Barrier() if not odd else engine.gather("nothing", Phase.FORWARD)
            if odd == "order" and step == 1:
                engine.gather("second", Phase.FORWARD)
                engine.release("second")
            if odd == "gradients" and step == 1:
                engine.gradients("first")
                engine.reduce("first")
            if options.trouble.startswith("crossed") and step == 1:
                cross(
                    engine,
                    backwards=bool(odd)
                    or (options.trouble == "crossed-nodes" and topology.node_index == topology.nodes - 1),
                )
            parts = np.arange(EXAMPLES).reshape(micro_batches, topology.size, -1)[:, topology.rank]
            loss = 0.0
            for number, rows in enumerate(parts):
                engine.last_micro_batch = number == micro_batches - 1
                loss += micro_batch(engine, model, inputs[rows], labels[rows], 1 / EXAMPLES)
            if options.clip:
                engine.clip_gradients(options.clip * (2 if odd == "norm" else 1))
            optimizer.step(engine.shards)
            engine.updated()
            losses.append(topology.comm.allreduce(loss))
            now = inter(engine)
            steps.append([a - b for a, b in zip(now, before, strict=True)])
            before = now
        report = engine.report()
        peak, host = topology.comm.allgather(engine.arena.peak), engine.host_bytes
    return {
        "losses": losses,
        "inter": steps,
        "report": report,
        "peak": peak,
        "host": host,
        "units": [(unit.size, unit.trainable) for unit in units],
    }


def cross(engine: Engine, backwards: bool) -> None:
    """Reduce two units one after the other, in different orders on different ranks."""
    for name in ("first", "second"):
        engine.gradients(name)
    for name in ("second", "first") if backwards else ("first", "second"):
        engine.reduce(name)
    engine.finish()


def load_locally(engine: Engine, folder: Path, wrong: bool) -> None:
    """Give each node a file of all parameters, and read them from it. wrong: this node's values differ."""
    topology = engine.topology
    parameters = state.full(engine, everywhere=True)
    if wrong:
        parameters["first.weight"][-1, -1] += 1
    if topology.local == topology.ranks_per_node - 1:
        files.replace(folder / f"node-{topology.node_index}.safetensors", parameters)
    topology.node.Barrier()
    initialise(engine, layers(True, HIDDEN), np.random.default_rng(8))
    state.load_file(engine, folder / f"node-{topology.node_index}.safetensors", local_weights=True)


def until(file: Path, topology: Topology) -> Iterator[int]:
    """Steps, printed by rank 0, until it sees the file."""
    for step in itertools.count():
        if topology.comm.bcast(topology.rank == 0 and file.exists()):
            return
        if topology.rank == 0:
            print("step", step, flush=True)
        yield step


def reference(options: argparse.Namespace) -> None:
    """Train with whole parameters and the whole batch."""
    model = layers(options.adapted, options.hidden)
    random = np.random.default_rng(7)
    values = {}
    for layer in model:
        for unit, initial in zip(layer.units, layer.initial(random), strict=True):
            values[unit.name] = np.concatenate([initial[name].reshape(-1) for name, _ in unit.parameters])
    optimizer = Adam(1e-2)
    losses = []
    for step in range(options.steps):
        inputs, labels = batch(step)
        gradients = {unit.name: np.zeros_like(values[unit.name]) for unit in units_of(model)}
        saved = []
        for layer in model:
            inputs, kept = layer.forward(views(layer, values), inputs)
            saved.append(kept)
        loss, slope = cross_entropy(inputs, labels, 1 / EXAMPLES)
        for layer in reversed(model):
            slope = layer.backward(views(layer, values), saved.pop(), slope, views(layer, gradients))
        trainable = [unit.name for unit in units_of(model) if unit.trainable]
        if options.clip:
            norm = np.sqrt(sum(float((gradients[name].astype(float) ** 2).sum()) for name in trainable))
            for name in trainable:
                gradients[name] *= min(1, options.clip / norm)
        optimizer.step(Shard(name, values[name], gradients[name]) for name in trainable)
        losses.append(loss)
    print("RESULT", json.dumps([{"losses": losses}]))


def views(layer: Layer, flat: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The parameters of a layer."""
    return {name: view for unit in layer.units for name, view in unit.views(flat[unit.name]).items()}


def inter(engine: Engine) -> list[int]:
    """Bytes that each rank has sent to other nodes for parameters and gradients, so far. All ranks."""
    return engine.topology.comm.allgather(int(engine.traffic.bytes[:3, 0].sum()))


if __name__ == "__main__":
    given = parser.parse_args()
    (reference if given.reference else train)(given)
