"""Which ranks are needed: the transitive closure of "a needed, blocked rank asks the ranks it waits for", kept
incrementally.

A *vertex* is a rank (int), one of the waits of its threads ((rank, number)), or a whole communicator ((cid,), a relay
between the waits for "any member" and the members). A *root* is a rank below target. A rank is needed if it is a root
or if an asking vertex supports it. It is unknown which of its threads is needed, so all of them are.

Invariants
 1. A vertex asks only while it is needed. A rank asks its waits. A wait asks all of its peers. An ANY wait asks them
    only if at some moment since it began none of them was running (it keeps asking when one runs again).
 2. ``_via`` is a forest: the support of a needed vertex that is not a root leads to a root. So two ranks that wait for
    each other (both in Recv(ANY_SOURCE)) don't keep each other needed when no other rank needs them.
 3. An ANY wait that does not ask yet has a *witness*, one running peer. Another witness is searched only when it stops.
    So a change of state costs only what depends on it, never a scan of all ranks.
 4. ``changed`` lists every rank whose needed() has changed since it was last cleared (a rank may be listed more than
    once).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from ._state import Mode

Vertex: TypeAlias = int | tuple[int] | tuple[int, int]


class Wait(NamedTuple):
    """``peers`` empty: every member of ``cid``."""

    mode: Mode
    peers: tuple[int, ...]
    cid: int = 0


def _is_wait(v: Vertex) -> bool:
    return not isinstance(v, int) and len(v) == 2


class Needs:
    """The needed ranks. ``running(rank)``: can it act without help? ``members(cid)``: world ranks."""

    def __init__(
        self, running: Callable[[int], bool], members: Callable[[int], Sequence[int]], *, transitive: bool = True
    ) -> None:
        self.changed: list[int] = []
        self._running = running
        self._members = members
        self._transitive = transitive  # False only to show in a test that the protocol needs it
        self._roots: set[int] = set()
        self._waits: dict[int, tuple[Wait, ...]] = {}
        self._via: dict[Vertex, Vertex] = {}
        self._asks: dict[Vertex, Sequence[Vertex]] = {}
        self._askers: dict[Vertex, set[Vertex]] = {}
        self._witness_of: dict[int, set[Vertex]] = {}  # running rank -> waits that rely on it
        self._witness: dict[Vertex, int] = {}  # the inverse

    def needed(self, vertex: Vertex) -> bool:
        return vertex in self._roots or vertex in self._via

    def askers(self, rank: int) -> list[int]:
        """The ranks that ask this one, directly or through a communicator; for messages."""
        waits = [u for v in self._askers.get(rank, ()) for u in ([v] if _is_wait(v) else self._askers.get(v, ()))]
        return sorted({u[0] for u in waits if not isinstance(u, int)} - {rank})

    def set_root(self, rank: int, below: bool) -> None:
        if below == (rank in self._roots):
            return
        if below:
            known = rank in self._via
            self._roots.add(rank)
            self._via.pop(rank, None)
            if not known:
                self.changed.append(rank)
                self._activate(rank)
        else:
            self._roots.discard(rank)
            self._resettle([rank])

    def set_waits(self, rank: int, waits: tuple[Wait, ...]) -> None:
        """Set all waits of the threads of ``rank``."""
        if waits == self._waits.get(rank, ()):
            return
        if rank in self._waits:
            self._resettle(self._deactivate(rank))
            del self._waits[rank]
        if waits:
            self._waits[rank] = waits
            if self.needed(rank):
                self._activate(rank)

    def stopped(self, rank: int) -> None:
        """``rank`` has stopped: waits that relied on it find another witness, or start to ask."""
        for waiting in self._witness_of.pop(rank, ()):
            del self._witness[waiting]
            self._activate(waiting)

    def _wishes(self, v: Vertex) -> Sequence[Vertex] | None:
        """The vertices that a needed vertex should ask. None: it asks none (an ANY wait has found a witness)."""
        if isinstance(v, int):
            waits = self._waits.get(v, ()) if self._transitive else ()
            return [(v, i) for i in range(len(waits))] or None
        if len(v) == 1:
            return self._members(v[0])
        wait = self._waits[v[0]][v[1]]
        if wait.mode is Mode.ANY:
            for peer in wait.peers or self._members(wait.cid):
                if peer != v[0] and self._running(peer):
                    self._witness[v] = peer
                    self._witness_of.setdefault(peer, set()).add(v)
                    return None
        return wait.peers or ((wait.cid,),)

    def _activate(self, vertex: Vertex) -> None:
        stack = [vertex]
        while stack:
            v = stack.pop()
            if v in self._asks or v in self._witness:
                continue
            asks = self._wishes(v)
            if asks is None:
                continue
            self._asks[v] = asks
            for w in asks:
                self._askers.setdefault(w, set()).add(v)
                if w != v and not self.needed(w):
                    self._via[w] = v
                    stack.append(w)
                    if isinstance(w, int):
                        self.changed.append(w)

    def _deactivate(self, v: Vertex) -> list[Vertex]:
        """Take back what ``v`` asks. Returns the vertices that have lost their support."""
        if (witness := self._witness.pop(v, None)) is not None:
            self._witness_of[witness].discard(v)
        orphans: list[Vertex] = []
        for w in self._asks.pop(v, ()):
            self._askers[w].discard(v)
            if self._via.get(w) == v:
                orphans.append(w)
        return orphans

    def _resettle(self, orphans: Iterable[Vertex]) -> None:
        """Find other support for the orphans and everything that depends on them; the rest is no longer needed."""
        lost: set[Vertex] = set()
        stack = list(orphans)
        while stack:
            v = stack.pop()
            if v in self._roots or v in lost:
                continue
            lost.add(v)
            self._via.pop(v, None)
            stack.extend(w for w in self._asks.get(v, ()) if self._via.get(w) == v)
        rescued: list[Vertex] = []
        for v in lost:
            support = next((u for u in self._askers.get(v, ()) if u not in lost), None)
            if support is not None:
                self._via[v] = support
                rescued.append(v)
        while rescued:
            v = rescued.pop()
            lost.discard(v)
            for w in self._asks.get(v, ()):
                if w in lost and w not in self._via:
                    self._via[w] = v
                    rescued.append(w)
        for v in lost:
            self._deactivate(v)
            if isinstance(v, int):
                self.changed.append(v)
