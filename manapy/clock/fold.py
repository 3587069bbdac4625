"""The clock's lines of one node's ranks, rewritten by the node's agent so that lines of many ranks are equal. The
coordinator then reads each of them once (ckpt/bundle.py).

Two things make the lines of ranks differ although they say the same:

- The versions. A rank's version counts what has happened to it. The coordinator only repeats it in FREEZE. So the agent
  keeps the versions. It puts a number in place of each, and the version back into FREEZE.
- The list of rows. Ranks share some communicators, but not all. So each row gets a ROWS of its own, with ``more``.

Invariants
 1. The number of a rank rises when, and only when, its version has changed. So a FREEZE with the number that a rank had
    last gets the rank's version, and any other number gets STALE, which no rank accepts: what was reported behind that
    number is not known to the coordinator.
 2. Ranks whose versions have changed once since ``renew`` have the same number.
 3. Nothing else of a line changes, and the lines of a rank keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

VERSIONED = frozenset("ROWS RAISE RETRACT STATE FROZEN NOTFROZEN".split())
STALE = "0"  # every rank's version is greater after its INTENT


class Fold:
    """The ranks of one node."""

    def __init__(self) -> None:
        self._versions: dict[int, tuple[str, int]] = {}  # of each rank: as last reported, and the number for it
        self._next = 1  # of the ranks whose versions change now
        self._highest = 0  # number in use

    def renew(self) -> None:
        """What has come until now goes to the coordinator."""
        self._next = self._highest + 1

    def up(self, rank: int, line: str) -> Iterable[str]:
        """The lines for the coordinator that stand for a line of a rank. A malformed line stands for itself, so that
        the coordinator finds what is wrong with it."""
        kind, *fields = line.split(" ")
        if kind not in VERSIONED or len(fields) < 2 or (kind == "ROWS" and fields[3:4] != [str(len(fields) - 4)]):
            return (line,)
        epoch, version, *rest = fields
        start = f"{kind} {epoch} {self._number(rank, version)}"
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
            version, newest = self._versions.get(rank, (STALE, 0))
            alike.setdefault(version if int(number) == newest else STALE, []).append(rank)
        return [(some, f"{kind} {epoch} {version}") for version, some in alike.items()]

    def _number(self, rank: int, version: str) -> int:
        last, number = self._versions.get(rank, ("", 0))
        if version != last:
            number = max(self._next, number + 1)
            self._highest = max(self._highest, number)
            self._versions[rank] = version, number
        return number
