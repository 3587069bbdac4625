"""The verdict of `manapy why` on a job of the tests, asked until it is certain."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jobs import BIN, PATIENCE, Job, manapy

Answer = tuple[int, dict[str, Any], str]


def why(job: Path, *options: str, **how: Any) -> Answer:
    """Exit code, data, and additional messages. ``how``: as for manapy()."""
    done = manapy("why", job, "--json", *options, **how)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def until_hung(job: Job, ask: Callable[[], Answer], state: str = "hung") -> list[dict[str, Any]]:
    """The verdicts, as soon as that is the state. Earlier verdicts must accuse no rank."""
    deadline = time.monotonic() + PATIENCE
    while True:
        code, said, errors = ask()
        if said["state"] == state:
            assert code == {"late": 3, "hung": 4}[state], said
            return list(said["verdicts"])
        assert all(verdict["rank"] is None for verdict in said["verdicts"]), said
        assert time.monotonic() < deadline, (said, errors, job.report())
        time.sleep(0.2)


def starve(rank: int) -> str:
    """The fault of osu_bench/trace/pipeline.py by which this rank waits for its processor. There are so many busy
    processes that the rank stands out even if all processes of the machine wait for processors; not so many that the
    tests beside this one get no time, or that it takes a minute to start them."""
    return f"starve:rank={rank},iteration=20,busy={min(4 + 2 * int(os.getloadavg()[0]), 20)}"


@contextlib.contextmanager
def watched(
    said: Path, *arguments: str | Path, inside: Sequence[str | Path] = ()
) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Runs `manapy why --watch` meanwhile; yields a function that returns the verdicts so far. said: the file to which
    they are written."""

    def so_far() -> list[dict[str, Any]]:
        lines = said.read_text().splitlines(keepends=True) if said.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    command = [
        *inside,
        BIN / "manapy",
        "why",
        "--watch",
        "--every",
        "200ms",
        "--patience",
        "0",
        "--run",
        f'echo "$MANAPY_VERDICT" >> {said}',
        *arguments,
    ]
    watcher = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield so_far
    finally:
        watcher.terminate()
        watcher.wait(PATIENCE)
