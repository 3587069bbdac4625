"""The ranks that wait for a rank, directly or behind others: the graph of waitfor.py in reverse."""

from __future__ import annotations

from collections.abc import Iterable

from .waitfor import Graph, Open, WaitCondition


class Waiting:
    """Finds the ranks that wait for a rank. Calls with the same wants are stored once."""

    def __init__(self, graph: Graph) -> None:
        self._direct: dict[int, list[list[tuple[Open, WaitCondition]]]] = {}
        self._extra: dict[int, list[tuple[Open, WaitCondition]]] = {}
        self._graph = graph
        shared: dict[tuple[int, ...], list[tuple[Open, WaitCondition]]] = {}
        for call in graph.calls:
            for want in call.wants:
                if not want.ranks:
                    continue
                if want.ranks not in shared:
                    shared[want.ranks] = []
                    for rank in want.ranks:
                        self._direct.setdefault(rank, []).append(shared[want.ranks])
                shared[want.ranks].append((call, want))

    def add(self, rank: int, call: Open, want: WaitCondition) -> None:
        """Add a call that waits for a rank although all calls have been made."""
        self._extra.setdefault(rank, []).append((call, want))

    def ranks(self) -> Iterable[int]:
        """Return all ranks for which others wait."""
        return {*self._direct, *self._extra}

    def on(self, rank: int) -> list[tuple[Open, WaitCondition]]:
        """Return the calls that wait directly for a rank, the longest wait first."""
        found = [one for group in self._direct.get(rank, ()) for one in group if one[0].rank != rank]
        return sorted([*found, *self._extra.get(rank, ())], key=lambda one: one[0].since)

    def has(self, rank: int, call: Open) -> bool:
        """Return whether this call waits for `rank` although `rank` has made its own call."""
        return any(one is call for one, _ in self._extra.get(rank, ()))

    def behind(self, rank: int) -> set[int]:
        """Return all ranks that wait for a rank, directly or behind others."""
        found: set[int] = set()
        groups: set[int] = set()
        todo = [rank]
        while todo:
            at = todo.pop()
            nexts = [call.rank for call, _ in self._extra.get(at, ())]
            for group in self._direct.get(at, ()):
                if id(group) not in groups:
                    groups.add(id(group))
                    nexts += [call.rank for call, _ in group]
            for other in nexts:
                if other not in found and other != rank:
                    found.add(other)
                    todo.append(other)
        return found


def cycle_in(graph: Graph, knot: tuple[int, ...]) -> list[tuple[int, WaitCondition, int]]:
    """Return a cycle inside a knot: (rank, what it waits for, the rank that it waits for)."""
    inside, seen = set(knot), dict[int, int]()
    path: list[tuple[int, WaitCondition, int]] = []
    at = knot[0]
    while at not in seen:
        seen[at] = len(path)
        peer, want = next((p, w) for p, w in graph.opened[at].awaited() if p in inside)
        path.append((at, want, peer))
        at = peer
    return path[seen[at] :]
