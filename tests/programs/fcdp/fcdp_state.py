"""Saves and loads states of sharded training, as its argument says. Prints the result of each training as JSON.

mpirun -n P python fcdp_state.py --nodes-of G WHAT

WHAT is one of:
    save DIR STRATEGY...                  trains, saves into DIR/STRATEGY, and trains again
    load DIR STATE:STRATEGY[:local]...    loads DIR/STATE and trains by the strategy; local: every node reads frozen
                                          parameters
    refuse DIR                            tries everything that must be refused, and prints the errors; the engine
                                          continues
    fail DIR                              an error that is not caught
    leave DIR                             the last rank fails instead of saving
    die DIR                               the last rank is killed while it writes DIR
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from fcdp_train import EXAMPLES, batch, layers
from safetensors.numpy import load_file

from manapy.fcdp import Engine, Topology, state
from manapy.fcdp.engine.unit_state import Placement
from manapy.fcdp.errors import FcdpError
from manapy.fcdp.layers import Layer
from manapy.fcdp.layers.adam import Adam
from manapy.fcdp.layers.numpy_training import initialise, micro_batch, units_of
from manapy.fcdp.state.state_index import OptimizerState

BEFORE, AFTER = 3, 3  # steps
HIDDEN = 33

parser = argparse.ArgumentParser()
parser.add_argument("--nodes-of", type=int, default=2)
parser.add_argument("what", choices=["save", "load", "refuse", "fail", "leave", "die"])
parser.add_argument("directory", type=Path)
parser.add_argument("strategies", nargs="*")


class Training:
    """A model with adapters, frozen weights and a counter of examples as its buffer."""

    def __init__(self, engine: Engine, model: list[Layer]) -> None:
        self.engine, self.model, self.step = engine, model, 0
        self.optimizer = Adam(1e-2)
        self.buffers = {"examples": np.zeros((1, 2), np.int64)}
        self.generators = {"own": np.random.default_rng(engine.topology.rank)}

    def initialise(self) -> None:
        initialise(self.engine, self.model, np.random.default_rng(7))

    def train(self, steps: int) -> dict[str, object]:
        """Train; returns the losses, and other values that a state must restore."""
        topology, losses = self.engine.topology, []
        for _ in range(steps):
            inputs, labels = batch(self.step)
            rows = np.arange(EXAMPLES).reshape(topology.size, -1)[topology.rank]
            losses.append(
                topology.comm.allreduce(micro_batch(self.engine, self.model, inputs[rows], labels[rows], 1 / EXAMPLES))
            )
            self.optimizer.step(self.engine.shards)
            self.engine.updated()
            self.buffers["examples"] += EXAMPLES
            self.step += 1
        random = topology.comm.allgather(float(self.generators["own"].random()))
        return {"losses": losses, "examples": int(self.buffers["examples"][0, 1]), "random": random}

    def save(self, directory: Path, **options: object) -> None:
        state.save(
            self.engine,
            directory,
            optimizer=self.optimizer,
            buffers=self.buffers,
            generators=self.generators,
            extra={"step": self.step, "rate": np.float32(0.5)},
            **options,
        )

    def load(self, directory: Path, same_ranks: bool = True, local: bool = False) -> None:
        generators = self.generators if same_ranks else {}
        extra = state.load(
            self.engine,
            directory,
            optimizer=self.optimizer,
            buffers=self.buffers,
            generators=generators,
            local_weights=local,
        )
        assert extra["rate"] == 0.5
        self.step = extra["step"]


def engine(
    topology: Topology, strategy: str = "fcdp", hidden: int = HIDDEN, adapted: bool = True
) -> tuple[Engine, list[Layer]]:
    model = layers(adapted, hidden)
    return Engine(topology, units_of(model), strategy=strategy), model


def save(topology: Topology, directory: Path, strategies: list[str]) -> list[object]:
    results = []
    for strategy in strategies:
        sharded, model = engine(topology, strategy)
        with sharded:
            training = Training(sharded, model)
            training.initialise()
            training.train(BEFORE)
            training.save(directory / strategy)
            state.export(sharded, directory / f"{strategy}.safetensors")
            everywhere = state.full(sharded, everywhere=True)
            exported = load_file(directory / f"{strategy}.safetensors")
            assert list(everywhere) == [
                f"{unit.name}.{name}" for unit in units_of(model) for name, _ in unit.parameters
            ]
            assert everywhere.keys() == exported.keys() and all(
                (everywhere[name] == exported[name]).all() for name in exported
            )
            assert (state.full(sharded) == {}) == (topology.rank > 0)
            initialise(sharded, model, np.random.default_rng(8))
            state.load_file(sharded, directory / f"{strategy}.safetensors")
            results.append(training.train(AFTER))
    return results


def load(topology: Topology, directory: Path, strategies: list[str]) -> list[object]:
    results = []
    for name, strategy, *local in (each.split(":") for each in strategies):
        saved_on = json.loads((directory / name / "index.json").read_text())["ranks"]
        sharded, model = engine(topology, strategy)
        with sharded:
            training = Training(sharded, model)
            training.initialise()
            training.train(1)
            state.full(sharded)  # caches are up to date, and contain the values that will be replaced
            training.load(directory / name, topology.size == saved_on, local=bool(local))
            frozen = {unit.name for unit in units_of(model) if not unit.trainable}
            assert not local or {sharded.placement()[name] for name in frozen} == {Placement.HOST}
            results.append(training.train(AFTER))
    return results


def refuse(topology: Topology, directory: Path, strategies: list[str]) -> list[object]:
    """Save a good state, break copies of it, and load those; returns the errors of all ranks. The engine must continue
    with its own values."""
    good, errors = directory / "good", {}
    last = topology.rank == topology.size - 1

    def refused(name: str, call: Callable[[], object]) -> None:
        text = "nothing"
        try:
            call()
        except FcdpError as error:
            text = f"{type(error).__name__}: {error}"
        errors[name] = [each.replace(str(directory), "DIR") for each in topology.comm.allgather(text)]

    def broken(name: str, breaking: Callable[[Path], object]) -> None:
        copy = directory / name
        if topology.rank == 0:
            shutil.copytree(good, copy)
            breaking(copy)
        topology.comm.Barrier()
        refused(name, lambda: training.load(copy))

    def without_room(target: Path) -> None:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if last:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            training.save(target)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    def without_package() -> None:
        package = sys.modules.pop("safetensors")
        if last:
            sys.modules["safetensors"] = None  # as if it weren't installed
        try:
            training.save(directory / "no-package")
        finally:
            sys.modules["safetensors"] = package

    def edit(change: Callable[[dict[str, object]], object]) -> Callable[[Path], object]:
        def breaking(copy: Path) -> None:
            record = json.loads((copy / "index.json").read_text())
            change(record)
            (copy / "index.json").write_text(json.dumps(record))

        return breaking

    def within_a_step() -> None:
        sharded.gradients("last")
        try:
            training.save(directory / "within")
        finally:
            sharded.reduce("last")
            sharded.finish()
            sharded.updated()

    sharded, model = engine(topology)
    with sharded:
        training = Training(sharded, model)
        training.initialise()
        training.train(BEFORE)
        training.save(good)
        state.save(sharded, directory / "adapter", trainable=True)
        shard = "shard-00001-of-00002.safetensors"
        broken("truncated", lambda copy: (copy / shard).write_bytes((copy / shard).read_bytes()[:100]))
        broken("missing", lambda copy: (copy / shard).unlink())
        broken("other-content", lambda copy: (copy / shard).write_bytes(b"x" * (copy / shard).stat().st_size))
        broken("foreign", lambda copy: (copy / "index.json").write_text('{"metadata": {}, "weight_map": {}}'))
        broken("text", lambda copy: (copy / "index.json").write_text("[1, 2"))
        broken("later", edit(lambda record: record.update(format=2)))
        broken("hole", edit(lambda record: record["tensors"]["parameter/first.weight"]["pieces"].pop()))
        broken("without-optimizer", edit(lambda record: record.update(optimizer=None)))
        broken("other-optimizer", edit(lambda record: record.update(optimizer={"momentum": 0.9})))
        broken(
            "other-generator",
            edit(lambda record: [each.update(bit_generator="MT19937") for each in record["generators"]["own"]]),
        )
        broken("more-ranks", edit(lambda record: record.update(ranks=3)))
        broken(
            "three-ranks",
            edit(lambda record: record.update(ranks=3, generators={"own": [*record["generators"]["own"], {}]})),
        )
        refused("nowhere", lambda: training.load(directory / "nowhere"))
        refused("adapter", lambda: training.load(directory / "adapter"))
        refused("buffer", lambda: state.load(sharded, good, buffers={"examples": np.zeros(2, np.int64)}))
        refused("generator", lambda: state.load(sharded, good, generators={"other": np.random.default_rng()}))
        refused("exists", lambda: training.save(good))
        refused("no-room", lambda: without_room(directory / "no-room"))
        refused("no-package", without_package)
        refused("not-json", lambda: state.save(sharded, directory / "not-json", extra={1, 2} if last else 0))
        refused("differs", lambda: state.save(sharded, directory / "differs", extra=topology.rank))
        refused("two-names", lambda: state.save(sharded, directory / "two", name_of=lambda unit, parameter: parameter))
        refused("within", within_a_step)
        refused("moments", lambda: state.save(sharded, directory / "moments", optimizer=Shapeless()))
        refused("no-file", lambda: state.load_file(sharded, good / "index.json"))
        refused("export", lambda: state.export(sharded, directory / "nowhere" / "file"))
        state.load(sharded, directory / "adapter", trainable=True)
        state.load(sharded, good, trainable=True)
        after = training.train(AFTER)
    for name, other in {
        "wider": engine(topology, hidden=HIDDEN + 1),
        "without-adapters": engine(topology, adapted=False),
    }.items():
        with other[0]:
            refused(name, lambda other=other: state.load(other[0], good))
    left = sorted(path.name for path in directory.iterdir() if path.name.startswith("tmp-"))
    return [errors, after, left]


class Shapeless:
    """An optimizer whose state isn't sharded."""

    def state(self) -> OptimizerState:
        return OptimizerState({}, {"last": {"first": np.zeros(3)}})

    def load_state(self, state: OptimizerState) -> None:
        raise AssertionError


