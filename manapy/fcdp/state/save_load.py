"""Saves and loads the state of a training: parameters, frozen ones too, optimizer state, buffers, generators of random
numbers, and what the program adds.

    save(engine, "states/step-100", optimizer=optimizer, generators={"data": random}, extra={"step": 100})
    extra = load(engine, "states/step-100", optimizer=optimizer, generators={"data": random})

1. All functions are collective, inside `with engine:`, between steps, with the same arguments on all ranks except for
   buffers and generators, which are each rank's own.
2. Each rank writes its own chunk of every unit, under every strategy; where nodes hold the same slices, each still
   writes another part. So all of it is written once.
3. Each rank reads only what it keeps, wherever it lies: any number of ranks, any strategy and any units load what any
   others have saved.
4. An error of one rank is raised on all, and changes nothing: no directory is published, no value is loaded. The engine
   goes on. Only local weights are loaded unit by unit.
5. With the same ranks and strategy, training continues bit by bit as without the interruption.

state_index.py describes the content of a state, state_rank.py a rank's part of it, state_files.py the files.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from ...core.files import discard
from ..engine.collective_errors import agreed
from ..engine.engine import Engine
from ..engine.traffic import Phase
from ..engine.unit_state import Part
from ..errors import StateError
from . import state_files as files, state_index
from .state_index import Index, Naming, OptimizerState, chunk_file, dotted
from .state_rank import collect, prepare

T = TypeVar("T")


class Optimizer(Protocol):
    """The part of an optimizer that save and load need."""

    def state(self) -> OptimizerState:
        """Its own arrays, not copies."""

    def load_state(self, state: OptimizerState) -> None:
        """Go on from there; the arrays are the optimizer's from now on. Raises StateError, and changes nothing, if that
        is no state of such an optimizer."""


def save(
    engine: Engine,
    directory: str | os.PathLike[str],
    *,
    optimizer: Optimizer | None = None,
    buffers: Mapping[str, np.ndarray] | None = None,
    generators: Mapping[str, np.random.Generator] | None = None,
    extra: Any = None,
    trainable: bool = False,
    name_of: Naming = dotted,
) -> None:
    """Write a new directory, on a file system that all ranks see; it appears when it is complete.

    buffers: arrays that aren't sharded, by name; rank 0's are saved. generators: numpy's, by name. extra: anything
    JSON-able. trainable: only trainable parameters, an adapter's say. name_of: what a parameter is called in the model.
    Raises on all ranks StateError if something can't be written or the directory exists, OrderError within a step.
    """
    target = Path(directory)
    number = engine.topology.local * engine.topology.nodes + engine.topology.node_index  # of this rank's chunks
    kept = optimizer.state() if optimizer is not None else None
    mine = agreed(engine, lambda: collect(_parts(engine, trainable), number, kept, buffers or {}, name_of))
    common = agreed(
        engine,
        lambda: _json({"optimizer": kept.scalars if kept else None, "extra": extra, "names": sorted(generators or {})}),
    )
    states = {name: json.loads(_json(generator.bit_generator.state)) for name, generator in (generators or {}).items()}
    told = engine.allgather((hashlib.blake2b(common.encode()).hexdigest(), states))
    different = next((rank for rank, (digest, _) in enumerate(told) if digest != told[0][0]), None)
    if different is not None:
        raise StateError(
            f"{target}: extra, the optimizer's scalars or the generators' names are not the same on ranks 0 and "
            f"{different}"
        )
    temporary: Path | None = None
    try:
        temporary = engine.allgather(agreed(engine, lambda: _on_first(engine, lambda: files.begin(target))))[0]
        name = chunk_file(number, engine.topology.size)
        size = agreed(engine, lambda: files.write(temporary / name, mine.arrays))
        sizes = dict(sorted(engine.allgather((name, size))))
        by_name = {name: [each[name] for _, each in told] for name in states}
        record = json.loads(common)
        index = Index(
            engine.topology.size,
            engine.strategy.name,
            trainable,
            mine.tensors,
            sizes,
            record["optimizer"],
            by_name,
            record["extra"],
        )
        agreed(engine, lambda: _on_first(engine, lambda: files.commit(temporary, target, index)))
    except BaseException:
        if temporary is not None and engine.topology.rank == 0:
            discard(temporary)
        raise


def load(
    engine: Engine,
    directory: str | os.PathLike[str],
    *,
    optimizer: Optimizer | None = None,
    buffers: Mapping[str, np.ndarray] | None = None,
    generators: Mapping[str, np.random.Generator] | None = None,
    trainable: bool = False,
    local_weights: bool = False,
    name_of: Naming = dotted,
) -> Any:
    """Set the engine's parameters and what else is given, in place, to what was saved; returns extra.

    trainable: only trainable parameters; those that are frozen stay. local_weights: every node reads frozen parameters
    by itself, from a copy of the directory on its own disk if it likes, so that strategies that keep slices never send
    any. generators: those of the same rank; with another number of ranks they can be restored only if all ranks had the
    same. Takes as much host memory again as the rank keeps. Raises on all ranks StateError if the directory holds no
    complete state, or one of another model (the first difference), SetupError if nodes have different weights,
    OrderError within a step.
    """
    source = Path(directory)
    index = agreed(engine, lambda: state_index.read(source))
    parts = agreed(engine, lambda: _same_model(engine, index, trainable, name_of, source))
    own = _without_frozen(parts) if local_weights else parts
    optimized = parts if optimizer is not None else None
    mine = agreed(engine, lambda: prepare(index, own, optimized, buffers or {}, name_of, source))
    agreed(engine, lambda: files.read(source, index, mine.wants))
    states = agreed(engine, lambda: _states(engine, index, generators or {}, source))
    if local_weights:
        _load_frozen(engine, source, index, parts, name_of)
    if optimizer is not None:
        agreed(engine, lambda: optimizer.load_state(OptimizerState(dict(index.optimizer or {}), mine.arrays)))
    for part in own:
        engine.load_part(part, mine.values[part.unit.name])
    for name, buffer in (buffers or {}).items():
        buffer[...] = mine.buffers[name]
    for name, generator in (generators or {}).items():
        generator.bit_generator.state = states[name]
    return index.extra


def whole(engine: Engine, *, trainable: bool = False, name_of: Naming = dotted) -> Iterator[tuple[str, np.ndarray]]:
    """Every parameter with its name, on every rank, unit by unit: all ranks go through all of it. An array is valid
    until the next one is asked for.

    Needs room for one gathered unit on the device. What it sends is counted as state; caches that are out of date are
    renewed by the way. Raises OrderError within a step.
    """
    for part in _parts(engine, trainable):
        parameters = engine.gather(part.unit.name, Phase.STATE)
        try:
            for parameter, array in parameters.items():
                yield name_of(part.unit, parameter), array
        finally:
            engine.release(part.unit.name)


def full(
    engine: Engine, *, everywhere: bool = False, trainable: bool = False, name_of: Naming = dotted
) -> dict[str, np.ndarray]:
    """All parameters by name, in host memory: on rank 0, or everywhere; elsewhere an empty dictionary."""
    kept = everywhere or engine.topology.rank == 0
    found = {}
    for name, array in whole(engine, trainable=trainable, name_of=name_of):
        if kept:
            found[name] = array.copy()
    return found


def export(engine: Engine, file: str | os.PathLike[str], *, trainable: bool = False, name_of: Naming = dotted) -> None:
    """Write all parameters into one file of safetensors, as other tools read it; what was there is replaced when the
    new one is complete.

    Rank 0 holds all of them in its memory meanwhile. Raises StateError on all ranks, OrderError within a step.
    """
    target = Path(file)
    parameters = full(engine, trainable=trainable, name_of=name_of)
    agreed(engine, lambda: _on_first(engine, lambda: files.replace(target, parameters)))


def load_file(
    engine: Engine,
    file: str | os.PathLike[str],
    *,
    trainable: bool = False,
    local_weights: bool = False,
    name_of: Naming = dotted,
) -> None:
    """Set the engine's parameters to those of one file of safetensors, from export or another tool. Each rank reads
    only what it keeps, whole rows of it.

    local_weights: as in load(); the file may have another path on each node. Raises StateError on all ranks if it isn't
    that, or has other parameters (the first difference), SetupError if nodes have different weights, OrderError within
    a step.
    """
    source = Path(file)
    index = agreed(engine, lambda: files.plain(source))
    parts = agreed(engine, lambda: _same_model(engine, index, trainable, name_of, source))
    own = _without_frozen(parts) if local_weights else parts
    mine = prepare(index, own, None, {}, name_of, source)
    agreed(engine, lambda: files.read(source.parent, index, mine.wants))
    if local_weights:
        _load_frozen(engine, source.parent, index, parts, name_of)
    for part in own:
        engine.load_part(part, mine.values[part.unit.name])


def _without_frozen(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if part.unit.trainable]


def _load_frozen(engine: Engine, source: Path, index: Index, parts: Sequence[Part], name_of: Naming) -> None:
    """Each rank reads its slice, of one unit after the other."""
    for part in parts:
        if not part.unit.trainable:

            def read(start: int, stop: int, part: Part = part) -> np.ndarray:
                wanted = prepare(
                    index,
                    [replace(part, start=start, values=np.zeros(stop - start, part.unit.dtype))],
                    None,
                    {},
                    name_of,
                    source,
                )
                files.read(source, index, wanted.wants)
                return wanted.values[part.unit.name]

            engine.load_slice(part.unit.name, read)


# ---- in agreement


def _on_first(engine: Engine, job: Callable[[], T]) -> T | None:
    return job() if engine.topology.rank == 0 else None


def _parts(engine: Engine, trainable: bool) -> list[Part]:
    return [part for part in engine.parts() if part.unit.trainable or not trainable]


def _same_model(engine: Engine, index: Index, trainable: bool, name_of: Naming, source: Path) -> list[Part]:
    """The parts to load, all of which are in the state."""
    parts = _parts(engine, trainable)
    units = [part.unit for part in parts]
    state_index.check_parameters(index, units, name_of, source)
    if not trainable:
        state_index.check_surplus(index, units, name_of, source)
    return parts


def _json(value: Any) -> str:
    try:
        return json.dumps(value, default=_plain)
    except (TypeError, ValueError) as error:
        raise StateError(f"extra, or the optimizer's scalars, can't be written as JSON: {error}") from None


def _plain(value: Any) -> Any:
    """numpy's numbers, and the arrays in states of generators."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON")


def _states(
    engine: Engine, index: Index, generators: Mapping[str, np.random.Generator], source: Path
) -> dict[str, Any]:
    """Return the states of this rank's generators."""
    found = {}
    for name, generator in generators.items():
        if name not in index.generators:
            raise StateError(f"{source}: there is no generator '{name}'")
        states = index.generators[name]
        if index.ranks == engine.topology.size:
            found[name] = states[engine.topology.rank]
        elif all(state == states[0] for state in states):
            found[name] = states[0]
        else:
            raise StateError(
                f"{source}: generator '{name}' was in different states on {index.ranks} ranks, so there is none for "
                f"{engine.topology.size}: load without it"
            )
        kind = generator.bit_generator.state["bit_generator"]
        if found[name]["bit_generator"] != kind:
            raise StateError(f"{source}: generator '{name}' is a {found[name]['bit_generator']} there, a {kind} here")
    return found
