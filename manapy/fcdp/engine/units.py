"""Units: parameters that are gathered and reduced together, as one flat array.

1. A unit is all trainable or all frozen, and of one type. It may be gathered in another, narrower type than the one in
   which it is updated and its gradients are summed.
2. Its parameters lie one after the other, in the order given, C order, and zeros behind them up to P chunks of one size
   (P = N nodes of g ranks).
3. The chunk of (node, local) is number local * N + node. So the N chunks that ranks of one local number hold are
   neighbours: the rank's slice of the unit arrives contiguously from the other nodes, and the g slices make the unit.

No MPI here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import numpy as np

from ..errors import SetupError

Range = slice  # Layout has a member of that name


@dataclass(frozen=True)
class Unit:
    """name: unique in the model; parameters: (name, shape) in order; dtype: of all of them; gathered_as: another type,
    in which they travel and are used."""

    name: str
    parameters: tuple[tuple[str, tuple[int, ...]], ...]
    trainable: bool = True
    dtype: str = "float32"
    gathered_as: str | None = None

    @property
    def gathered(self) -> str:
        """The type in which the unit is gathered."""
        return self.gathered_as or self.dtype

    @property
    def size(self) -> int:
        """Elements, without padding."""
        return sum(prod(shape) for _, shape in self.parameters)

    def views(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        """The parameters in a flat array of at least `size` elements: no copies."""
        views, start = {}, 0
        for name, shape in self.parameters:
            views[name] = flat[start : start + prod(shape)].reshape(shape)
            start += prod(shape)
        return views


@dataclass(frozen=True)
class Layout:
    """Where the elements of a unit lie on N nodes of g ranks. All figures are elements."""

    size: int
    nodes: int
    ranks_per_node: int

    @property
    def ranks(self) -> int:
        """Number of ranks of all nodes, which is also the number of chunks of the unit."""
        return self.nodes * self.ranks_per_node

    @property
    def shard(self) -> int:
        """Number of elements of one of all ranks."""
        return -(-self.size // self.ranks)

    @property
    def slice(self) -> int:
        """Number of elements of one rank of a node."""
        return self.nodes * self.shard

    @property
    def padded(self) -> int:
        """The unit with its padding."""
        return self.ranks_per_node * self.slice

    def slice_of(self, local: int) -> Range:
        """Return the range in the unit of a rank of the node."""
        return slice(local * self.slice, (local + 1) * self.slice)

    def shard_of(self, node: int) -> Range:
        """Return the range of a node's shard in the slice."""
        return slice(node * self.shard, (node + 1) * self.shard)

    def chunk(self, number: int) -> Range:
        """The chunk of that number (rule 3), in the unit."""
        return slice(number * self.shard, (number + 1) * self.shard)


def check(units: Iterable[Unit]) -> None:
    """Raise SetupError if units can't be used."""
    seen: set[str] = set()
    for unit in units:
        if unit.name in seen:
            raise SetupError(f"two units are called '{unit.name}'")
        seen.add(unit.name)
        if unit.size == 0:
            raise SetupError(f"unit '{unit.name}' has no parameters")
        if len(dict(unit.parameters)) != len(unit.parameters):
            raise SetupError(f"two parameters of unit '{unit.name}' have the same name")
        for dtype in (unit.dtype, unit.gathered):
            if not _is_floating(dtype):
                raise SetupError(f"unit '{unit.name}' is of type {dtype}: parameters must be floating-point numbers")
    if not seen:
        raise SetupError("there are no units")


def _is_floating(dtype: str) -> bool:
    """A kind of numpy's doesn't say it: bfloat16 has none."""
    try:
        return np.dtype(dtype).kind not in "cO" and bool(np.array(0.5).astype(dtype) == 0.5)
    except TypeError:  # numpy knows no such type
        return False


def difference(mine: tuple[Unit, ...], other: tuple[Unit, ...]) -> str | None:
    """The first difference between two ranks' units, as "here ..., there ..."; None if they are equal."""
    if len(mine) != len(other):
        return f"{len(mine)} units here, {len(other)} there"
    for here, there in zip(mine, other, strict=True):
        if here.name != there.name:
            return f"unit '{here.name}' here, '{there.name}' there"
        if here.parameters != there.parameters:
            return f"unit '{here.name}': {_first_difference(here, there)}"
        if here != there:
            return f"unit '{here.name}': {_kind(here)} here, {_kind(there)} there"
    return None


def _first_difference(here: Unit, there: Unit) -> str:
    if len(here.parameters) != len(there.parameters):
        return f"{len(here.parameters)} parameters here, {len(there.parameters)} there"
    pairs = zip(here.parameters, there.parameters, strict=True)
    (name, shape), (other_name, other_shape) = next(pair for pair in pairs if pair[0] != pair[1])
    return f"{name} of shape {shape} here, {other_name} of shape {other_shape} there"


def _kind(unit: Unit) -> str:
    return (
        f"{'trainable' if unit.trainable else 'frozen'} "
        f"{unit.dtype}{f' gathered as {unit.gathered}' if unit.gathered_as else ''}"
    )
