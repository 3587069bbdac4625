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
    shapes or types than before.
    """
    if not parts:
        return
    tensors = {name: parameter.detach().contiguous().cpu() for name, parameter in parameters.items()}
    digest = hashlib.blake2b(digest_size=16)
    wrong = []
    for part in parts:
        for name, shape in part.unit.parameters:
            now = tuple(tensors[name].shape), str(tensors[name].dtype).removeprefix("torch.")
            digest.update(repr((name, now)).encode())
            digest.update(peek(tensors[name], "uint8").data)
            wrong += [
                f"parameter {name} has another {what} than before"
                for what, new, old in zip(("shape", "type"), now, (shape, part.unit.gathered), strict=True)
                if new != old
            ]
    digests = engine.allgather((digest.digest(), wrong))
    different = next((rank for rank, found in enumerate(digests) if found != digests[0]), None)
    if different is not None:
        raise SetupError(f"parameters have been changed, and are not the same on ranks 0 and {different}")
    if digests[0][1]:
        raise SetupError(digests[0][1][0])
    whole = {name: peek(tensors[name], part.unit.gathered) for part in parts for name, _ in part.unit.parameters}
    for part in parts:
        for span in spans(part.unit, part.start, part.start + part.values.size):
            new, values = whole[span.parameter][span.start : span.stop], span.of(part.values)
            changed = new != values.astype(part.unit.gathered)
            values[changed] = new[changed]
