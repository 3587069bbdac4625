"""Ask a backend of lowerhalf/rdma/requests/rewind.h which requests are outstanding on queues that a test has
written."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Rewinder:
    """rewind_driver, built with sanitizers, and a directory for the queues."""

    def __init__(self, program: Path, directory: Path) -> None:
        self.program, self.directory = program, directory

    def ask(self, arguments: Sequence[object], commands: Sequence[str]) -> list[Any]:
        """The results: those of the attaches, as text; then for each command a pair of its result and the entries."""
        done = subprocess.run(
            [self.program, *map(str, arguments)], input="\n".join(commands), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        lines: list[Any] = []
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                lines[-1][1].append(json.loads(line))
            else:
                lines.append((line, []))
        return lines


def last(kind: str, requests: Sequence[Any], n: int) -> str:
    """The command that asks for the last n of what was posted; kind: "sends" or "recvs"."""
    return " ".join(map(str, [kind, n, *(request.wr_id for request in requests[len(requests) - n :])]))