def fail(topology: Topology, directory: Path, strategies: list[str]) -> list[object]:
    """Load the state of another model."""
    sharded, _ = engine(topology, hidden=HIDDEN + 1)
    with sharded:
        state.load(sharded, directory)
    return []


def leave(topology: Topology, directory: Path, strategies: list[str]) -> list[object]:
    """The last rank fails while the others wait in an agreement."""
    sharded, _ = engine(topology)
    with sharded:
        if topology.rank == topology.size - 1:
            raise ZeroDivisionError("the program's own")
        state.save(sharded, directory)
    return []


def die(topology: Topology, directory: Path, strategies: list[str]) -> list[object]:
    """The last rank's file becomes larger than the limit. This kills the process, because it no longer ignores the
    signal as Python does."""
    sharded, model = engine(topology)
    with sharded:
        training = Training(sharded, model)
        training.initialise()
        if topology.rank == topology.size - 1:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        training.save(directory)
    return []


if __name__ == "__main__":
    given = parser.parse_args()
    here = Topology(ranks_per_node=given.nodes_of)
    done = {"save": save, "load": load, "refuse": refuse, "fail": fail, "leave": leave, "die": die}[given.what](
        here, given.directory, given.strategies
    )
    if here.rank == 0:
        print("RESULT", json.dumps(done), flush=True)
