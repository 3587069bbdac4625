"""A chain without Slurm or mpirun: its history is written as the supervisor and the steps would write it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from manapy.chain import record
from manapy.chain.record import Chain

MOMENT = 0.01  # seconds


def events_in(chain: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The events that the history in a chain's directory holds now: all events, or those of one kind. A line may be
    half written."""
    file = chain / "history.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    events = [json.loads(line) for line in lines if line.endswith("}\n")]
    return [event for event in events if kind in (None, event["event"])]


class History:
    """A chain in a new directory, with shorthands for its events. Each attempt gets the next number."""

    _made: Path | None = None  # the directory of a job whose step is not noted yet

    def __init__(self, directory: Path, command: list[str] | None = None) -> None:
        self.chain: Chain = record.create(
            directory, {"kind": "run", "command": command or ["mpirun", "solver"], "cwd": str(directory.parent)}
        )

    def begin(self, **fields: Any) -> int:
        """Begin an attempt; its number."""
        number = self.chain.attempts() + 1
        self.chain.append("attempt", number, **{"id": "", "nodes": [], "deadline": None, **fields})
        return number

    def note(self, kind: str, **fields: Any) -> None:
        """Append an event of the running attempt."""
        self.chain.append(kind, self.chain.attempts(), **fields)

    def step(self, where: Path, **fields: Any) -> None:
        """manapy-launch has asked what became of its step, whose job is in this directory."""
        found = {"step": 1, "argv": ["solver"], "ranks": 2, "verdict": "new", "path": "", "code": 0, **fields}
        self.note("step", dir=str(where), **found)
        if where == self._made:
            self._begin_after(where)

    def checkpoint(self, seconds: float = 1.0, path: str = "ckpt-000001") -> None:
        """Append only the event; no files are written."""
        self.note("checkpoint", path=path, seconds=seconds, bytes=4096, cause="interval")

    def end(self, how: str, code: int = 0, reason: str = "") -> None:
        """The running attempt ends."""
        self.note("end", how=how, code=code, reason=reason)

    def attempt(self, how: str, checkpoints: int = 0, reason: str = "") -> None:
        """A whole attempt."""
        self.begin()
        for _ in range(checkpoints):
            self.checkpoint()
        self.end(how, reason=reason)

    def job(self, number: int, state: str, **fields: Any) -> Path:
        """The job directory of a step, as its coordinator would leave it. The job starts a moment after the step was
        noted; tests note the step afterwards, which may take long on a busy disk (_begin_after)."""
        where = self.chain.dir / f"step-{number:03d}"
        where.mkdir(exist_ok=True)
        record = {
            "format": 1,
            "id": "x",
            "state": state,
            "host": "127.0.0.1",
            "port": 1,
            "ranks": 2,
            "argv": ["solver"],
            "started": time.time() + MOMENT,
            "changed": time.time() + MOMENT,
            **fields,
        }
        self._made = where if "started" not in fields else None
        (where / "job.json").write_text(json.dumps(record))
        (where / "secret").write_bytes(bytes(32))
        return where

    def _begin_after(self, where: Path) -> None:
        """Its job begins after the step that was noted last."""
        record = json.loads((where / "job.json").read_text())
        record["started"] = max(record["started"], self.chain.events("step")[-1]["time"] + MOMENT)
        (where / "job.json").write_text(json.dumps(record))
        self._made = None
