"""FNV-1a, 64 bit (Fowler, Noll, Vo): the same hash as lowerhalf/include/manapy/fnv.h."""

from __future__ import annotations

PRIME = 0x100000001B3
_OFFSET = 0xCBF29CE484222325


def fnv1a(data: bytes) -> int:
    """The hash, 0 to 2**64 - 1."""
    value = _OFFSET
    for byte in data:
        value = ((value ^ byte) * PRIME) & 0xFFFFFFFFFFFFFFFF
    return value
