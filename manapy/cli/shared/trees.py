"""Draws trees of processes: one line for each process, below its parent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Node(NamedTuple):
    """A process; ``parent``: that of no node: it is at the top."""

    pid: int
    parent: int | None
    text: str


def drawn(nodes: Sequence[Node]) -> list[str]:
    """The lines. Processes without their parent come first; siblings are in the order given."""
    known = {node.pid for node in nodes}
    below: dict[int | None, list[Node]] = {}
    for node in nodes:
        below.setdefault(node.parent if node.parent in known and node.parent != node.pid else None, []).append(node)
    return _lines(below, None, "", top=True)


def _lines(below: dict[int | None, list[Node]], parent: int | None, margin: str, *, top: bool = False) -> list[str]:
    found = []
    siblings = below.pop(parent, [])  # taken out: a damaged tree has no end
    for node in siblings:
        last = node is siblings[-1]
        found.append(f"{margin}{'' if top else '└─ ' if last else '├─ '}{node.pid} {node.text}")
        found += _lines(below, node.pid, margin + ("" if top else "   " if last else "│  "))
    return found
