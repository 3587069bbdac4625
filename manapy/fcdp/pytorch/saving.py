"""What state.py saves of a PyTorch training: a torch optimizer over shards, torch's generator, buffers.

1. What an optimizer keeps for a parameter is as large as its piece (moments), or a number (steps). Settings of parameter groups are saved, too: a scheduler's rate.
2. Arrays are saved per shard, numbers and settings as scalars, which are the same on all ranks: so any number of ranks can go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from ..errors import StateError
from ..state_index import OptimizerState
from .optimizer import Piece


class SavedOptimizer:
    """A torch optimizer, as state.py wants it."""

    def __init__(self, optimizer: Optimizer, pieces: Sequence[Piece]) -> None:
        self._optimizer = optimizer
        self._pieces = pieces

    def state(self) -> OptimizerState:
        """A copy. Raises StateError if something kept for a parameter is neither elementwise nor a number."""
        numbers: dict[str, dict[str, Any]] = {}
        arrays: dict[str, dict[str, np.ndarray]] = {}
        for piece in self._pieces:
            for key, value in self._optimizer.state.get(piece.values, {}).items():
                if not isinstance(value, torch.Tensor):
                    numbers.setdefault(piece.name, {})[key] = value
                elif value.dim() == 0:
                    numbers.setdefault(piece.name, {})[key] = {"tensor": value.item(), "dtype": str(value.dtype).removeprefix("torch.")}
                elif value.shape == piece.values.shape:
                    array = value.detach().numpy()
                    piece.of(arrays.setdefault(piece.unit, {}).setdefault(key, np.zeros(piece.size, array.dtype)))[:] = array
                else:
                    raise StateError(f"the optimizer keeps '{key}' of shape {tuple(value.shape)} for {piece.name}: only elementwise state and numbers can be saved")
        return OptimizerState({"kind": self._kind, "groups": self._groups(), "numbers": numbers}, arrays)

    def load_state(self, state: OptimizerState) -> None:
        """Go on from there. Raises StateError if it is another optimizer's, or has other parameter groups."""
        kind, groups = state.scalars.get("kind"), state.scalars.get("groups", [])
        if kind != self._kind or len(groups) != len(self._groups()):
            raise StateError(f"the state is one of {kind} with {len(groups)} parameter groups, the optimizer is {self._kind} with {len(self._groups())}")
        by_id = {id(piece.values): piece for piece in self._pieces}
        entries = {}
        ours = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        for number, parameter in enumerate(ours):  # torch numbers parameters so
            piece = by_id[id(parameter)]
            entry: dict[str, Any] = {key: torch.from_numpy(piece.of(array)) for key, array in state.arrays.get(piece.unit, {}).items()}
            for key, value in state.scalars["numbers"].get(piece.name, {}).items():
                entry[key] = torch.tensor(value["tensor"], dtype=getattr(torch, value["dtype"])) if isinstance(value, dict) else value
            if entry:
                entries[number] = entry
        numbered = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": entries, "param_groups": [{**now, **saved} for now, saved in zip(numbered, groups, strict=True)]})

    @property
    def _kind(self) -> str:
        return type(self._optimizer).__name__

    def _groups(self) -> list[dict[str, Any]]:
        return [{key: value for key, value in group.items() if key not in ("params", "param_names")} for group in self._optimizer.state_dict()["param_groups"]]


class TorchGenerator:
    """torch's own generator of random numbers, in the shape of numpy's, which state.py knows."""

    @property
    def bit_generator(self) -> TorchGenerator:
        """What has the state."""
        return self

    @property
    def state(self) -> dict[str, str]:
        """JSON-able."""
        return {"bit_generator": "torch", "state": bytes(torch.get_rng_state().numpy()).hex()}

    @state.setter
    def state(self, state: dict[str, str]) -> None:
        torch.set_rng_state(torch.frombuffer(bytearray.fromhex(state["state"]), dtype=torch.uint8))
