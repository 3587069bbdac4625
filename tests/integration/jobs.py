"""Real jobs for tests: start under mpirun, wait for output, checkpoint, kill with SIGKILL, restart.

Output goes into files, so nothing depends on the test's reading it. Only processes that a Job has started, that its
coordinator reports as its ranks, or that have inherited a variable with the job's folder, are ever signalled, by pid.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from manapy.core.proc import descendants
from manapy.ckpt import command
from manapy.ckpt.store.job import Job as JobFiles
from manapy.cli.shared import naming
from manapy.core.errors import ManapyError
from manapy.core.processes import is_alive
from networks import call_inside
from solver import SOLVER
from waiting import looks

BIN = Path(sys.executable).parent
PROGRAMS = Path(__file__).resolve().parent.parent / "programs"
WHOSE = "MANAPY_TEST_JOB"  # set to the job's folder in the environment of all processes of a job
OF_MPI = re.compile(r"/dev/shm/(?:mpich_|vader_segment|sm_segment)\S+$", re.M)  # MPICH's and Open MPI's
T = TypeVar("T")
PATIENCE = 120.0  # seconds to wait for anything: machines for tests are slow


class JobError(AssertionError):
    """An event for which a test waited didn't happen; holds the job's output."""


def manapy(
    *arguments: str | Path,
    timeout: float = PATIENCE,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    inside: Sequence[str | Path] = (),
) -> subprocess.CompletedProcess[str]:
    """Run one manapy command. Raises JobError if it doesn't return."""
    try:
        return run([*inside, BIN / "manapy", *arguments], {**os.environ, **(env or {})}, cwd, timeout)
    except subprocess.TimeoutExpired as error:
        said = (error.stderr or b"").decode(errors="replace")
        raise JobError(
            f"manapy {' '.join(map(str, arguments))} did not return within {timeout:.0f} s: {said}"
        ) from None


