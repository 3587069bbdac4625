"""What an application has shown, and the file that keeps it.

The file is replaced by rename after each application, so a reader always sees a complete one.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .results import Result


@dataclass(frozen=True)
class Run:
    """One run to the program's end. cause: why there is no result; empty if there is one."""

    seconds: float
    result: Result | None = None
    cause: str = ""


@dataclass(frozen=True)
class Moment:
    """A checkpoint, SIGKILL and restart. at: seconds after the start, or after the last restart."""

    at: float
    under: str  # the MPI of the restart


@dataclass(frozen=True)
class Record:
    """All that one application has shown.

    missing: what has to be installed before it can run. native, manapy: pairs of runs in turn. restarted: the run that
    went through `moments`.
    """

    name: str
    abi: str = ""
    ranks: int = 0
    missing: str = ""
    native: list[Run] = field(default_factory=list)
    manapy: list[Run] = field(default_factory=list)
    restarted: Run | None = None
    moments: list[Moment] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Time under manapy over native time, of each pair of runs."""
        pairs = zip(self.native, self.manapy, strict=False)
        return [ours.seconds / theirs.seconds for theirs, ours in pairs if ours.result and theirs.result]


def _run(data: dict[str, Any]) -> Run:
    return Run(data["seconds"], Result(**data["result"]) if data["result"] else None, data["cause"])


class Records:
    """The records by name, and their file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.of: dict[str, Record] = {}
        for data in json.loads(file.read_text()) if file.exists() else []:
            data |= {kind: [_run(run) for run in data[kind]] for kind in ("native", "manapy")}
            data["restarted"] = data["restarted"] and _run(data["restarted"])
            data["moments"] = [Moment(**moment) for moment in data["moments"]]
            record = Record(**data)
            self.of[record.name] = record

    def add(self, record: Record) -> None:
        """Keep a record."""
        self.of[record.name] = record
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps([dataclasses.asdict(one) for one in self.of.values()], indent=1))
        part.rename(self._file)
