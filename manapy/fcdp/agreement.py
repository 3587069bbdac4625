"""An error of one rank becomes an error of all, in calls that all ranks make and before any data flows.

Only for the setting up, on the caller's thread. What happens later is in alarm.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import FcdpError

if TYPE_CHECKING:
    from mpi4py import MPI


def agree(comm: MPI.Comm, error: FcdpError | None) -> None:
    """Collective: returns if no rank has an error, else raises one on every rank: its own, or the first rank's with that rank's number."""
    errors = comm.allgather(None if error is None else (type(error), str(error)))
    if error is not None:
        raise error
    for rank, other in enumerate(errors):
        if other is not None:
            kind, text = other
            raise kind(f"rank {rank}: {text}")
