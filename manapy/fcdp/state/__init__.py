"""Saves a training's state and loads it, on any number of ranks and by any strategy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .save_load import Optimizer, export, full, load, load_file, save, whole

_HOMES = {
    "save_load": ("Optimizer", "export", "full", "load", "load_file", "save", "whole"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = ["Optimizer", "export", "full", "load", "load_file", "save", "whole"]


def __getattr__(name: str) -> Any:
    """Imports on first use: the modules of this folder that the engine uses need none of it."""
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
