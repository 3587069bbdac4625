"""The device memory that a strategy needs, computed before anything is allocated: permanent memory, and the memory of
one unit in use.

Permanent: the rank's values and, for trainable units, their gradients; the slice, if the strategy keeps it on the
device; one slice to receive gradients into. In use: a gathered unit and those gathered ahead of it, and the whole
gradient of one of them. The program's activations are not included.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core.units import amount
from ..errors import BudgetError
from .strategy import Keep, Strategy
from .units import Layout, Unit


def owned(layout: Layout, strategy: Strategy) -> int:
    """Elements of a unit that this rank's optimizer updates."""
    return layout.slice if strategy.keep is Keep.SHARD else layout.shard


def scratch(units: Sequence[Unit], layouts: Sequence[Layout]) -> int:
    """Bytes to receive gradients into: whole elements of each type."""
    sizes = [(layout.slice, _itemsize(unit)) for unit, layout in zip(units, layouts, strict=True) if unit.trainable]
    longest = max((itemsize for _, itemsize in sizes), default=1)
    return -(-max((elements * itemsize for elements, itemsize in sizes), default=0) // longest) * longest


def resident(units: Sequence[Unit], layouts: Sequence[Layout], strategy: Strategy) -> int:
    """Bytes that stay on the device of one rank."""
    total = scratch(units, layouts)
    for unit, layout in zip(units, layouts, strict=True):
        total += owned(layout, strategy) * (2 if unit.trainable else 1) * _itemsize(unit)
        if strategy.keep is Keep.DEVICE:
            total += layout.slice * np.dtype(unit.gathered).itemsize
    return total


def working(units: Sequence[Unit], layouts: Sequence[Layout], index: int, ahead: int) -> int:
    """Bytes while unit `index` is in use and `ahead` further ones are gathered: those behind it in the backward pass,
    which computes its gradient, too."""
    full = [layout.padded * np.dtype(unit.gathered).itemsize for unit, layout in zip(units, layouts, strict=True)]
    forward = sum(full[index : index + ahead + 1])
    backward = sum(full[max(0, index - ahead) : index + 1]) + (
        layouts[index].padded * _itemsize(units[index]) if units[index].trainable else 0
    )
    return max(forward, backward)


def deepest(
    units: Sequence[Unit],
    layouts: Sequence[Layout],
    strategy: Strategy,
    limit: int | None,
    wanted: int,
    *,
    copies_ahead: bool = False,
) -> int:
    """How many units can be gathered ahead: `wanted` or fewer, as the limit allows. copies_ahead: what is in the host's
    memory is brought to the device ahead."""
    if strategy.keep is Keep.HOST and not copies_ahead:
        return 0  # what is fetched ahead is in the host's memory
    if limit is None:
        return wanted
    stays = resident(units, layouts, strategy)
    fitting = (
        ahead
        for ahead in range(wanted, 0, -1)
        if all(stays + working(units, layouts, index, ahead) <= limit for index in range(len(units)))
    )
    return next(fitting, 0)


def check(units: Sequence[Unit], layouts: Sequence[Layout], strategy: Strategy, limit: int | None) -> None:
    """Raise BudgetError, with the unit that needs most and how much is missing, if the units can't be used one at a
    time."""
    if limit is None:
        return
    stays = resident(units, layouts, strategy)
    needs, index = max((working(units, layouts, index, 0), -index) for index in range(len(units)))
    missing = stays + needs - limit
    if missing > 0:
        raise BudgetError(
            f"unit '{units[-index].name}' needs {amount(needs)} of the device beside {amount(stays)} of shards and "
            f"caches, the budget is {amount(limit)}: {amount(missing)} are missing"
        )


def _itemsize(unit: Unit) -> int:
    """Return the size of an element that the optimizer updates, which is also that of a gradient."""
    return np.dtype(unit.dtype).itemsize
