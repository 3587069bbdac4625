"""The codes: blocks of data, and more blocks from which lost ones are computed.

A stripe has n blocks of the same size, numbered from 0: first the data, then the `spare` ones. With any n - spare of
them all others can be computed. One spare block is the exclusive or of the data (numpy). More are a Reed-Solomon code
(zfec).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...core.errors import CheckpointError

BLOCKS_MAX = 64  # of a stripe: an order names all blocks that a host needs (zfec could do 256)


def complaint(spare: int) -> str:
    """Why this installation cannot compute that many spare blocks, or an empty text."""
    if spare > 1:
        try:
            import zfec  # noqa: F401
        except ImportError as error:
            return f"--redundancy rs needs the Python package zfec (manapy's extra 'levels'): {error}"
    return ""


def compute(have: Mapping[int, bytes], data: int, spare: int, wanted: int) -> bytes:
    """The block number ``wanted`` of a stripe of data + spare blocks, from any ``data`` other ones. Raises
    CheckpointError if the code is not installed; ValueError if there are fewer."""
    if len(have) != data or wanted in have:
        raise ValueError(f"{len(have)} blocks instead of {data} others")
    if spare == 1:
        return _exclusive_or(list(have.values()))
    if why := complaint(spare):
        raise CheckpointError(why)
    import zfec

    first = _first(zfec, have, data, spare)
    return first[wanted] if wanted < data else bytes(zfec.Encoder(data, data + spare).encode(first, (wanted,))[0])


def _exclusive_or(blocks: Sequence[bytes]) -> bytes:
    import numpy as np

    total = np.frombuffer(blocks[0], np.uint8).copy()
    for block in blocks[1:]:
        total ^= np.frombuffer(block, np.uint8)
    return total.tobytes()


def _first(zfec: Any, have: Mapping[int, bytes], data: int, spare: int) -> list[bytes]:
    """The blocks of data."""
    if all(number in have for number in range(data)):
        return [have[number] for number in range(data)]
    return list(map(bytes, zfec.Decoder(data, data + spare).decode(list(have.values()), list(have))))
