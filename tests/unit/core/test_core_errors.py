"""The tree of errors in the head of core/errors.py is complete."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from manapy.core import errors


def test_every_error_stands_in_the_tree(root: Path) -> None:
    tree = errors.__doc__
    assert tree is not None
    defined = {
        node.name
        for path in (root / "manapy").rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name.endswith("Error")
    }
    assert len(defined) > 25
    assert defined == set(re.findall(r"\b[A-Z]\w*Error\b", tree))
