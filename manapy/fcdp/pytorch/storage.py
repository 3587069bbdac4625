"""The memory of a gathered unit, and the module's parameters in it.

1. One storage per unit for good, with all of its memory while the unit is gathered and with none otherwise. What
   autograd has saved (a weight's transpose) refers to the storage: it costs no memory between uses, and finds the
   values when the unit is gathered again, wherever they lie then.
2. A hidden parameter has its shape, no memory, and reads as NaN. Reading a storage without memory ends the process by a
   signal, an empty tensor would give wrong sums.
3. Values arrive through the memory, not through tensors: no version of a tensor changes, so autograd's check of what it
   has saved stays valid.
"""

from __future__ import annotations

import ctypes

import numpy as np
import torch

from .device import Device, Event, Staging
from .grouping import Member


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The same memory, or a copy of a GPU's. Types that numpy lacks are those of ml_dtypes."""
    tensor = tensor.detach().cpu()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view("bfloat16")
    return tensor.numpy()


def to_tensor(array: np.ndarray) -> torch.Tensor:
    """The same memory."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def peek(tensor: torch.Tensor, dtype: str) -> np.ndarray:
    """The same memory of a contiguous tensor, flat, as long as that lives. Not Tensor.numpy(): it makes a storage that
    can't be resized any more."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * tensor.nbytes).from_address(tensor.data_ptr())).view(dtype)


class UnitStorage:
    """A place (arena.py) that parameters can be shown in."""

    @torch.inference_mode(False)  # what is made in inference_mode has no gradients, and can't be written to elsewhere
    def __init__(self, member: Member, elements: int, place: torch.device | None = None) -> None:
        """elements: of the unit with its padding; place: where, None for host memory. The parameters keep their own
        memory until hide()."""
        dtype = getattr(torch, member.unit.gathered)
        flat = torch.empty(elements, dtype=dtype, device=place)
        self._storage = flat.untyped_storage()
        self._nbytes = self._storage.nbytes()
        self._bytes = torch.empty(0, dtype=torch.uint8, device=place).set_(self._storage, 0, (self._nbytes,), (1,))
        pieces = flat[: member.unit.size].split([parameter.numel() for parameter in member.parameters.values()])
        self._nothing = torch.full((), torch.nan, dtype=dtype, device=place)
        # (parameter, its values, nothing of the same shape)
        self._views = [
            (parameter, piece.view(parameter.shape), self._nothing.expand(parameter.shape))
            for parameter, piece in zip(member.parameters.values(), pieces, strict=True)
        ]
        self.give_back()

    @property
    def identity(self) -> int:
        """What tensors in it have as untyped_storage()._cdata."""
        return self._storage._cdata

    def take(self) -> np.ndarray:
        """Memory for the unit: (bytes,)."""
        self._storage.resize_(self._nbytes)
        return peek(self._bytes, "uint8")

    def filled(self) -> None:
        """Nothing is to be done: it is where it is used."""

    def settle(self) -> None:
        """Nothing is copied later than when it is asked for."""

    def give_back(self) -> None:
        """No memory."""
        self._storage.resize_(0)

    def show(self) -> None:
        """Let the parameters be what lies in the storage."""
        for parameter, view, _ in self._views:
            parameter.data = view

    def hide(self) -> None:
        """Let the parameters have nothing: NaN, also if the program has written something else there."""
        self._nothing.fill_(torch.nan)
        for parameter, _, nothing in self._views:
            parameter.data = nothing


class DeviceStorage(UnitStorage):
    """A place on a device with memory of its own: values come from the node's window, or over a staging buffer
    (device.py)."""

    def __init__(self, member: Member, elements: int, device: Device, staging: Staging) -> None:
        self._device, self._staging = device, staging
        self._buffer: torch.Tensor | None = None
        self._window: torch.Tensor | None = None
        self._arrived: Event | None = None  # not waited for by the computation
        self._read: Event | None = None  # of the last copy from the window
        super().__init__(member, elements, device.place)

    def read_from(self, window: np.ndarray) -> None:
        """Take values from the unit in the node's window from now on. The window is page-locked."""
        self._window = to_tensor(window).view(torch.uint8)

    def take(self) -> np.ndarray:
        """Memory on the device, and a buffer on the host, or what the window has, read-only: (bytes,)."""
        self._storage.resize_(self._nbytes)
        if self._window is not None:
            array = self._window.numpy()
            array.flags.writeable = False
            return array
        self._buffer = self._staging.take()
        return self._buffer[: self._nbytes].numpy()

    def filled(self) -> None:
        """Begin the copy to the device."""
        if self._window is not None:
            self._arrived = self._read = self._device.copy_in(self._bytes, self._window)
            return
        assert self._buffer is not None
        self._arrived = self._device.copy_in(self._bytes, self._buffer[: self._nbytes])
        self._staging.give_back(self._buffer, self._arrived)
        self._buffer = None

    def settle(self) -> None:
        """Wait until nothing is copied from the window (rule 5 of device.py)."""
        if self._read is not None:
            self._read.synchronize()

    def show(self) -> None:
        """Show the parameters as they will be when the copy is complete. Computation waits for the copy."""
        if self._arrived is not None:
            self._device.wait(self._arrived)
            self._arrived = None
        super().show()

    def give_back(self) -> None:
        """No memory, once nothing arrives there (rule 3 of device.py)."""
        if self._buffer is not None:
            self._staging.give_back(self._buffer, None)
            self._buffer = None
        if self._arrived is not None:
            self._device.wait(self._arrived)
            self._arrived = None
        super().give_back()
