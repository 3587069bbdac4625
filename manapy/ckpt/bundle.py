"""Lines of several ranks in few messages, between the agent of a node and the coordinator (LINES in control.h).

Most lines of a checkpoint are the same for all ranks of a node. So a message names each line once, with its ranks.

Invariants
 1. Each rank's lines keep their order. Lines of different ranks may change places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from functools import lru_cache
from itertools import repeat
from operator import itemgetter

from ..clock.messages import decode_ranks, encode_ranks

MESSAGE_MAX = 1 << 19  # characters of one message, unless a single line is longer
LISTS_MAX = 1 << 12  # lists of ranks that are remembered: the same ones come again in each round

_encode = lru_cache(LISTS_MAX)(encode_ranks)
_decode = lru_cache(LISTS_MAX)(decode_ranks)


class Bundle:
    """Lines that wait for the next message.

    Equal lines form a group, at a level. Each line of a rank is in a group of a higher level than the line before.
    """

    def __init__(self) -> None:
        self._groups: list[tuple[int, str, list[int]]] = []  # level, line, ranks
        self._newest: dict[str, tuple[int, list[int]]] = {}  # of each line: level and ranks of its last group
        self._last: dict[int, int] = {}  # of each rank: the level of its last line

    @property
    def ranks(self) -> Set[int]:
        """The ranks that have a line here."""
        return self._last.keys()

    def add(self, rank: int, line: str) -> None:
        """One line of (or for) a rank."""
        level, group = self._group(line, self._last.get(rank, 0))
        group.append(rank)
        self._last[rank] = level

    def add_all(self, ranks: Sequence[int], line: str) -> None:
        """The same line for each of these ranks."""
        level, group = self._group(line, max(map(self._last.get, ranks, repeat(0))))
        group.extend(ranks)
        self._last.update(dict.fromkeys(ranks, level))

    def _group(self, line: str, below: int) -> tuple[int, list[int]]:
        """The line's group at a level above another level, and that level."""
        newest = self._newest.get(line)
        if newest is None or newest[0] <= below:
            newest = self._newest[line] = below + 1, []
            self._groups.append((newest[0], line, newest[1]))
        return newest

    def take(self) -> Iterator[str]:
        """The messages with everything that was added. Empties the bundle."""
        groups, self._groups = self._groups, []
        self._newest.clear()
        self._last.clear()
        parts: list[str] = []
        length = 0
        for _, line, ranks in sorted(groups, key=itemgetter(0)):
            part = f"{_encode(tuple(sorted(ranks)))} {line}"
            if parts and length + len(part) > MESSAGE_MAX:
                yield "LINES " + "\t".join(parts)
                parts, length = [], 0
            parts.append(part)
            length += len(part) + 1
        if parts:
            yield "LINES " + "\t".join(parts)


def read(message: str) -> Iterator[tuple[tuple[int, ...], str]]:
    """The lines of a message, each with its ranks. Raises ValueError if it is malformed."""
    for part in message.removeprefix("LINES ").split("\t"):
        ranks, _, line = part.partition(" ")
        yield _decode(ranks), line
