"""Trees of processes as text."""

from __future__ import annotations

from manapy.cli.shared.trees import Node, drawn


def test_drawn() -> None:
    nodes = [Node(1, 99, "sh"), Node(2, 1, "timeout"), Node(3, 2, "sleep"), Node(5, 1, "solver"), Node(4, 2, "x")]
    assert drawn(nodes) == ["1 sh", "├─ 2 timeout", "│  ├─ 3 sleep", "│  └─ 4 x", "└─ 5 solver"]


def test_no_tree() -> None:
    assert drawn([]) == []
    assert drawn([Node(1, None, "a"), Node(2, 7, "b")]) == ["1 a", "2 b"]
    assert drawn([Node(1, 1, "its own parent")]) == ["1 its own parent"]
    assert drawn([Node(1, 2, "a"), Node(2, 1, "b")]) == []  # a circle: no image has one, and it has no end
