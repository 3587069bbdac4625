"""Ranks that do not return from the real MPI_Init: which ones, since when, and what they wait for.

A rank reports an MPI_Init that takes long (PROGRAM init). Restarted ranks connect after their MPI_Init: there rank 0
tells the user (lowerhalf/mpi/slow_init.c).

Invariant
 1. A line for the user is due after SAY_SECONDS, and again whenever MPI_Init has taken SAY_FACTOR times as long.
"""

from __future__ import annotations

import time
from typing import Any

from ...core.units import first_and_more
from .. import protocol
from .flow import name_ranks
from .ranks import Rank, Ranks

SAY_SECONDS, SAY_FACTOR = 10.0, 3.0


class InitWatch:
    """Watches the ranks of one job."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._due = SAY_SECONDS
        self._reported: dict[int, Rank] = {}  # those that have been in MPI_Init for long at some time

    def note(self, rank: Rank) -> None:
        """A rank has sent PROGRAM."""
        if rank.mpi == "init":
            rank.init_since = time.monotonic() - protocol.INIT_MS / 1000
            self._reported[rank.number] = rank
        else:
            self._reported.pop(rank.number, None)

    def inside(self) -> list[Rank]:
        """The ranks that are in MPI_Init, in order."""
        ranks = (rank for _, rank in sorted(self._reported.items()))
        return [rank for rank in ranks if rank.connected and not rank.done]

    def report(self) -> str:
        """One line about these ranks; empty if there are none."""
        inside = self.inside()
        if not inside:
            return ""
        text = f"{_have(inside)} been in MPI_Init for {_seconds(inside):.0f} s"
        if missing := self._ranks.missing():
            return f"{text}: {name_ranks(missing)} {_verb(missing)} not connected to the coordinator yet"
        outside = [rank for _, rank in sorted(self._ranks.known.items()) if rank.mpi == "none"]
        if ended := [rank for rank in outside if rank.done or not rank.connected]:
            return f"{text}: {_have(ended)} ended without calling it"
        if outside:
            return f"{text}: {_have(outside)} not called it yet; look at pid {outside[0].pid} on {outside[0].host}"
        return (
            f"{text}: it waits for mpirun (its process manager) or for the network between the ranks; look at mpirun's "
            f"messages, at the network interface that MPI uses, or at pid {inside[0].pid} on {inside[0].host}"
        )

    def due(self) -> tuple[Rank, str] | None:
        """A line for the user that is due now, and the rank that is to print it."""
        inside = self.inside()
        if not inside:
            self._due = SAY_SECONDS
            return None
        seconds = _seconds(inside)
        if seconds < self._due:
            return None
        self._due = seconds * SAY_FACTOR
        return inside[0], self.report()


def _seconds(ranks: list[Rank]) -> float:
    return time.monotonic() - min(rank.init_since for rank in ranks)


def _verb(ranks: list[Any]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _have(ranks: list[Rank]) -> str:
    """'ranks 1, 2 (on a) have'; of many hosts only the first."""
    hosts = list(dict.fromkeys(rank.host for rank in ranks))
    return f"{name_ranks([rank.number for rank in ranks])} (on {first_and_more(hosts, 3)}) {_verb(ranks)}"
