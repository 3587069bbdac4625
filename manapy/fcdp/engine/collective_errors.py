"""Turns an error of one rank into an error of all ranks, in calls that all ranks make.

During the set-up, before any data flows, this uses a communicator, on the caller's thread. Later it uses the engine,
whose allgather ends if a rank fails elsewhere (failure_broadcast.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from ..errors import FcdpError, RemoteError

T = TypeVar("T")


class Ranks(Protocol):
    """A communicator of mpi4py, or the engine."""

    def allgather(self, value: Any, /) -> list[Any]:
        """Every rank's value, by rank."""


def agree(ranks: Ranks, error: Exception | None) -> None:
    """Collective. Returns if no rank has an error. Else each rank raises its own error, or the first rank's error with
    this rank's number; RemoteError for errors of other classes than ours."""
    errors = ranks.allgather(None if error is None else _told(error))
    if error is not None:
        raise error
    for rank, other in enumerate(errors):
        if other is not None:
            kind, text = other
            raise kind(f"rank {rank}: {text}")


def agreed(ranks: Ranks, job: Callable[[], T]) -> T:
    """Collective. Runs a function on every rank, and returns this rank's result. If one rank raises an error, all raise
    it, but only when all have finished."""
    results: list[T] = []
    agree(ranks, error_of(lambda: results.append(job())))
    return results[0]


def _told(error: Exception) -> tuple[type[FcdpError], str]:
    """Return the class and the text of the error that other ranks raise. They may be unable to create an error of the
    program's own class."""
    return (
        (type(error), str(error)) if isinstance(error, FcdpError) else (RemoteError, f"{type(error).__name__}: {error}")
    )


def error_of(check: Callable[[], object]) -> Exception | None:
    """Return the error that a check raises on this rank, for agree(). Functions of the program may raise anything."""
    try:
        check()
    except Exception as error:
        return error
    return None
