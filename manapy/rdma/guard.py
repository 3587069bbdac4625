"""A checkpoint soon after a failover: traffic continues, but the next failure may have no other path.

The idea is from the paper "SHIFT: An RDMA Failure-Resilient Layer for Distributed Training", section 4.3, "Optimization
with checkpointing-restart". Both ends of each connection fall back, on several hosts, one queue pair after another. So
events within a short time count as one occasion. If another host's agent has asked for a checkpoint, that one is
enough: `manapy checkpoint --unless-within`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .place import MANAPY

OCCASION_SECONDS = 30.0

log = logging.getLogger(__name__)


class Guard:
    """Takes checkpoints of jobs whose programs have fallen back. tell: is called with an event for each attempt."""

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self._jobs: dict[int, Path] = {}  # key: the process that has asked for it
        self._busy: dict[Path, asyncio.Task[None]] = {}
        self._tell = tell

    def add(self, pid: int, directory: Path) -> None:
        """Add a rank of the job in this directory."""
        self._jobs[pid] = directory

    def remove(self, pid: int) -> None:
        """A rank has ended."""
        self._jobs.pop(pid, None)

    def on_event(self, pid: int, event: str) -> None:
        """A queue pair of this process has sent an event."""
        directory = self._jobs.get(pid)
        if event == "fallback" and directory is not None and directory not in self._busy:
            self._busy[directory] = asyncio.ensure_future(self._checkpoint(directory))
            self._busy[directory].add_done_callback(lambda _: self._busy.pop(directory))

    def cancel(self) -> None:
        """The agent ends. The coordinator continues a checkpoint that was requested."""
        for task in list(self._busy.values()):
            task.cancel()

    async def _checkpoint(self, directory: Path) -> None:
        command = ["checkpoint", str(directory), "--unless-within", f"{OCCASION_SECONDS}s"]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-c",
            MANAPY,
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, error = await process.communicate()
        said = (out if process.returncode == 0 else error).decode(errors="replace").strip()
        log.info("early checkpoint of %s: %s", directory, said)
        self._tell(
            {
                "event": "checkpoint" if process.returncode == 0 else "checkpoint-failed",
                "job_dir": str(directory),
                "said": said,
            }
        )
