"""What the coordinator reports to users: what a job waits for, and its status."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.units import first_and_more
from ..phase import Phase
from .flow import Flow, Published, name_ranks
from .later_stop import LaterStop
from .mpi_init import InitWatch
from .ranks import Ranks
from .requests import CheckpointCalls

LATE_SECONDS = 10.0  # after the coordinator's start; from then on missing ranks are explained
NAMED_MAX = 20  # ranks that are named one by one


@dataclass
class Report:
    """Looks at the parts of one job.

    ``resumed``: is it a restart? ``started``: is set when all ranks run. ``busy()``: why ranks were refused, or empty.
    ``later_stop``: has the user scheduled the end of the job?
    """

    directory: Path
    resumed: bool
    ranks: Ranks
    flow: Flow
    init: InitWatch
    tickets: CheckpointCalls
    started: asyncio.Event
    busy: Callable[[], str]
    later_stop: LaterStop
    begun: float = field(default_factory=time.monotonic)

    def waiting(self) -> list[str]:
        """Return what the job or a checkpoint waits for."""
        if text := self.init.report():
            return [text]
        missing = self.ranks.missing()
        if missing and not self.ranks.over.is_set():
            return [self.explain(missing)]
        if not self.started.is_set():
            restored = (number for number, rank in sorted(self.ranks.known.items()) if not rank.ready)
            return [f"rank {number} is still being restored" for number in restored][:NAMED_MAX]
        if self.tickets.called and self.flow.phase is Phase.IDLE:
            absent = next(rank for rank in range(self.ranks.size) if rank not in self.tickets.called)
            return [f"rank {min(self.tickets.called)} has called manapy.checkpoint(), rank {absent} has not"]
        return self.flow.waiting() or [self.later_stop.text] * bool(self.later_stop.text)

    def explain(self, missing: list[int]) -> str:
        """Why these ranks have not connected."""
        if time.monotonic() - self.begun < LATE_SECONDS and not self.busy():
            return f"rank {first_and_more(missing)} not started yet"
        why = self.busy() or (
            ("a restarted rank connects after its MPI_Init, which may wait for them; " if self.resumed else "")
            + f"see their standard error and {self.directory / 'coordinator.log'}"
        )
        return f"{name_ranks(missing)} {'has' if len(missing) == 1 else 'have'} not connected to the coordinator: {why}"

    def status(self, record: dict[str, Any], state: str, last: Published | None) -> dict[str, Any]:
        """The answer to STATUS; the keys are in README.md."""
        return {
            "id": record["id"],
            "dir": str(self.directory),
            "state": state,
            "phase": self.flow.phase.value,
            "size": self.ranks.size,
            "pid": os.getpid(),
            "program": record["argv"],
            "protocol": record.get("protocol", "cc"),
            "started": record["started"],
            "ranks": [self._rank(number) for number in range(self.ranks.size)],
            "waiting": self.waiting(),
            "written": self.flow.written,
            "dirty": self.flow.increments.way,
            "dirty_used": self.flow.increments.used,
            "checkpoint_dir": str(self.flow.place),
            "last_checkpoint": None
            if last is None
            else {"path": str(last.path), "time": last.time, "bytes": last.bytes},
            "stood": self.flow.stood,
        }

    def _rank(self, number: int) -> dict[str, Any]:
        rank = self.ranks.known.get(number)
        if rank is None:
            return {"rank": number, "host": None, "pid": None, "state": "starting", "waits_for": None, "program": None}
        state, waits_for = self.flow.rank_state(number)
        if not rank.connected:
            state, waits_for = "ended" if rank.done else "died" if rank.gone else "starting", None
        elif rank.done:
            state, waits_for = "finishing", None
        elif rank.mpi == "init":
            state, waits_for = "in MPI_Init", None
        return {
            "rank": number,
            "host": rank.host,
            "pid": rank.pid,
            "state": state,
            "waits_for": waits_for,
            "program": rank.program,
            "mpi": rank.mpi,
        }