def oks(text: str) -> int:
    """How often ranks have said "ok". Lines of several ranks may be mixed ("okok"). Other words with these letters, as
    in warnings of libraries ("token"), do not count."""
    return sum(len(word) // len("ok") for word in re.findall("(?<![A-Za-z])(?:ok)+", text))


def run(
    command: Sequence[str | Path],
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = PATIENCE,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and keep what it prints. env: its whole environment (None: that of the test).

    If it takes longer, its processes are killed, the ranks that it has started among them, and TimeoutExpired is
    raised."""
    words = [str(word) for word in command]
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=cwd
    ) as process:
        try:
            said, errors = process.communicate(timeout=timeout)
        except BaseException:
            for pid in (*descendants(process.pid), process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(words, process.returncode, said, errors)


HYDRA_BROKE = "process manager error waiting for completion"


def launch(
    *arguments: str | Path, ranks: int = 2, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one short mpirun of manapy-launch to its end. MPICH's mpirun can break down when a rank ends while another
    one is being answered. The output of the ranks is lost then, so the command runs once more. env: as in run()."""
    for _ in range(3):
        done = run([BIN / "mpirun", "-n", str(ranks), BIN / "manapy-launch", *arguments], env, cwd)
        if HYDRA_BROKE not in done.stderr:
            break
    return done


@dataclass
class Job:
    """One job in directory `where`; `dir` is its job directory. runs: output file of every mpirun, in order."""

    where: Path
    ranks: int = 2
    _: KW_ONLY
    solver: Path | None = None  # tests/programs/steps/heat2d.c, compiled
    mpirun: Sequence[str | Path] = field(default_factory=lambda: [BIN / "mpirun"])
    inside: Sequence[str | Path] = ()  # put before commands to run them on an emulated node
    env: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    runs: list[Path] = field(default_factory=list)
    killed: int = 0  # process id of the coordinator of the ranks that were killed last
    go: Path | None = None  # the file for which a held program waits
    held: float = math.inf  # at this step
    left: set[Path] = field(default_factory=set)  # what the MPI library of killed ranks has left in /dev/shm

    @property
    def dir(self) -> Path:
        """The job directory."""
        return self.where / "job"

    def hold(self, step: int) -> Path:
        """Call this before the job starts: a program with steps.py doesn't go beyond a step before this file exists.
        finish() makes it. A test that starts commands needs this: on a busy machine they take seconds."""
        self.go, self.held = self.where / "go", step
        self.env = self.env | {"STEPS_HOLD": f"{step} {self.go}"}
        return self.go

    def start(self, *program: str | Path, options: Sequence[str | Path] = ()) -> Job:
        """mpirun -n RANKS manapy-launch --dir DIR OPTIONS PROGRAM"""
        return self.spawn(
            [*self.mpirun, "-n", str(self.ranks), BIN / "manapy-launch", "--dir", self.dir, *options, *program]
        )

    def start_python(self, program: str, *arguments: str | Path, options: Sequence[str | Path] = ()) -> Job:
        """Start tests/programs/PROGRAM."""
        return self.start(sys.executable, PROGRAMS / program, *arguments, options=options)

    def start_solver(self, out: str | Path = "field.npy", options: Sequence[str | Path] = ()) -> Job:
        """Start the solver, which writes its field to `out`."""
        assert self.solver is not None
        return self.start(self.solver, *SOLVER, "--out", out, options=options)

    def restart(
        self, checkpoint: Path | None = None, ranks: int | None = None, options: Sequence[str | Path] = ()
    ) -> Job:
        """mpirun -n RANKS manapy-restart OPTIONS CHECKPOINT (default: the latest)"""
        return self.spawn(
            [*self.mpirun, "-n", str(ranks or self.ranks), BIN / "manapy-restart", *options, checkpoint or self.dir]
        )

    def restart_by_command(self, *arguments: str | Path) -> Job:
        """manapy restart DIR"""
        return self.spawn([BIN / "manapy", "restart", self.dir, *arguments])

    def spawn(self, command: Sequence[str | Path]) -> Job:
        """Run a command as the job's current mpirun."""
        assert self.process is None or self.process.poll() is not None, "the job still runs"
        log = self.where / f"run-{len(self.runs)}.log"
        self.runs.append(log)
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                [str(c) for c in command],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=self.where,
                # An mpirun of Open MPI 5 that is killed leaves a folder of its process id, and the next one of that id
                # does not start: each job has its own place for it.
                env={**os.environ, WHOSE: str(self.where), "PRTE_MCA_prte_tmpdir_base": str(self.where), **self.env},
            )
        return self

    # ---- looking ----

    def record(self) -> dict[str, Any]:
        """What job.json says."""
        return dict(json.loads((self.dir / "job.json").read_text()))

    def output(self, run: int = -1) -> str:
        """What one run printed, stderr included."""
        return self.runs[run].read_text(errors="replace")

    def wait_for(self, what: str | Callable[[str], Any], timeout: float = PATIENCE) -> str:
        """Wait until the current run's output contains a text or satisfies a condition; returns the output."""
        ready = (lambda text: what in text) if isinstance(what, str) else what
        assert self.process is not None
        for _ in looks(timeout):
            ended = self.process.poll() is not None
            if ready(text := self.output()):
                return text
            if ended:
                raise JobError(f"ended with {self.process.returncode} before {what!r}:\n{self.report()}")
        raise JobError(f"{timeout:.0f} s without {what!r}:\n{self.report()}")

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait until the current mpirun ends; its exit code.

        MPICH's mpirun itself may die of SIGPIPE if ranks end while it starts them, and then nothing of what they said
        is seen: it is started again.
        """
        assert self.process is not None
        try:
            while (code := self.process.wait(timeout)) == -signal.SIGPIPE and not self.output():
                self.runs.pop()
                self.spawn(self.process.args)  # type: ignore[arg-type]
            return code
        except subprocess.TimeoutExpired as error:
            raise JobError(f"still runs after {timeout:.0f} s:\n{self.report()}") from error

    def finish(self, timeout: float = PATIENCE) -> str:
        """Let a held program go on, and wait until the current run ends with exit code 0; its output."""
        if self.go is not None:
            self.go.touch()
        if code := self.wait(timeout):
            raise JobError(f"exit code {code}:\n{self.report()}")
        return self.output()

    def status(self) -> dict[str, Any]:
        """What `manapy status --json` says. This process asks itself: tests ask often, and a command takes a quarter of
        a second of processor time."""
        return self._ask("status", command.status)

    def _ask(self, what: str, function: Callable[[JobFiles], T]) -> T:
        """Call it for this job, on the network of the job's node."""
        try:
            job = naming.job(str(self.dir))
            return call_inside(str(self.inside[-1]), function, job) if self.inside else function(job)
        except ManapyError as error:
            raise JobError(f"{what} failed: {error}\n{self.report()}") from None

    def wait_until_it_runs(self) -> None:
        """Also after a restart, when commands first find the coordinator of the killed ranks. After a restart
        checkpoint() and kill() do this themselves."""

        def runs(_: str) -> bool:
            with contextlib.suppress(JobError):
                status = self.status()
                return bool(status["state"] == "running" and status["pid"] != self.killed)
            return False

        self.wait_for(runs)

    def _wait_if_restarted(self) -> None:
        assert self.process is not None
        if self.killed and self.process.poll() is None:
            self.wait_until_it_runs()
            self.killed = 0

    def pids(self) -> list[int]:
        """Process ids of the ranks, in rank order. Waits for ranks that run already, but of which the coordinator does
        not know yet."""
        found: list[int | None] = [None]

        def known(_: str) -> bool:
            found[:] = [rank["pid"] for rank in self.status()["ranks"]]
            return None not in found

        self.wait_for(known)
        return [pid for pid in found if pid is not None]

    def report(self) -> str:
        """Everything that helps to see what happened."""
        parts = [f"--- {log.name}\n{log.read_text(errors='replace')[-4000:]}" for log in self.runs]
        log = self.dir / "coordinator.log"
        if log.exists():
            parts.append(f"--- coordinator.log\n{log.read_text(errors='replace')[-4000:]}")
        return "\n".join(parts)

    # ---- acting ----

    def checkpoint(self, *arguments: str, timeout: float | None = None) -> Path:
        """manapy checkpoint; the published path. Without arguments and a time limit this process asks itself, as in
        status()."""
        self._wait_if_restarted()
        if not arguments and timeout is None:
            return self._ask("checkpoint", command.checkpoint)
        try:
            done = manapy("checkpoint", self.dir, *arguments, timeout=timeout or PATIENCE, inside=self.inside)
        except JobError as error:
            raise JobError(f"{error}\n{self.report()}") from None
        if done.returncode:
            raise JobError(f"checkpoint failed: {done.stderr}\n{self.report()}")
        return Path(done.stdout.strip())

    def kill(self) -> None:
        """SIGKILL to all ranks, to mpirun and to the processes between them."""
        self._wait_if_restarted()
        assert self.process is not None
        pids, self.killed = [*self.pids(), *descendants(self.process.pid)], int(self.status()["pid"])
        self.left |= _shared_memory(pids)
        for pid in [self.process.pid, *pids]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        deadline = time.monotonic() + PATIENCE
        while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.01)

    def end(self) -> None:
        """End all processes of this job that still run, also on emulated nodes and after mpirun has ended, and remove
        the shared memory of those that were killed. For the end of a test."""
        while pids := _of(self.where):  # again, because processes may have been started meanwhile
            self.left |= _shared_memory(pids)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()
        for file in self.left:
            file.unlink(missing_ok=True)


def _shared_memory(pids: Sequence[int]) -> set[Path]:
    """The files in /dev/shm that the MPI library of these processes has mapped. It removes them at the end of a rank,
    but not if that is killed."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            found |= set(OF_MPI.findall(Path(f"/proc/{pid}/maps").read_text()))
    return {Path(name) for name in found}


def _of(where: Path) -> list[int]:
    """The processes that have inherited the variable of a job."""
    wanted = f"{WHOSE}={where}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found
