"""The device that a program trains on: its first argument, one of cpu (the default), threads and cuda.

On cuda all tensors that the program makes are on the GPU unless it says otherwise, as if by a user who has called
torch.set_default_device().
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch

from manapy.fcdp import pytorch
from manapy.fcdp.pytorch.device import Cuda, Threads

NAME = sys.argv[1] if len(sys.argv) > 1 else "cpu"
KIND: Any = {"cuda": Cuda}.get(NAME, Threads)  # of a device with memory of its own
DEVICE: Any = KIND() if NAME != "cpu" else "cpu"
fully_shard = partial(pytorch.fully_shard, device=DEVICE)
torch.set_default_device("cuda" if NAME == "cuda" else None)


def normal(*shape: int, seed: int) -> torch.Tensor:
    """The same random numbers on every device."""
    return torch.randn(*shape, generator=torch.Generator("cpu").manual_seed(seed), device="cpu").to(
        torch.get_default_device()
    )
