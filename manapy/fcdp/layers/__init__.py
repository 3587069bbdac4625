"""A front end of the engine in numpy: layers with forward and backward passes, micro-batches, and an optimizer."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adam import Adam
    from .layers import Adapted, Dense, Layer, Tanh, cross_entropy
    from .numpy_training import initialise, micro_batch, units_of

_HOMES = {
    "adam": ("Adam",),
    "layers": ("Adapted", "Dense", "Layer", "Tanh", "cross_entropy"),
    "numpy_training": ("initialise", "micro_batch", "units_of"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = ["Adam", "Adapted", "Dense", "Layer", "Tanh", "cross_entropy", "initialise", "micro_batch", "units_of"]


def __getattr__(name: str) -> Any:
    """Imports on first use: importing mpi4py.MPI, as the engine does, initialises MPI."""
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
