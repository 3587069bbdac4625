"""Writes the program's changes of whole parameters back into the shards."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from torch import nn

from ..engine.engine import Engine
from ..engine.unit_state import Part
from ..errors import SetupError
from ..state.state_index import spans
from .storage import peek


def write_back(engine: Engine, parts: Sequence[Part], parameters: Mapping[str, nn.Parameter]) -> None:
    """Collective, if there are parts. What differs from the part's values as they are gathered replaces them; the rest
    keeps the precision that it has there.

    Raises SetupError on all ranks, before anything is changed, if parameters aren't the same everywhere or have other
    shapes than before.
    """
    if not parts:
        return
    tensors = {name: parameter.detach().contiguous().cpu() for name, parameter in parameters.items()}
    whole = {name: peek(tensors[name], part.unit.gathered) for part in parts for name, _ in part.unit.parameters}
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        for name, _ in part.unit.parameters:
            digest.update(repr((name, tuple(parameters[name].shape))).encode())
            digest.update(whole[name].view("uint8").data)
    digests = engine.allgather(
        (
            digest.digest(),
            [name for part in parts for name, shape in part.unit.parameters if tuple(parameters[name].shape) != shape],
        )
    )
    different = next((rank for rank, found in enumerate(digests) if found != digests[0]), None)
    if different is not None:
        raise SetupError(f"parameters have been changed, and are not the same on ranks 0 and {different}")
    if digests[0][1]:
        raise SetupError(f"parameter {digests[0][1][0]} has another shape than before")
    for part in parts:
        for span in spans(part.unit, part.start, part.start + part.values.size):
            new, values = whole[span.parameter][span.start : span.stop], span.of(part.values)
            changed = new != values.astype(part.unit.gathered)
            values[changed] = new[changed]
