"""The content of a saved state: tensors, each cut into pieces in files, and an index of the pieces.

1. A tensor is known by its key: parameter/NAME; optimizer/ARRAY/NAME, elementwise state that belongs to a parameter;
   buffer/NAME. Neither units nor padding are in a state, nor where ranks sat: so it can be loaded by other units, ranks
   and strategies.
2. Pieces are ranges of the flat tensor (C order), in order, and together all of it. In files, parameters have their
   names, other tensors their keys.
3. Everything in elements; sizes of files in bytes.

No MPI, and no files but the index.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ...core.files import reading
from ..engine.units import Layout, Unit
from ..errors import StateError

MAGIC = "manapy sharded state"
FORMAT = 1
FILE = "index.json"

Naming = Callable[[Unit, str], str]  # a parameter's name in the model, from its unit and its name in there


def dotted(unit: Unit, parameter: str) -> str:
    """UNIT.PARAMETER"""
    return f"{unit.name}.{parameter}"


@dataclass(frozen=True)
class OptimizerState:
    """scalars: JSON-able, the same on all ranks. arrays: by unit and name, flat and as large as the unit's
    Shard.values: elementwise state, such as moments."""

    scalars: dict[str, Any]
    arrays: Mapping[str, Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Span:
    """Elements [start, stop) of a parameter, which lie from element `at` on in a flat array."""

    parameter: str
    shape: tuple[int, ...]
    start: int
    stop: int
    at: int

    def of(self, flat: np.ndarray) -> np.ndarray:
        """These elements of the array: no copy."""
        return flat[self.at : self.at + self.stop - self.start]


@dataclass(frozen=True)
class Piece:
    """Elements [start, stop) of a tensor, in a file."""

    file: str
    start: int
    stop: int


@dataclass(frozen=True)
class Tensor:
    """dtype: numpy's name."""

    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[Piece, ...]

    def overlapping(self, start: int, stop: int) -> Iterator[tuple[Piece, int, int]]:
        """Pieces that [start, stop) touches, in order, and what of the tensor each has of that."""
        for piece in self.pieces:
            if piece.start < stop and start < piece.stop:
                yield piece, max(start, piece.start), min(stop, piece.stop)


@dataclass(frozen=True)
class Index:
    """index.json. trainable: frozen parameters are left out. optimizer: its scalars, None if it wasn't saved.
    generators: by name, the states on each rank."""

    ranks: int
    strategy: str
    trainable: bool
    tensors: Mapping[str, Tensor]
    files: Mapping[str, int] = field(default_factory=dict)
    optimizer: dict[str, Any] | None = None
    generators: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    extra: Any = None

    def text(self) -> str:
        """Return the index as text for its file. Pieces are lists of file, start and stop. There are as many as tensors
        times ranks."""
        tensors = {
            key: {
                "shape": tensor.shape,
                "dtype": tensor.dtype,
                "pieces": [(piece.file, piece.start, piece.stop) for piece in tensor.pieces],
            }
            for key, tensor in self.tensors.items()
        }
        return json.dumps({"magic": MAGIC, "format": FORMAT, **vars(self), "tensors": tensors}) + "\n"


def spans(unit: Unit, start: int, stop: int) -> Iterator[Span]:
    """Yield the part of each parameter that lies in [start, stop) of the flat unit; nothing for padding."""
    begin = 0
    for name, shape in unit.parameters:
        end = begin + prod(shape)
        first, last = max(start, begin), min(stop, end)
        if first < last:
            yield Span(name, shape, first - begin, last - begin, first - start)
        begin = end


def chunk_file(number: int, ranks: int) -> str:
    """Return the name of the file that has the chunk of this number of each unit (rule 3 of units.py)."""
    return f"shard-{number:05d}-of-{ranks:05d}.safetensors"


def stored(key: str) -> str:
    """Return the name of the tensor in files."""
    return key.removeprefix("parameter/")


