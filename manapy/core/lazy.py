"""Names of a package that are imported at first use (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def names_of(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The __getattr__ of a package. homes: its modules, and the names that are found in each."""
    home = {name: module for module, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name in home:
            return getattr(import_module(f".{home[name]}", package), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
