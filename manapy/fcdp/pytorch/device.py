"""The device of a model: copies values to the device, and gradients back.

    gather    host array (the node's window, or staging; page-locked) --in-stream--> gathered unit: filled() starts the
              copy, show() makes computation wait for it, and for nothing else
    reduce    parameter's gradient --out-stream--> page-locked array: whoever reduces it waits for the copy, not the
              program

1. A copy in begins after all computation requested so far, because the memory may have belonged to another unit. So
   units that are gathered ahead are copied while the unit in use computes.
2. A staging buffer is used again when the copy from it is complete.
3. Memory is given back only after the computation waits for the copy into it: an unused gathered unit may still be
   arriving.
4. Shards, and with them optimizers, are in host memory, and so is all data that crosses nodes and processes.
5. Each rank page-locks its node's window, if there is one, and copies from there; if that is refused, through staging
   buffers. The window does not change during a copy: a refresh waits.

Cuda needs a GPU. Threads is a device for tests on a CPU, with its own memory and the same order of copies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import torch

from ..errors import SetupError


class Event(Protocol):
    """A copy, complete or not."""

    def query(self) -> bool:
        """Return whether the copy is complete."""

    def synchronize(self) -> None:
        """Wait until the copy is complete."""


class Device(Protocol):
    """A device that computes. place: where tensors are; limit: bytes of its memory, None if unknown."""

    place: torch.device
    limit: int | None

    def host(self, nbytes: int) -> torch.Tensor:
        """Return memory of the host from which copies have full speed."""

    def copy_in(self, target: torch.Tensor, source: torch.Tensor) -> Event:
        """Copy from the host to target, a tensor on the device, in the order of calls (rule 1)."""

    def copy_out(self, source: torch.Tensor) -> tuple[torch.Tensor, Event]:
        """Copy to the host when the computation requested so far is done. The values are there after the event."""

    def wait(self, event: Event) -> None:
        """Make computation that is requested from now on begin after the event."""

    def lock(self, memory: np.ndarray) -> str | None:
        """Allow copies from this memory of the host as from that of host(), until unlock(). Return None, or why that is
        not possible."""

    def unlock(self, memory: np.ndarray) -> None:
        """End what lock() began: nothing is copied from this memory any more."""


PORTABLE = 1  # cudaHostRegisterPortable: for all GPUs of the process


class Cuda:
    """The current GPU of PyTorch. Computation runs on the stream that is current when this is created. So does
    autograd."""

    def __init__(self) -> None:
        self.place = torch.device("cuda", torch.cuda.current_device())
        self.limit, _ = torch.cuda.mem_get_info(self.place)
        self._compute = torch.cuda.current_stream(self.place)  # kept: each thread has a current stream of its own
        self._in, self._out = torch.cuda.Stream(self.place), torch.cuda.Stream(self.place)

    def host(self, nbytes: int) -> torch.Tensor:
        """See Device: page-locked."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def copy_in(self, target: torch.Tensor, source: torch.Tensor) -> Any:
        """See Device."""
        return self._copy(self._in, target, source)

    def copy_out(self, source: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """See Device."""
        target = torch.empty(source.shape, dtype=source.dtype, device="cpu", pin_memory=True)
        source.record_stream(self._out)  # its memory isn't another tensor's before that
        return target, self._copy(self._out, target, source)

    def wait(self, event: Any) -> None:
        """See Device."""
        self._compute.wait_event(event)

    def lock(self, memory: np.ndarray) -> str | None:
        """See Device: by cudaHostRegister of CUDA's runtime."""
        error = int(torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, PORTABLE))
        if not error:
            return None
        # CUDA reports the same error again at the next call: this one takes it, so that the program's does not
        with suppress(RuntimeError):
            torch.ones(1, device=self.place)
        return str(torch.cuda.CudaError(error))

    def unlock(self, memory: np.ndarray) -> None:
        """See Device."""
        torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(memory.ctypes.data))

    def _copy(self, stream: Any, target: torch.Tensor, source: torch.Tensor) -> Any:
        stream.wait_stream(self._compute)
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        return stream.record_event()


class _Done:
    """The event of a job on a thread."""

    def __init__(self, job: Future[Any]) -> None:
        self._job = job

    def query(self) -> bool:
        return self._job.done()

    def synchronize(self) -> None:
        self._job.result()


class Threads:
    """A device in host memory, with a thread for each stream. Computation is the program's thread: what has been asked
    for is done."""

    def __init__(self, limit: int | None = None) -> None:
        self.place = torch.device("cpu")
        self.limit = limit
        self._in, self._out = ThreadPoolExecutor(1, "fcdp-in"), ThreadPoolExecutor(1, "fcdp-out")

    def host(self, nbytes: int) -> torch.Tensor:
        """See Device."""
        return torch.empty(nbytes, dtype=torch.uint8)

    def copy_in(self, target: torch.Tensor, source: torch.Tensor) -> Event:
        """See Device."""
        return _Done(self._in.submit(target.copy_, source))

    def copy_out(self, source: torch.Tensor) -> tuple[torch.Tensor, Event]:
        """See Device."""
        target = torch.empty_like(source)
        return target, _Done(self._out.submit(target.copy_, source))

    def wait(self, event: Event) -> None:
        """See Device."""
        event.synchronize()

    def lock(self, memory: np.ndarray) -> str | None:
        """See Device: copies are made by threads, from any memory."""
        return None

    def unlock(self, memory: np.ndarray) -> None:
        """See Device."""


class Staging:
    """Buffers of one size to copy from, made as needed up to `count`, which is at least the number of units that are
    being gathered at once."""

    def __init__(self, host: Callable[[int], torch.Tensor], nbytes: int, count: int) -> None:
        self._host, self._nbytes, self._left = host, nbytes, count
        # given back: the oldest first, with the copy from it
        self._used: deque[tuple[torch.Tensor, Event | None]] = deque()

    def take(self) -> torch.Tensor:
        """A buffer that nothing is copied from any more (rule 2)."""
        if self._left and not (self._used and _is_over(self._used[0][1])):
            self._left -= 1
            return self._host(self._nbytes)
        buffer, event = self._used.popleft()
        if event is not None:
            event.synchronize()
        return buffer

    def give_back(self, buffer: torch.Tensor, event: Event | None) -> None:
        """event: of the copy from it, None if there is none."""
        self._used.append((buffer, event))


def _is_over(event: Event | None) -> bool:
    return event is None or event.query()


def find(device: str | Device) -> Device | None:
    """None for the CPU, where a gathered unit is host memory. Raises SetupError if there is no such device."""
    if not isinstance(device, str):
        return device
    if device == "cpu":
        return None
    if device != "cuda":
        raise SetupError(f"device must be cpu or cuda, not {device}")
    if not torch.cuda.is_available():
        raise SetupError(
            "device cuda: "
            + ("this PyTorch is built without CUDA" if torch.version.cuda is None else "no GPU is there")
        )
    return Cuda()
