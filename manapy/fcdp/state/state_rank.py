"""The part of a state that one rank writes, and the part that it reads.

1. A rank writes its own chunk of every unit, also where it keeps more: every element is written once.
2. It reads all that it keeps, into new arrays: those in use are set when all ranks have read all.

No MPI; files are opened elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import StateError
from .state_files import ReadRequest
from .state_index import (
    Index,
    Naming,
    OptimizerState,
    Piece,
    Tensor,
    check_tensor,
    chunk_file,
    optimizer_arrays,
    pieces,
    spans,
)

if TYPE_CHECKING:
    from ..engine.unit_state import Part


@dataclass
class Contribution:
    """arrays: by key, what this rank writes; tensors: by key, all of the state's."""

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)


def collect(
    parts: Sequence[Part],
    number: int,
    optimizer: OptimizerState | None,
    buffers: Mapping[str, np.ndarray],
    name_of: Naming,
) -> Contribution:
    """number: of this rank's chunks. Buffers are written with chunk 0. Raises StateError if names or sizes don't
    fit."""
    mine = Contribution()
    for part in parts:
        where = pieces(part.unit, part.layout)
        for kind, values in _kept(part, optimizer):
            for parameter, shape in part.unit.parameters:
                key = f"{kind}/{name_of(part.unit, parameter)}"
                if key in mine.tensors:
                    raise StateError(f"two parameters of the model are called '{name_of(part.unit, parameter)}'")
                mine.tensors[key] = Tensor(shape, values.dtype.name, where[parameter])
            chunk = part.layout.chunk(number)
            own = values[chunk.start - part.start : chunk.stop - part.start]
            for span in spans(part.unit, chunk.start, chunk.stop):
                mine.arrays[f"{kind}/{name_of(part.unit, span.parameter)}"] = span.of(own)
    for name, buffer in buffers.items():
        file = chunk_file(0, parts[0].layout.ranks)
        mine.tensors[f"buffer/{name}"] = Tensor(
            buffer.shape, buffer.dtype.name, (Piece(file, 0, buffer.size),) if buffer.size else ()
        )
        if number == 0 and buffer.size:
            mine.arrays[f"buffer/{name}"] = np.ascontiguousarray(buffer).reshape(-1)
    return mine


def _kept(part: Part, optimizer: OptimizerState | None) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays that are laid out as the part is, by kind."""
    yield "parameter", part.values
    for name, values in optimizer.arrays.get(part.unit.name, {}).items() if optimizer else ():
        if values.shape != part.values.shape:
            raise StateError(
                f"the optimizer's '{name}' of unit '{part.unit.name}' has shape {values.shape}, the values have "
                f"{part.values.shape}"
            )
        yield f"optimizer/{name}", values


@dataclass
class Reading:
    """values: by unit; arrays: the optimizer's, by unit and name; buffers: by name. They hold what was saved when wants
    are fulfilled."""

    values: dict[str, np.ndarray] = field(default_factory=dict)
    arrays: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    buffers: dict[str, np.ndarray] = field(default_factory=dict)
    wants: list[ReadRequest] = field(default_factory=list)


def prepare(
    index: Index,
    parts: Sequence[Part],
    optimized: Sequence[Part] | None,
    buffers: Mapping[str, np.ndarray],
    name_of: Naming,
    where: Path,
) -> Reading:
    """Prepare to read a state whose parameters are those of the parts, and what an optimizer keeps for some, None
    without an optimizer. Raises StateError if the optimizer's arrays or buffers are missing or others."""
    if optimized is not None and index.optimizer is None:
        raise StateError(f"{where}: there is no state of an optimizer")
    mine = Reading()
    for part in parts:
        mine.values[part.unit.name] = np.zeros_like(part.values)
        mine.wants += _wants("parameter", part, mine.values[part.unit.name], name_of)
    for part in optimized or ():
        for name in optimizer_arrays(index):
            dtype = _dtype(index, f"optimizer/{name}", part, name_of, where)
            if dtype is not None:
                values = np.zeros(part.values.shape, dtype)
                mine.arrays.setdefault(part.unit.name, {})[name] = values
                mine.wants += _wants(f"optimizer/{name}", part, values, name_of)
    for name, buffer in buffers.items():
        check_tensor(index, f"buffer/{name}", buffer.shape, buffer.dtype.name, where)
        mine.buffers[name] = np.zeros(buffer.shape, buffer.dtype)
        mine.wants.append(ReadRequest(f"buffer/{name}", 0, buffer.size, mine.buffers[name].reshape(-1)))
    return mine


def _wants(kind: str, part: Part, values: np.ndarray, name_of: Naming) -> Iterator[ReadRequest]:
    for span in spans(part.unit, part.start, part.start + values.size):
        yield ReadRequest(f"{kind}/{name_of(part.unit, span.parameter)}", span.start, span.stop, span.of(values))


def _dtype(index: Index, kind: str, part: Part, name_of: Naming, where: Path) -> str | None:
    """Return the dtype of what the optimizer keeps for a unit: all of its parameters must have it, or none."""
    keys = {f"{kind}/{name_of(part.unit, parameter)}": shape for parameter, shape in part.unit.parameters}
    dtype = next((index.tensors[key].dtype for key in keys if key in index.tensors), None)
    if dtype is not None:
        for key, shape in keys.items():
            check_tensor(index, key, shape, dtype, where)
    return dtype
