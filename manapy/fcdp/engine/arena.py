"""The device's memory that training accounts for.

1. All memory on the device is taken from the arena and given back to it: shards, caches, gathered units, gradients,
   activations.
2. used never exceeds limit. If something does not fit, the reclaimers give back memory, one after the other, until it
   fits; if they cannot, BudgetError is raised.
3. Only the program's thread takes and frees, in the order of its calls. So the memory in use does not depend on the
   speed of the network, except for units that a front end has copied ahead (copies_ahead of engine.py), which may
   arrive earlier or later.

On a CPU the arena is numpy memory under a limit, so that tests of device memory need no device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ...core.units import amount
from ..errors import BudgetError

EMPTY = np.empty(0, np.uint8)


class Place(Protocol):
    """The front end's memory for a gathered unit, for one block at a time."""

    def take(self) -> np.ndarray:
        """All of its bytes, contents undefined; memory of the host. Or, read-only, the unit in the node's window
        (node_window.py), from where the place copies by itself."""

    def filled(self) -> None:
        """The array of take() has its contents. May be called on another thread than the rest."""

    def settle(self) -> None:
        """Wait until nothing is copied from the node's window. Called on another thread than the rest."""

    def give_back(self) -> None:
        """The array of take() isn't used any more."""


@dataclass
class ArenaBlock:
    """Memory taken. array: flat, contents undefined; empty for memory that the caller has elsewhere and only accounts
    for."""

    nbytes: int
    arena: Arena
    array: np.ndarray = field(default_factory=lambda: EMPTY)
    place: Place | None = None

    def filled(self) -> None:
        """Its contents are complete."""
        if self.place is not None:
            self.place.filled()

    def free(self) -> None:
        """Give the memory back. A second call does nothing."""
        self.array = EMPTY
        if self.place is not None:
            self.place.give_back()
            self.place = None
        self.arena.give_back(self)


class Arena:
    """limit: bytes, None for no limit; used, peak: bytes. reclaimers: each gives something back and says so, or has
    nothing to give; the first are asked first."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.reclaimers: list[Callable[[], bool]] = []
        self.used = 0
        self.peak = 0

    @property
    def utilisation(self) -> float:
        """used / limit; 0 without a limit."""
        return self.used / self.limit if self.limit else 0.0

    def fits(self, nbytes: int) -> bool:
        """Return whether so much fits now."""
        return self.limit is None or self.used + nbytes <= self.limit

    def hold(self, nbytes: int, what: str) -> ArenaBlock:
        """Account for memory that lies elsewhere. Raises BudgetError with `what` and how much is missing."""
        while not self.fits(nbytes) and any(reclaim() for reclaim in self.reclaimers):
            pass
        if not self.fits(nbytes):
            assert self.limit is not None
            missing = self.used + nbytes - self.limit
            raise BudgetError(
                f"{what} needs {amount(nbytes)} of the device, {amount(self.used)} of {amount(self.limit)} are in use: "
                f"{amount(missing)} are missing"
            )
        self.used += nbytes
        self.peak = max(self.peak, self.used)
        return ArenaBlock(nbytes, self)

    def take(self, elements: int, dtype: str, what: str, place: Place | None = None) -> ArenaBlock:
        """A flat array, in the place given or in new memory."""
        block = self.hold(elements * np.dtype(dtype).itemsize, what)
        block.place = place
        block.array = place.take().view(dtype) if place is not None else np.empty(elements, dtype)
        return block

    def give_back(self, block: ArenaBlock) -> None:
        """Take memory back; called by ArenaBlock.free."""
        self.used -= block.nbytes
        block.nbytes = 0
