"""The memory of a gathered unit, and the module's parameters in it.

1. One storage per unit for good, with all of its memory while the unit is gathered and with none otherwise. What autograd has saved (a weight's transpose) refers to the
   storage: it costs no memory between uses, and finds the values when the unit is gathered again, wherever they lie then.
2. A hidden parameter has its shape, no memory, and reads as NaN. Reading a storage without memory ends the process by a signal, an empty tensor would give wrong sums.
3. Values arrive through the memory, not through tensors: no version of a tensor changes, so autograd's check of what it has saved stays valid.
"""

from __future__ import annotations

import ctypes

import numpy as np
import torch

from .grouping import Member


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The same memory. Types that numpy lacks are those of ml_dtypes."""
    tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view("bfloat16")
    return tensor.numpy()


def to_tensor(array: np.ndarray) -> torch.Tensor:
    """The same memory."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def peek(tensor: torch.Tensor, dtype: str) -> np.ndarray:
    """The same memory of a contiguous tensor, flat, as long as that lives. Not Tensor.numpy(): it makes a storage that can't be resized any more."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * tensor.nbytes).from_address(tensor.data_ptr())).view(dtype)


class UnitStorage:
    """A place (arena.py) that parameters can be shown in."""

    def __init__(self, member: Member, elements: int) -> None:
        """elements: of the unit with its padding. The parameters keep their own memory until hide()."""
        dtype = getattr(torch, member.unit.gathered)
        flat = torch.empty(elements, dtype=dtype)
        self._storage = flat.untyped_storage()
        self._nbytes = self._storage.nbytes()
        pieces = flat[: member.unit.size].split([parameter.numel() for parameter in member.parameters.values()])
        nothing = torch.full((), torch.nan, dtype=dtype)
        # (parameter, its values, nothing of the same shape)
        self._views = [(parameter, piece.view(parameter.shape), nothing.expand(parameter.shape)) for parameter, piece in zip(member.parameters.values(), pieces, strict=True)]
        self.give_back()

    def take(self) -> np.ndarray:
        """Memory for the unit: (bytes,)."""
        self._storage.resize_(self._nbytes)
        return peek(torch.empty(0, dtype=torch.uint8).set_(self._storage), "uint8")

    def give_back(self) -> None:
        """No memory."""
        self._storage.resize_(0)

    def show(self) -> None:
        """Let the parameters be what lies in the storage."""
        for parameter, view, _ in self._views:
            parameter.data = view

    def hide(self) -> None:
        """Let the parameters have nothing."""
        for parameter, _, nothing in self._views:
            parameter.data = nothing
