"""Running the commands that are measured. All processes that a benchmark starts end with it; every wait has a limit."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import ManapyError
from .samples import CLOCK, NATIVE, RECORDED, UNTRACED
from .tools import Tools

if TYPE_CHECKING:
    from .guest import Guest

Command = Sequence[str | Path]


class BenchError(ManapyError):
    """A command that was to be measured has failed; one line."""


class LeftOutError(ManapyError):
    """A job can't run here; one line with the reason."""


@dataclass(frozen=True)
class Setting:
    """Where and how much is measured.

    rounds: runs of each variant; ms: milliseconds for each figure inside one run; megabytes: random data per rank in
    the largest image; scale: length of the programs that run as a whole; limit: seconds for one command; simulated:
    largest number of ranks in the model; imb: see imb.programs; guest: the machine with RDMA devices; storm: number of
    failures in the storm, whose first seed is `seed`; minutes: of healthy training; pictures: a folder for them.
    progress(fraction, text) is called while a job runs.
    """

    work: Path
    tools: Tools
    rounds: int
    ms: float
    megabytes: int
    scale: float
    limit: float
    simulated: int
    imb: Path | None
    guest: Guest
    storm: int
    seed: int
    minutes: float
    pictures: Path
    progress: Callable[[float, str], None]

    def program(self, name: str) -> Path:
        """A compiled program of osu_bench/."""
        return self.work / name

    def fresh(self, name: str) -> Path:
        """A path in the working directory that doesn't exist."""
        number = 0
        while (path := self.work / f"{name}-{number}").exists():
            number += 1
        return path

    def variant(self, variant: str, ranks: int, program: Command, **env: str) -> str:
        """Standard output of a program under mpirun: natively, recorded, or under manapy-launch with one of its
        protocols."""
        variables = ["env", *(f"{name}={value}" for name, value in env.items())] if env else []
        if variant == NATIVE:
            return self.run([*variables, *self.native(ranks, *program)])
        directory = self.fresh("job")
        command = (
            self.recorded(ranks, directory, *program)
            if variant == RECORDED
            else self.launched(variant, ranks, directory, *program)
        )
        try:
            return self.run([*variables, *command])
        finally:
            shutil.rmtree(directory, ignore_errors=True)  # its coordinator may still be ending
            forget(directory)

    def native(self, ranks: int, *program: str | Path) -> list[str | Path]:
        """mpirun -n RANKS PROGRAM; the programs find the real library by LD_LIBRARY_PATH."""
        paths = [str(self.tools.library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return ["env", f"LD_LIBRARY_PATH={':'.join(paths)}", self.tools.mpirun, "-n", str(ranks), *program]

    def recorded(self, ranks: int, directory: Path, *program: str | Path) -> list[str | Path]:
        """manapy trace run --name DIRECTORY -- mpirun -n RANKS PROGRAM"""
        env, path, *command = self.native(ranks, *program)
        return [env, path, self.tools.manapy, "trace", "run", "--name", directory, "--", *command]

    def launched(self, variant: str, ranks: int, directory: Path, *program: str | Path) -> list[str | Path]:
        """mpirun -n RANKS manapy-launch --dir DIRECTORY --protocol VARIANT PROGRAM; calls are recorded unless the
        variant is UNTRACED"""
        how = ["--protocol", CLOCK, "--no-trace"] if variant == UNTRACED else ["--protocol", variant]
        return [self.tools.mpirun, "-n", str(ranks), self.tools.launch, "--dir", directory, *how, *program]

    def restarted(self, ranks: int, checkpoint: Path) -> list[str | Path]:
        """mpirun -n RANKS manapy-restart CHECKPOINT"""
        return [self.tools.mpirun, "-n", str(ranks), self.tools.restart, checkpoint]

    def run(self, command: Command) -> str:
        """Standard output. Raises BenchError if the command fails or takes too long. Hydra's mpiexec does not handle
        SIGPIPE, so it may die of a write to a proxy whose short job has ended (seen with /bin/true): then once more."""
        words = [str(word) for word in command]
        code, output, errors = self._run(words)
        if code == -signal.SIGPIPE:
            code, output, errors = self._run(words)
        if code:
            raise BenchError(f"{reason(output, errors) or f'exit code {code}'}: {_shown(words)}")
        return output

    def _run(self, words: Sequence[str]) -> tuple[int, str, str]:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=self.work,
        )
        try:
            output, errors = process.communicate(timeout=self.limit)
        except subprocess.TimeoutExpired:
            end(process)
            raise BenchError(f"did not end within {self.limit:.0f} s: {_shown(words)}") from None
        except BaseException:
            end(process)
            raise
        return process.returncode, output, errors

    def timed(self, command: Command) -> float:
        """Seconds until a command has ended."""
        begin = time.perf_counter()
        self.run(command)
        return time.perf_counter() - begin

    def together(self, commands: Sequence[Command]) -> float:
        """Seconds until commands that were started at the same time have all ended."""
        begin = time.perf_counter()
        running = [subprocess.Popen([str(word) for word in command], stderr=subprocess.DEVNULL) for command in commands]
        try:
            codes = [process.wait(self.limit) for process in running]
        except BaseException:
            for process in running:
                end(process)
            raise
        seconds = time.perf_counter() - begin
        if any(codes):
            raise BenchError(f"exit codes {codes}: {_shown([str(word) for word in commands[0]])}")
        return seconds


def trace_of(directory: Path) -> Path:
    """The folder with the records of the job in this directory."""
    from ...trace.capture import format  # numpy

    return format.root() / format.job_name(directory)


def forget(directory: Path) -> None:
    """Remove the records of the job in this directory, because they remain after the job."""
    shutil.rmtree(trace_of(directory), ignore_errors=True)


def end(process: subprocess.Popen[Any]) -> None:
    """End an mpirun and thus its ranks: SIGTERM, after 10 s SIGKILL."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def reason(output: str, errors: str) -> str:
    """The line that says why a command failed: manapy's message; otherwise the last line that isn't part of mpirun's
    frame."""
    lines = [line.strip() for line in (errors + "\n" + output).splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("manapy: ")]
    other = [
        line
        for line in lines
        if not line.startswith(("=", "YOUR APPLICATION", "This typically", "Please see", "{", "#"))
    ]
    return (said[:1] or other[-1:] or [""])[0][:300]


def records(output: str) -> list[dict[str, Any]]:
    """The JSON lines that the programs of osu_bench/ print."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def _shown(words: Sequence[str]) -> str:
    return " ".join(
        Path(word).name if word.startswith("/") else word for word in words if not word.startswith("LD_LIBRARY_PATH=")
    )[:200]


class Stepping:
    """A running `steps` job. started: seconds from the command to its first line."""

    def __init__(self, command: Command, setting: Setting) -> None:
        self._lines = 0
        self._first = threading.Event()
        self._tail: list[str] = []
        self._limit = setting.limit
        begin = time.perf_counter()
        words = [str(word) for word in command]
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=setting.work,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._first.wait(self._limit) or not self._lines:
            self._end()
            raise BenchError(f"{reason(''.join(self._tail), '') or 'no step'}: {_shown(words)}")
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
        """Wait until mpirun has ended, with any exit code. If it doesn't end, it is ended."""
        try:
            self.process.wait(self._limit)
        except subprocess.TimeoutExpired:
            self._end()
            raise BenchError("a job that was to end did not") from None
        finally:
            self._reader.join(self._limit)

    def _end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def stepping(setting: Setting, command: Command, job: Path | None) -> Iterator[Stepping]:
    """A job that is ended on leaving if it still runs: by `manapy stop` if it is a job of manapy, otherwise by SIGTERM
    to mpirun."""
    running = Stepping(command, setting)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            if job is not None:
                with contextlib.suppress(BenchError):
                    setting.run([setting.tools.manapy, "stop", "--no-checkpoint", job])
            else:
                running.process.terminate()
        running.wait()