def pieces(unit: Unit, layout: Layout) -> dict[str, tuple[Piece, ...]]:
    """Return the pieces that ranks write, each of its own chunk, by parameter."""
    found: dict[str, list[Piece]] = {name: [] for name, _ in unit.parameters}
    for number in range(layout.ranks):
        chunk = layout.chunk(number)
        for span in spans(unit, chunk.start, chunk.stop):
            found[span.parameter].append(Piece(chunk_file(number, layout.ranks), span.start, span.stop))
    return {name: tuple(each) for name, each in found.items()}


def read(directory: Path) -> Index:
    """Raises StateError if there is none, or it isn't one, or is damaged."""
    file = directory / FILE
    with reading(file, FORMAT, StateError, "not the index of a sharded state") as record:
        if record["magic"] != MAGIC:
            raise StateError(f"{file}: not the index of a sharded state")
        tensors = {key: _tensor(entry) for key, entry in dict(record["tensors"]).items()}
        index = Index(
            ranks=int(record["ranks"]),
            strategy=str(record["strategy"]),
            trainable=bool(record["trainable"]),
            tensors=tensors,
            files={str(name): int(size) for name, size in dict(record["files"]).items()},
            optimizer=record["optimizer"],
            generators=dict(record["generators"]),
            extra=record["extra"],
        )
    if any(len(states) != index.ranks for states in index.generators.values()):
        raise StateError(f"{file}: damaged: the generators are not those of {index.ranks} ranks")
    for key, tensor in tensors.items():
        if not _complete(tensor, index.files):
            raise StateError(f"{file}: damaged: the pieces of '{key}' are not all of it")
    return index


def _tensor(entry: dict[str, Any]) -> Tensor:
    pieces = tuple(Piece(str(file), int(start), int(stop)) for file, start, stop in entry["pieces"])
    return Tensor(tuple(int(extent) for extent in entry["shape"]), str(entry["dtype"]), pieces)


def _complete(tensor: Tensor, files: Iterable[str]) -> bool:
    end = 0
    for piece in tensor.pieces:
        if piece.start != end or piece.stop <= piece.start or piece.file not in files:
            return False
        end = piece.stop
    return end == prod(tensor.shape)


def check_parameters(index: Index, units: Iterable[Unit], name_of: Naming, where: Path) -> None:
    """Raise StateError with the first parameter, in the order of units, that the state lacks or has otherwise."""
    for unit in units:
        for parameter, shape in unit.parameters:
            check_tensor(index, f"parameter/{name_of(unit, parameter)}", shape, np.dtype(unit.dtype).name, where)


def check_surplus(index: Index, units: Iterable[Unit], name_of: Naming, where: Path) -> None:
    """Raise StateError with the first parameter that the state has in addition."""
    known = {f"parameter/{name_of(unit, parameter)}" for unit in units for parameter, _ in unit.parameters}
    other = next((key for key in index.tensors if key.startswith("parameter/") and key not in known), None)
    if other:
        raise StateError(f"{where}: state of another model: {_words(other)} is not in this model")


def check_tensor(index: Index, key: str, shape: tuple[int, ...], dtype: str, where: Path) -> None:
    """Raise StateError if it isn't there, or has another shape or type."""
    tensor = index.tensors.get(key)
    if tensor is None:
        hint = " (it was saved with trainable=True: without frozen parameters)" if index.trainable else ""
        raise StateError(f"{where}: there is no {_words(key)}{hint}")
    if (tensor.shape, tensor.dtype) != (tuple(shape), dtype):
        raise StateError(
            f"{where}: {_words(key)} is {tensor.dtype} of shape {tensor.shape} there, {dtype} of shape {tuple(shape)} "
            "here"
        )


def optimizer_arrays(index: Index) -> list[str]:
    """The names of what the optimizer keeps for parameters."""
    return list(dict.fromkeys(key.split("/", 2)[1] for key in index.tensors if key.startswith("optimizer/")))


def _words(key: str) -> str:
    kind, *rest = key.split("/")
    if kind == "optimizer":
        return f"optimizer's '{rest[0]}' of parameter '{'/'.join(rest[1:])}'"
    return f"{kind} '{'/'.join(rest)}'"
