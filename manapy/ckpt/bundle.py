"""Lines of several ranks in few messages, between the agent of a node and the coordinator (LINES in control.h).

Most lines of a checkpoint are the same for all ranks of a node. So a message names each line once, with its ranks.

Invariants
 1. Each rank's lines keep their order. Lines of different ranks may change places.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from ..clock.messages import decode_ranks, encode_ranks

MESSAGE_MAX = 1 << 19  # characters of one message, unless a single line is longer


class Bundle:
    """Lines that wait for the next message."""

    def __init__(self) -> None:
        self._groups: list[tuple[str, list[int]]] = []
        self._newest: dict[str, int] = {}  # line: its last group
        self._last: dict[int, int] = {}  # rank: the group of its last line

    @property
    def ranks(self) -> Set[int]:
        """The ranks that have a line here."""
        return self._last.keys()

    def add(self, rank: int, line: str) -> None:
        """One line of (or for) a rank."""
        group = self._newest.get(line)
        if group is None or group <= self._last.get(rank, -1):
            group = self._newest[line] = len(self._groups)
            self._groups.append((line, []))
        self._groups[group][1].append(rank)
        self._last[rank] = group

    def take(self) -> Iterator[str]:
        """The messages with everything that was added. Empties the bundle."""
        groups, self._groups = self._groups, []
        self._newest.clear()
        self._last.clear()
        parts: list[str] = []
        length = 0
        for line, ranks in groups:
            part = f"{encode_ranks(sorted(ranks))} {line}"
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
        yield decode_ranks(ranks), line
