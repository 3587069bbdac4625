"""FNV-1a, 64 bit (Fowler, Noll, Vo): the same hash as lowerhalf/include/manapy/fnv.h."""

from __future__ import annotations

import os
from pathlib import Path

PRIME = 0x100000001B3
_OFFSET = 0xCBF29CE484222325


def fnv1a(data: bytes) -> int:
    """The hash, 0 to 2**64 - 1."""
    value = _OFFSET
    for byte in data:
        value = ((value ^ byte) * PRIME) & 0xFFFFFFFFFFFFFFFF
    return value


def path_mark(path: str | Path) -> str:
    """Eight hexadecimal digits that tell directories of the same name apart."""
    return f"{fnv1a(os.fsencode(path)) & 0xFFFFFFFF:08x}"
