"""Running the commands that are measured. Everything a benchmark starts ends with it; every wait has a limit."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
SOURCES = Path(__file__).resolve().parent
PATIENCE = 600.0  # seconds for one command


class BenchError(RuntimeError):
    """A command failed; with what it printed."""


@dataclass(frozen=True)
class Setting:
    """Where and how much is measured. pairs: native/manapy runs per row; batches: samples inside one run."""

    work: Path
    pairs: int
    batches: int
    megabytes: int

    def program(self, name: str) -> str:
        """The path of a compiled program of this folder."""
        return str(self.work / name)

    def fresh(self, name: str) -> Path:
        """A path in the working directory that doesn't exist."""
        number = 0
        while (path := self.work / f"{name}-{number}").exists():
            number += 1
        return path


def compile_programs(work: Path) -> None:
    """With the mpicc beside this Python: the programs are plain MPI programs and know nothing of manapy."""
    for name in ("calls", "latency", "steps"):
        run([BIN / "mpicc", "-O2", "-Wall", "-o", work / name, SOURCES / f"{name}.c"])


def run(command: Sequence[str | Path], cwd: Path | None = None) -> str:
    """Standard output; BenchError if it fails."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, cwd=cwd)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{' '.join(words)}: did not end within {PATIENCE:.0f} s") from error
    if done.returncode:
        raise BenchError(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def timed(command: Sequence[str | Path], cwd: Path | None = None) -> float:
    """Seconds until a command has ended."""
    begin = time.perf_counter()
    run(command, cwd)
    return time.perf_counter() - begin


def together(commands: Sequence[Sequence[str | Path]]) -> float:
    """Seconds until commands started at once have all ended."""
    begin = time.perf_counter()
    running = [subprocess.Popen([str(word) for word in command], stderr=subprocess.DEVNULL) for command in commands]
    codes = [process.wait(PATIENCE) for process in running]
    seconds = time.perf_counter() - begin
    if any(codes):
        raise BenchError(f"{commands}: exit codes {codes}")
    return seconds


def native(ranks: int, *program: str | Path) -> list[str | Path]:
    """mpirun -n RANKS PROGRAM"""
    return [BIN / "mpirun", "-n", str(ranks), *program]


def launched(ranks: int, directory: Path, *program: str | Path) -> list[str | Path]:
    """mpirun -n RANKS manapy-launch --dir DIRECTORY PROGRAM"""
    return [BIN / "mpirun", "-n", str(ranks), BIN / "manapy-launch", "--dir", directory, *program]


def records(output: str) -> list[dict[str, Any]]:
    """The JSON lines that calls and latency print."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


class Stepping:
    """A running `steps` job. started: seconds from the command to its first line."""

    def __init__(self, command: Sequence[str | Path], cwd: Path) -> None:
        self._lines = 0
        self._first = threading.Event()
        self._tail: list[str] = []
        begin = time.perf_counter()
        self.process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._first.wait(PATIENCE) or not self._lines:
            self.process.kill()
            raise BenchError(f"{' '.join(map(str, command))}: no step\n{''.join(self._tail[-20:])}")
        self.started = self._moment - begin

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("step ") and not self._lines:
                self._moment = time.perf_counter()
                self._lines = 1
                self._first.set()
            elif not line.startswith("step "):
                self._tail = [*self._tail[-19:], line]
        self._first.set()

    def wait(self) -> None:
        """Until mpirun has ended, with whatever exit code."""
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)


@contextlib.contextmanager
def stepping(command: Sequence[str | Path], cwd: Path, job: Path | None) -> Iterator[Stepping]:
    """A job that is ended on leaving, if it still runs: by `manapy stop` where it is one of manapy's, else by SIGTERM to mpirun."""
    running = Stepping(command, cwd)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            if job is not None:
                with contextlib.suppress(BenchError):
                    run([BIN / "manapy", "stop", "--no-checkpoint", job])
            else:
                running.process.terminate()
        running.wait()
