"""The nodes of an AND/OR graph of waits that can never go on, and the knots among them (Holt 1972, Misra and Chandy
1982). waitfor.py makes the graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence


def find(
    needs: Mapping[int, Sequence[int]], any_of: Collection[int], free: Collection[int], size: int
) -> tuple[set[int], list[tuple[int, ...]]]:
    """Return the deadlocked ranks, and the ranks of each knot. Nodes below `size` are ranks.

    needs: the nodes for which each node waits: for all of them, or for any if it is in any_of. free: the ranks that
    wait for no rank.
    """
    users: dict[int, list[int]] = {}
    for node, targets in needs.items():
        for target in targets:
            users.setdefault(target, []).append(node)
    left = {node: 1 if node in any_of else len(targets) for node, targets in needs.items()}
    ready = list(free)
    while ready:
        for user in users.get(ready.pop(), ()):
            if user in left:
                left[user] -= 1
                if left[user] == 0:
                    del left[user]
                    ready.append(user)
    found = []
    for component in _components({node: [t for t in needs[node] if t in left] for node in left}):
        inside = set(component)
        if all(target in inside for node in component for target in needs[node] if target in left) and any(
            t in inside for n in component for t in needs[n]
        ):
            found.append(tuple(sorted(node for node in component if node < size)))
    return {node for node in left if node < size}, found


def _components(edges: dict[int, list[int]]) -> list[list[int]]:
    """Return the strongly connected components (Tarjan 1972, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[list[int]] = []
    for root in edges:
        if root in index:
            continue
        work: list[tuple[int, Callable[[], int | None]]] = []

        def enter(node: int) -> None:
            index[node] = low[node] = len(index)
            stack.append(node)
            on_stack.add(node)
            targets = iter(edges[node])
            work.append((node, lambda: next(targets, None)))

        enter(root)
        while work:
            node, following = work[-1]
            target = following()
            if target is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component: list[int] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    found.append(component)
            elif target not in index:
                enter(target)
            elif target in on_stack:
                low[node] = min(low[node], index[target])
    return found
