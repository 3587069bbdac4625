"""Chains under `manapy run`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

from histories import events_in
from jobs import BIN, Job
from manapy.core import proc
from solver import SOLVER, in_c

LAUNCH = ["mpirun", "-n", "2", "manapy-launch", sys.executable]


def heat() -> list[str]:
    """The command of the solver."""
    return [*LAUNCH[:-1], str(in_c()), *SOLVER, "--out", "field.npy"]


class Run(Job):
    """A chain under `manapy run`; `dir` is the job directory of one of its steps."""

    number = 1  # the step to which `dir`, `pids` and `status` refer

    @property
    def chain(self) -> Path:
        """The chain's directory."""
        return self.where / "chain"

    @property
    def dir(self) -> Path:
        """The step's directory."""
        return self.chain / f"step-{self.number:03d}"

    def run(self, *options: str, command: list[str] | None = None) -> Run:
        """manapy run OPTIONS --dir CHAIN -- COMMAND. A solver is held before its last steps until finish()."""
        if command and "--steps" in command:
            steps, every = (int(command[command.index(option) + 1]) for option in ("--steps", "--every"))
            self.hold(steps - every)
        self.env["PATH"] = f"{BIN}:{os.environ['PATH']}"
        self.spawn([BIN / "manapy", "run", "--dir", self.chain, *options, *(["--", *command] if command else [])])
        return self

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The events of the history."""
        return events_in(self.chain, kind)

    def wait_for_event(self, kind: str, count: int = 1) -> dict[str, Any]:
        """Wait until so many events of a kind have come; the last of them."""
        self.wait_for(lambda text: len(self.events(kind)) >= count)
        return self.events(kind)[count - 1]

    def ends(self) -> list[str]:
        """How its attempts ended."""
        return [event["how"] for event in self.events("end")]

    def report(self) -> str:
        """The report of the job, with the history and the logs of all steps."""
        parts = [
            f"--- {path}\n{path.read_text(errors='replace')[-4000:]}"
            for path in [self.chain / "history.jsonl", *self.chain.glob("*/coordinator.log")]
            if path.exists()
        ]
        return "\n".join([super().report(), *parts])

    def kill_rank(self, rank: int = 1) -> None:
        """SIGKILL to a rank of the step."""
        os.kill(self.pids()[rank], signal.SIGKILL)

    def end(self) -> None:
        """End all processes of the chain."""
        if self.process is None or self.process.poll() is not None:
            return
        below = proc.descendants(self.process.pid)
        for pid in [self.process.pid, *below]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
