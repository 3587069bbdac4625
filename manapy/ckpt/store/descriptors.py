"""The descriptors of a process in its image: how many there are of each kind.

The layout is that of lowerhalf/process/fds/fds.c, the numbers are those of fds_table.h there;
tests/unit/ckpt/store/test_descriptors.py compares them.
"""

from __future__ import annotations

import struct
from collections import Counter

MAGIC = 0x31534446  # "FDS1"
# Kinds of open file descriptions, as a person calls them
KINDS = {
    1: "standard",
    2: "inherited",
    3: "file",
    4: "unnamed file",
    5: "device",
    6: "FIFO",
    7: "pipe",
    8: "socket pair",
    9: "socket",
    10: "eventfd",
    11: "timer",
    12: "signalfd",
    13: "epoll",
    14: "of other processes of the rank",
    15: "connection",
}


def counts(section: bytes) -> dict[str, int]:
    """The number of descriptors of each kind, in the order of KINDS; of a damaged section as much as can be read."""
    found: Counter[int] = Counter()
    try:
        kinds, at = _descriptions(section)
        (numbers,) = struct.unpack_from("<I", section, at)
        for i in range(numbers):
            _, description, _ = struct.unpack_from("<III", section, at + 4 + 12 * i)
            found[kinds[description]] += 1
    except (struct.error, IndexError):
        pass
    return {KINDS.get(kind, "other"): found[kind] for kind in sorted(found)}


def _descriptions(section: bytes) -> tuple[list[int], int]:
    """The kind of each open file description, and where what follows them begins."""
    magic, number = struct.unpack_from("<II", section)
    if magic != MAGIC:
        raise IndexError
    kinds, at = [], 8
    for _ in range(number):
        (kind,) = struct.unpack_from("<I", section, at)
        kinds.append(kind)
        at += 16  # kind, number, flags, mode
        for _ in ("path", "state", "locks"):
            (size,) = struct.unpack_from("<Q", section, at)
            at += 8 + size
    return kinds, at
