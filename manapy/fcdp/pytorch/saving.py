"""The parts of a PyTorch training that manapy.fcdp.state saves: torch optimizers over shards, torch's generator.

1. What an optimizer keeps for a parameter is as large as its piece (moments), or a number (steps). Settings of
   parameter groups are saved, too: a scheduler's rate.
2. Arrays are saved per unit, numbers and settings as scalars, which are the same on all ranks: so any number of ranks
   can go on. Scalars say for which parameters there are arrays: what is in a unit's array for others is of no meaning.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..errors import StateError
from ..state.state_index import OptimizerState
from .optimizer import Piece, Pieces, parameters_of
from .storage import to_numpy, to_tensor

ARRAY = {"array": True}  # an entry that is elementwise


class SavedOptimizers:
    """All optimizers of a training, as state/save_load.py wants one."""

    def __init__(self, pieces: Pieces, trainable: bool) -> None:
        """trainable: leave out what they keep for frozen parameters, which isn't saved then, and stays as it is."""
        self._pieces, self._trainable = pieces, trainable

    def state(self) -> OptimizerState:
        """A copy. Raises StateError if something kept for a parameter is neither elementwise nor a number."""
        entries: dict[str, dict[str, Any]] = {}
        arrays: dict[str, dict[str, np.ndarray]] = {}
        for piece, kept in self._kept():
            for key, value in kept.items():
                if is_elementwise(piece, key, value):
                    array = to_numpy(value)
                    piece.of(arrays.setdefault(piece.unit, {}).setdefault(key, np.zeros(piece.size, array.dtype)))[
                        :
                    ] = array
                    entry: Any = ARRAY
                else:
                    entry = (
                        {"tensor": value.item(), "dtype": str(value.dtype).removeprefix("torch.")}
                        if isinstance(value, torch.Tensor)
                        else value
                    )
                entries.setdefault(piece.name, {})[key] = entry
        return OptimizerState({"kind": self._kind, "groups": self._groups(), "entries": entries}, arrays)

    def load_state(self, state: OptimizerState) -> None:
        """Go on from there. Raises StateError if it is other optimizers', or has other parameter groups."""
        kind, groups, entries = (state.scalars.get(key) for key in ("kind", "groups", "entries"))
        ours = self._groups()
        if kind != self._kind or groups is None or entries is None or len(groups) != len(ours):
            raise StateError(
                f"the state is one of {kind} with {len(groups or ())} parameter groups, the optimizer is {self._kind} "
                f"with {len(ours)}"
            )
        pieces = {id(piece.values): piece for piece in self._pieces}
        for optimizer in self._pieces.optimizers:
            found = {}
            for number, values in enumerate(parameters_of(optimizer)):
                piece = pieces[id(values)]
                if self._leaves_out(piece):
                    if values in optimizer.state:
                        found[number] = optimizer.state[values]
                    continue
                entry = {
                    key: self._value(piece, state.arrays.get(piece.unit, {}).get(key), value)
                    for key, value in entries.get(piece.name, {}).items()
                }
                if entry:
                    found[number] = entry
            now = optimizer.state_dict()["param_groups"]
            saved, groups = groups[: len(now)], groups[len(now) :]
            optimizer.load_state_dict(
                {
                    "state": found,
                    "param_groups": [{**group, **settings} for group, settings in zip(now, saved, strict=True)],
                }
            )

    def _kept(self) -> list[tuple[Piece, dict[str, Any]]]:
        return [
            (piece, optimizer.state.get(piece.values, {}))
            for piece in self._pieces
            if not self._leaves_out(piece)
            for optimizer in self._pieces.optimizers
        ]

    def _leaves_out(self, piece: Piece) -> bool:
        return self._trainable and not piece.values.requires_grad

    @staticmethod
    def _value(piece: Piece, array: np.ndarray | None, value: Any) -> Any:
        if value == ARRAY:
            if array is None:
                raise StateError(f"the state has no array for {piece.name}")
            return to_tensor(piece.of(array))
        if not isinstance(value, dict):
            return value
        return torch.tensor(value["tensor"], dtype=getattr(torch, value["dtype"]), device="cpu")

    @property
    def _kind(self) -> str:
        return ", ".join(type(optimizer).__name__ for optimizer in self._pieces.optimizers)

    def _groups(self) -> list[dict[str, Any]]:
        groups = [group for optimizer in self._pieces.optimizers for group in optimizer.state_dict()["param_groups"]]
        return [
            {key: value for key, value in group.items() if key not in ("params", "param_names")} for group in groups
        ]


def is_elementwise(piece: Piece, key: str, value: Any) -> bool:
    """Whether what an optimizer keeps is as large as the piece; otherwise it is a number. Raises StateError if it is
    neither."""
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return False
    if value.shape != piece.values.shape:
        raise StateError(
            f"the optimizer keeps '{key}' of shape {tuple(value.shape)} for {piece.name}: only elementwise state and "
            "numbers can be saved or moved"
        )
    return True


class TorchGenerator:
    """torch's own generators of random numbers, of the processor and of the current GPU if the program uses one, in the
    shape of numpy's, which state/save_load.py knows. A state from a rank without a GPU leaves the GPU's as it is."""

    @property
    def bit_generator(self) -> TorchGenerator:
        """The object that has the state."""
        return self

    @property
    def state(self) -> dict[str, str]:
        """JSON-able."""
        states = {"bit_generator": "torch", "state": bytes(torch.get_rng_state().numpy()).hex()}
        if torch.cuda.is_initialized():
            states["cuda"] = bytes(torch.cuda.get_rng_state().numpy()).hex()
        return states

    @state.setter
    def state(self, state: dict[str, str]) -> None:
        torch.set_rng_state(torch.frombuffer(bytearray.fromhex(state["state"]), dtype=torch.uint8))
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(torch.frombuffer(bytearray.fromhex(state["cuda"]), dtype=torch.uint8))
