"""Models built under torch.device("meta"): no rank ever has the whole model in memory.

Parameters become real tensors without memory, as sharded ones are. Their values come from rank 0, unit by unit, each
rank receiving its own part; or later, by load() or load_file(), where each rank reads its own part. Messages are those
of the setting up: over the topology's communicator, on the program's thread, after an agreement.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from ..engine.collective_errors import agree, error_of
from ..engine.engine import Engine
from ..engine.unit_state import Part
from ..errors import SetupError
from ..mpi import MPI
from .grouping import Member
from .storage import to_numpy

Values = Callable[[str], torch.Tensor]  # of a parameter or buffer, by its name in the model


def materialise(module: nn.Module, comm: MPI.Comm, values: Values | None) -> dict[str, torch.Tensor]:
    """Collective. Buffers on the meta device become real, with rank 0's values if there are any; returns them by
    name."""
    found = {name: buffer for name, buffer in module.named_buffers() if buffer.is_meta}
    real = {id(buffer): torch.zeros_like(buffer, device="cpu") for buffer in found.values()}
    for part in module.modules():
        part._buffers.update({key: real[id(buffer)] for key, buffer in part._buffers.items() if id(buffer) in real})
    if values is not None:
        for name, buffer in found.items():
            target = to_numpy(real[id(buffer)])
            agree(comm, error_of(functools.partial(_fill, target, name, values)) if comm.rank == 0 else None)
            comm.Bcast([target.reshape(-1).view(np.uint8), MPI.BYTE])
    return {name: real[id(buffer)] for name, buffer in found.items()}


def without_values(engine: Engine, part: Part, member: Member, values: Values | None) -> None:
    """Collective. Parameters of a unit, some of them on the meta device, become real: with rank 0's values, and those
    from `values` for what has none; zeros without it."""
    comm = engine.topology.comm
    flat = np.zeros(part.layout.padded if comm.rank == 0 else 0, part.unit.dtype)
    agree(comm, error_of(lambda: _collect(flat, member, values)) if comm.rank == 0 else None)
    for parameter in member.parameters.values():
        if parameter.is_meta:
            nothing = torch.empty((), dtype=parameter.dtype, device="cpu").expand(parameter.shape)
            torch.utils.swap_tensors(parameter, nn.Parameter(nothing, requires_grad=parameter.requires_grad))
    spans = comm.gather((part.start, part.start + part.values.size))
    if spans is None:
        mine = np.empty_like(part.values)
        comm.Recv([mine.view(np.uint8), MPI.BYTE], 0)
    else:
        for rank, (start, stop) in enumerate(spans[1:], 1):
            comm.Send([flat[start:stop].view(np.uint8), MPI.BYTE], rank)
        mine = flat[slice(*spans[0])]
    engine.load_part(part, mine)


def _collect(flat: np.ndarray, member: Member, values: Values | None) -> None:
    for name, view in member.unit.views(flat).items():
        parameter = member.parameters[name]
        if not parameter.is_meta:
            view[...] = to_numpy(parameter)
        elif values:
            _fill(view, name, values)


def _fill(target: np.ndarray, name: str, values: Values) -> None:
    found = to_numpy(values(name))
    if found.shape != target.shape:
        raise SetupError(f"values gives {name} with shape {found.shape}, the model has {target.shape}")
    target[...] = found
