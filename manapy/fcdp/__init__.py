"""FCDP: sharded training that crosses the network once per step (Fully Cached Data Parallel). See README.md of this
folder."""

from __future__ import annotations

from ..core import lazy

_HOMES = {
    "engine.engine": ("Engine",),
    "engine.topology": ("Topology",),
    "engine.traffic": ("Phase",),
    "engine.units": ("Unit",),
    "layers": ("Adam", "initialise", "micro_batch", "units_of"),
}
# importing mpi4py.MPI initialises MPI, which a program that only plans does not want
__getattr__ = lazy.names_of(__name__, _HOMES)
