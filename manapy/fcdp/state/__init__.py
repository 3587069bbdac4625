"""Saves a training's state and loads it, on any number of ranks and by any strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core import lazy

if TYPE_CHECKING:
    from .save_load import Optimizer, export, full, load, load_file, save, whole

_HOMES = {
    "save_load": ("Optimizer", "export", "full", "load", "load_file", "save", "whole"),
}
# the modules of this folder that the engine uses need none of it
__getattr__ = lazy.names_of(__name__, _HOMES)

__all__ = ["Optimizer", "export", "full", "load", "load_file", "save", "whole"]
