"""A front end of the engine in numpy: layers with forward and backward passes, micro-batches, and an optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core import lazy

if TYPE_CHECKING:
    from .adam import Adam
    from .layers import Adapted, Dense, Layer, Tanh, cross_entropy
    from .numpy_training import initialise, micro_batch, units_of

_HOMES = {
    "adam": ("Adam",),
    "layers": ("Adapted", "Dense", "Layer", "Tanh", "cross_entropy"),
    "numpy_training": ("initialise", "micro_batch", "units_of"),
}
# importing mpi4py.MPI, as the engine does, initialises MPI
__getattr__ = lazy.names_of(__name__, _HOMES)

__all__ = ["Adam", "Adapted", "Dense", "Layer", "Tanh", "cross_entropy", "initialise", "micro_batch", "units_of"]
