"""A saved state on disc: written under a temporary name, published by one rename.

    tmp-NAME-x3k9f2/    shard-00000-of-00004.safetensors ... (written and fsynced by the ranks), then index.json
    NAME/               the same directory after the rename

1. A directory called NAME with an index is complete: every file is fsynced and has the size that the index says, and
   the index was written last.
2. A failure before the rename leaves nothing under NAME, and an existing NAME is never written to. A killed job leaves
   a temporary directory.
3. All ranks see the directory: it is on a file system that they share.

Files are those of the safetensors package, an optional one: it is imported where it is used. No MPI here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ...core import files
from ...core.errors import explained
from ..errors import StateError
from . import state_index
from .state_index import FILE, Index, Piece, Tensor, stored

# numpy's names of what parameters can be
TYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}


@dataclass(frozen=True)
class ReadRequest:
    """Elements [start, stop) of a tensor are read into target, flat and as large."""

    key: str
    start: int
    stop: int
    target: np.ndarray


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Raise every error of a file as StateError in one line."""
    try:
        from safetensors import SafetensorError
    except ImportError:
        raise StateError(
            "states are written and read by the package safetensors, which is not installed (manapy's extra 'fcdp')"
        ) from None
    try:
        with explained(StateError, path):
            yield
    except SafetensorError as error:
        raise StateError(f"{path}: {error}") from error


def begin(directory: Path) -> Path:
    """Make the temporary directory of a new state, and what is above it. Raises StateError, also if there is something
    under the final name."""
    with _explained(directory):
        if directory.exists():
            raise StateError(f"{directory} exists already")
        temporary = directory.with_name(f"tmp-{directory.name}-{os.urandom(3).hex()}")
        temporary.mkdir(parents=True)
    return temporary


def write(path: Path, tensors: Mapping[str, np.ndarray]) -> int:
    """One file, durable; its size in bytes. tensors: C-contiguous. Raises StateError."""
    with _explained(path):
        from safetensors.numpy import save_file

        path.touch()
        mode = path.stat().st_mode
        save_file({stored(key): tensor for key, tensor in tensors.items()}, path)
        with path.open("rb") as stream:
            os.fchmod(stream.fileno(), mode)  # what umask says: the package makes files that nobody else can read
            os.fsync(stream.fileno())
        return path.stat().st_size


def replace(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """One file of its own: others see the old one or the new. Raises StateError."""
    temporary = path.with_name(f"tmp-{path.name}-{os.urandom(3).hex()}")
    try:
        write(temporary, tensors)
        with _explained(path):
            os.replace(temporary, path)
            files.sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def commit(temporary: Path, directory: Path, index: Index) -> None:
    """Publish. Raises StateError."""
    with _explained(temporary):
        for name, size in index.files.items():
            _check_size(temporary / name, size)
        files.replace_file(temporary / FILE, index.text().encode(), durable=True)
        files.sync(temporary)
        if directory.exists():
            raise StateError(f"{directory} exists already")
        os.rename(temporary, directory)
        files.sync(directory.parent)


def plain(path: Path) -> Index:
    """Return the index of one file of whole parameters, by export or another tool, as if it were a state. Raises
    StateError."""
    with _explained(path):
        from safetensors import safe_open

        tensors = {}
        with safe_open(path, framework="numpy") as stream:
            for name in stream.keys():
                tensor = stream.get_slice(name)
                shape, dtype = tuple(tensor.get_shape()), tensor.get_dtype()
                tensors[f"parameter/{name}"] = Tensor(
                    shape, TYPES.get(dtype, dtype), (Piece(path.name, 0, prod(shape)),)
                )
        return Index(1, "", False, tensors, {path.name: path.stat().st_size})


def read(directory: Path, index: Index, wants: Iterable[ReadRequest]) -> None:
    """Fill targets: one file after the other is open, and only what is wanted of it is read. Raises StateError, also if
    any file of the state is missing or has another size."""
    by_file: dict[str, list[tuple[str, int, int, np.ndarray]]] = {}
    for want in wants:
        for piece, start, stop in index.tensors[want.key].overlapping(want.start, want.stop):
            target = want.target[start - want.start : stop - want.start]
            by_file.setdefault(piece.file, []).append((want.key, start - piece.start, stop - piece.start, target))
    for name, size in index.files.items():
        with _explained(directory / name):
            _check_size(directory / name, size)
    for name, parts in by_file.items():
        with _explained(directory / name):
            _read(directory / name, parts)


def parameters(directory: Path) -> dict[str, np.ndarray]:
    """All parameters of a state by name, for one process: to use a model without the engine. Raises StateError."""
    index = state_index.read(directory)
    prefix = "parameter/"
    found = {
        key.removeprefix(prefix): np.empty(tensor.shape, tensor.dtype)
        for key, tensor in index.tensors.items()
        if key.startswith(prefix)
    }
    read(
        directory,
        index,
        [ReadRequest(f"{prefix}{name}", 0, array.size, array.reshape(-1)) for name, array in found.items()],
    )
    return found


def _read(path: Path, parts: Iterable[tuple[str, int, int, np.ndarray]]) -> None:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as stream:
        for key, start, stop, target in parts:
            found = _flat(stream, stored(key), start, stop)
            if (found.dtype, found.shape) != (target.dtype, target.shape):
                raise StateError(f"{path}: '{key}' is not what the index says")
            target[:] = found


def _flat(stream: Any, name: str, start: int, stop: int) -> np.ndarray:
    """Elements [start, stop) of a tensor, which isn't flat itself if another tool has written it: as few rows as
    possible are read."""
    tensor = stream.get_slice(name)
    shape = tensor.get_shape()
    if not shape:
        return stream.get_tensor(name).reshape(-1)[start:stop]
    row = prod(shape[1:])
    first = start // row
    return tensor[first : -(-stop // row)].reshape(-1)[start - first * row : stop - first * row]


def _check_size(path: Path, size: int) -> None:
    actual = path.stat().st_size
    if actual != size:
        raise StateError(f"{path} has {actual} bytes instead of {size}")
