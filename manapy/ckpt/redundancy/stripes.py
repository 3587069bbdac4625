"""Where the images of a group of hosts and their spare blocks are on these hosts.

A group has n members: the folders of n hosts. The images of a folder, in the order of their names, are one stream of
bytes. It is padded with zeroes, and cut into n - spare blocks of the same size. There are n stripes. Stripe s has a
block of each member except s, s+1, ... s+spare-1 (modulo n): these members hold its spare blocks instead. With 4
members a, b, c, d and one spare block:

    stripe     a    b    c    d
    0          +    b0   c0   d0          b0: the first block of b; +: the spare block, on that host
    1          a0   +    c1   d1
    2          a1   b1   +    d2
    3          a2   b2   c2   +

Invariants
 1. Each member has one block of each stripe. So a lost host loses one block of each stripe, and all members do the same
    work.
 2. Block numbers in a stripe (code.py): first the data, in the order of the members; then the spare blocks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from ..store.levels import SPARE

NAME = re.compile(SPARE + r"/\d{5}-\d{5}-\d{5}\.blk\Z")


class StripeGroup(NamedTuple):
    """The group with this number in a checkpoint. ``members``: their folders. ``spare``: spare blocks of a stripe."""

    number: int
    members: tuple[str, ...]
    spare: int

    @property
    def data(self) -> int:
        """Blocks of data in a stripe, and of a member."""
        return len(self.members) - self.spare

    def holders(self, stripe: int) -> list[int]:
        """The members that hold the spare blocks of a stripe, in the order of these blocks."""
        return [(stripe + i) % len(self.members) for i in range(self.spare)]

    def givers(self, stripe: int) -> list[int]:
        """The members whose data is in a stripe, in the order of their blocks there."""
        return [member for member in range(len(self.members)) if member not in self.holders(stripe)]

    def stripes(self, member: int) -> list[int]:
        """The stripes that have data of a member, in the order of its blocks."""
        return [stripe for stripe in range(len(self.members)) if member not in self.holders(stripe)]

    def held(self, member: int) -> list[tuple[int, int]]:
        """The spare blocks that a member holds: (stripe, number in the stripe)."""
        n = len(self.members)
        return [((member - i) % n, self.data + i) for i in range(self.spare)]

    def spare_name(self, stripe: int, number: int) -> str:
        """The path of a spare block in its checkpoint."""
        return f"{SPARE}/{self.number:05d}-{stripe:05d}-{number:05d}.blk"

    def block_bytes(self, sizes: Mapping[str, int]) -> int:
        """The size of all blocks. ``sizes``: the bytes of each folder's images."""
        return -(-max(sizes[member] for member in self.members) // self.data)
