"""The clock's lines of one node's ranks, rewritten by the node's agent so that lines of many ranks are equal. The
coordinator then reads each of them once (ckpt/bundle.py), and so do agents on the way (ckpt/node/lower_agents.py).

Two things make the lines of ranks different although their content is the same:

- The versions. A rank's version counts what has happened to it. The coordinator only repeats it in FREEZE. So the agent
  keeps the versions. It puts a number in place of each, and the version back into FREEZE.
- The list of rows. Ranks share some communicators, but not all. So each row gets a ROWS of its own, with ``more``.

Invariants
 1. A number says how often the version in a rank's lines of one epoch has changed. It depends on that rank's lines
    only. So ranks that have done the same since INTENT have the same number, whatever agents they are behind.
 2. A FREEZE with the epoch and the number that a rank had last gets the rank's version. Any other FREEZE gets STALE,
    which no rank accepts, because the coordinator has not yet received the state with that number.
 3. Nothing else of a line changes, and the lines of a rank keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

VERSIONED = frozenset("ROWS RAISE RETRACT STATE FROZEN NOTFROZEN".split())
STALE = "0"  # every rank's version is greater after its INTENT


class _Newest(NamedTuple):
    """A rank's last line."""

    epoch: str
    version: str
    number: str


_NOTHING = _Newest("", "", "")


class LineMerger:
    """The ranks of one node."""

    def __init__(self) -> None:
        self._newest: dict[int, _Newest] = {}

    def up(self, rank: int, line: str) -> Iterable[str]:
        """The lines for the coordinator that stand for a line of a rank. A malformed line stands for itself, so that
        the coordinator finds what is wrong with it."""
        kind, *fields = line.split(" ")
        if kind not in VERSIONED or len(fields) < 2 or (kind == "ROWS" and fields[3:4] != [str(len(fields) - 4)]):
            return (line,)
        epoch, version, *rest = fields
        start = f"{kind} {epoch} {self._number(rank, epoch, version)}"
        if kind != "ROWS":
            return (" ".join([start, *rest]),)
        more, _, *rows = rest
        return [*(f"{start} 1 1 {row}" for row in rows), f"{start} {more} 0"]

    def down(self, ranks: Sequence[int], line: str) -> Iterable[tuple[Sequence[int], str]]:
        """The lines for ranks that stand for a line of the coordinator for all of them."""
        if not line.startswith("FREEZE "):
            return ((ranks, line),)
        kind, epoch, number = line.split(" ")
        alike: dict[str, list[int]] = {}  # by version
        for rank in ranks:
            newest = self._newest.get(rank, _NOTHING)
            is_known = (newest.epoch, newest.number) == (epoch, number)
            alike.setdefault(newest.version if is_known else STALE, []).append(rank)
        return [(some, f"{kind} {epoch} {version}") for version, some in alike.items()]

    def _number(self, rank: int, epoch: str, version: str) -> str:
        newest = self._newest.get(rank, _NOTHING)
        if newest.epoch != epoch:
            newest = self._newest[rank] = _Newest(epoch, version, "1")
        elif newest.version != version:
            newest = self._newest[rank] = _Newest(epoch, version, str(int(newest.number) + 1))
        return newest.number
