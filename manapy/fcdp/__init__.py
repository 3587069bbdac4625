"""FCDP: sharded training that crosses the network once per step (Fully Cached Data Parallel). See README.md of this
folder."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "engine.engine": ("Engine",),
    "engine.topology": ("Topology",),
    "engine.traffic": ("Phase",),
    "engine.units": ("Unit",),
    "layers": ("Adam", "initialise", "micro_batch", "units_of"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import names on first use: importing mpi4py.MPI initialises MPI, which a program that only plans does not
    want."""
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
