"""Folding on one host: processes `manapy _fold` (store/fold.py), which an agent starts when the coordinator says so.

Invariants
 1. A process ends with this one, because its standard input ends then.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from ..core import installation
from ..core.errors import CheckpointError

PROGRAM = "manapy: "  # before its errors


class Folding:
    """The processes of this host. Threads may call the methods at the same time."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()

    def run(self, temporary: str, checkpoint: str, folders: Sequence[str]) -> list[str]:
        """Fold the images in these folders of a checkpoint. Returns their paths in the checkpoint, each with its bytes.
        Raises CheckpointError, OSError."""
        command = [str(installation.executable("manapy") or "manapy"), "_fold", temporary, checkpoint, *folders]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._running.add(process)
        with process:
            assert process.stderr is not None
            errors = process.stderr.read().splitlines()
        self._running.discard(process)
        if process.returncode < 0:
            raise CheckpointError(f"the process that folded was ended by signal {-process.returncode}")
        if process.returncode:
            raise CheckpointError(errors[-1].removeprefix(PROGRAM) if errors else "the process that folded failed")
        images = [path for name in folders for path in sorted((Path(checkpoint) / name).glob("rank-*.img"))]
        return [word for path in images for word in (str(path.relative_to(checkpoint)), str(path.stat().st_size))]

    def end(self) -> None:
        """End all processes."""
        for process in list(self._running):
            process.kill()
