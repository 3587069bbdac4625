"""Adam over flat arrays (Kingma and Ba 2015, algorithm 1). It is elementwise, so each rank can update its shards alone.
No MPI here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from ..errors import StateError
from ..state.state_index import OptimizerState

if TYPE_CHECKING:
    from ..engine.unit_state import Shard


class Adam:
    """State per unit, made at its first step."""

    def __init__(self, rate: float = 1e-3, decay: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8) -> None:
        self._rate, self._decay, self._epsilon = rate, decay, epsilon
        self._steps = 0
        self._moments: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def step(self, shards: Iterable[Shard]) -> None:
        """Change values by gradients."""
        self._steps += 1
        first_decay, second_decay = self._decay
        rate = self._rate * np.sqrt(1 - second_decay**self._steps) / (1 - first_decay**self._steps)
        for shard in shards:
            if shard.unit not in self._moments:
                self._moments[shard.unit] = np.zeros_like(shard.values), np.zeros_like(shard.values)
            first, second = self._moments[shard.unit]
            first += (1 - first_decay) * (shard.gradient - first)
            second += (1 - second_decay) * (shard.gradient**2 - second)
            shard.values[:] -= (rate * first / (np.sqrt(second) + self._epsilon)).astype(shard.values.dtype)

    def state(self) -> OptimizerState:
        """Return the state for manapy.fcdp.state."""
        return OptimizerState(
            {"steps": self._steps},
            {unit: {"first": first, "second": second} for unit, (first, second) in self._moments.items()},
        )

    def load_state(self, state: OptimizerState) -> None:
        """Go on from there. Raises StateError if it is another optimizer's."""
        if set(state.scalars) != {"steps"} or any(
            set(arrays) != {"first", "second"} for arrays in state.arrays.values()
        ):
            raise StateError("the optimizer's state isn't one of Adam")
        self._steps = state.scalars["steps"]
        self._moments = {unit: (arrays["first"], arrays["second"]) for unit, arrays in state.arrays.items()}
