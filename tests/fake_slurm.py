"""Slurm's commands as shell scripts on PATH, for tests of the guard and of batch jobs without a Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest
from manapy.chain import slurm

JOB = {
    "JobState": "RUNNING",
    "EndTime": "NONE",
    "PreemptTime": "N/A",
    "Restarts": "0",
    "Requeue": "1",
    "TimeLimit": "UNLIMITED",
    "TimeMin": "0:00",
}


def at(seconds: float) -> str:
    """A time in seconds since the epoch as Slurm shows it to the guard."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def line(**fields: str) -> str:
    """What squeue prints of a job."""
    return "".join({**JOB, **fields}[name].ljust(slurm.WIDTH) for name in slurm.SHOWN)


def fail(error: Exception) -> NoReturn:
    """Raise an error, in a lambda."""
    raise error


class FakeSlurm:
    """Commands that know one running job, 17, on the node n1. They are found on PATH, by this process, too."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._dir = directory
        directory.mkdir()
        for name in list(os.environ):
            if name.startswith("SLURM"):
                monkeypatch.delenv(name)
        monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
        monkeypatch.setenv("SLURM_JOB_ID", "17")
        monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
        self.job()
        self.answer("sinfo", "echo n1 allocated")
        self.answer("sbatch", "echo 18")
        for name in ("scontrol", "scancel"):
            self.answer(name, "")

    def answer(self, name: str, script: str, fails: int = 0) -> None:
        """Let a command run these lines of a shell script. Its $PPID is the process that has called it. The first calls
        fail, as while slurmctld starts again."""
        calls = self._dir / "calls"
        down = f"[ $(grep -c '^{name} ' {calls}) -gt {fails} ] || {{ echo 'error: no controller' >&2; exit 1; }}"
        new = self._dir / f"{name}.new"
        new.write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\n{down}\n{script}\n')
        new.chmod(0o755)
        new.replace(self._dir / name)

    def job(self, before: str = "", fails: int = 0, **fields: str) -> None:
        """What squeue says of the job. It runs ``before`` first."""
        self.answer("squeue", f"{before}\necho '{line(**fields)}'", fails)

    def calls(self, begin: str = "") -> list[str]:
        """The calls so far that begin with these words."""
        file = self._dir / "calls"
        return [line for line in file.read_text().splitlines() if line.startswith(begin)] if file.exists() else []


def guard(chain: Path, *arguments: str | Path, script: str) -> subprocess.CompletedProcess[str]:
    """`manapy slurm guard` with a new script, as in a batch job. It does not wait long before it tries again, and gives
    a busy machine time for an answer."""
    file = chain.parent / "job.sh"
    file.write_text(f"#!/bin/sh\n{script}\n")
    code = (
        "import sys; from manapy.chain import attempt, slurm; from manapy.cli import main; "
        "slurm.PAUSE, attempt.LEAST = 0.01, 60.0; sys.exit(main())"
    )
    words = ["slurm", "guard", "--dir", chain, "--watch", "off", *arguments, "--", file]
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], cwd=chain.parent, capture_output=True, text=True, timeout=100
    )
