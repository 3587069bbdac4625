"""mpi4py's MPI. No extra of manapy but [mpich] brings it, because a cluster has an MPI of its own."""

from __future__ import annotations

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py without an MPI library
    raise ImportError(
        f"manapy.fcdp needs mpi4py and an MPI library: manapy's extra 'mpich', or mpi4py for your MPI ({error})"
    ) from None

__all__ = ["MPI"]
