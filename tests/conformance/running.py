"""Runs one case of MPICH's test/mpi: natively, under manapy, and through a checkpoint, SIGKILL and a restart.

Each run has a directory of its own, in which the program stands under its own name (spawning programs start ./NAME)
beside the data files of its folder. Programs are short, so hold.c lets them wait after the start of MPI until the job
can be asked for a checkpoint, and it is asked for in this process, without the start of a command. A program that runs
for long is asked at a random moment of the time that it took under manapy. Others, and those that had ended by then,
are asked while they are let go; if that is too late again, while they still wait.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import paths  # noqa: F401

from jobs import BIN, Job, JobError
from languages import language
from testlist import Case
from verdict import Outcome, Shown, judge

LONG = 3.0  # seconds under manapy: shorter runs consist mostly of start and end
AT_ONCE = 0.01  # seconds: the longest time for which a program is held after the request
# all other files of a folder may be read by its programs
SOURCES = (".c", ".cxx", ".f", ".f90", ".h", ".am", ".ap", ".in")
# In folders of this name, programs make and delete files, which aren't part of a checkpoint. There the job ends with
# its checkpoint.
FILES = "io"
POLL = 0.002  # seconds


@dataclass(frozen=True)
class Settings:
    """What all runs share. limit: the largest number of seconds for a native run; a run under manapy gets `slower`
    times as many."""

    suite: Path
    open_mpi: bool = False  # for programs in Fortran
    limit: float = 180.0
    slower: float = 3.0
    seed: int = 1

    def seconds(self, case: Case) -> float:
        """How long a native run may take."""
        return min(case.limit, self.limit)


def native(case: Case, program: Path, where: Path, settings: Settings) -> Shown:
    """The case without manapy."""
    job = _job(case, program, where, settings)
    command = [*job.mpirun, *case.launcher, "-n", str(case.ranks), f"./{case.program}", *case.arguments]
    return _ended(job, case, settings.seconds(case), lambda: job.spawn(command))


def under_manapy(case: Case, program: Path, where: Path, settings: Settings) -> Shown:
    """The case under manapy-launch."""
    job = _job(case, program, where, settings)
    return _ended(job, case, settings.slower * settings.seconds(case), lambda: _launch(job, case))


def through_restart(case: Case, program: Path, where: Path, settings: Settings, span: float) -> Shown:
    """The case through a checkpoint and a restart. span: the number of seconds for which it runs."""
    chance = random.Random(f"{settings.seed} {case.name}")
    limit = settings.slower * settings.seconds(case)
    start = time.monotonic()
    for attempt, held in enumerate((None, chance.uniform(0, AT_ONCE), 2 * limit)):
        if held is None and span < LONG:
            continue
        job = _job(case, program, where / str(attempt), settings, MANAPY_TEST_GO=str(where / str(attempt) / "go"))
        try:
            _launch(job, case)
            if not _is_up(job):
                continue
            if held is None:
                _let_go(job)
                time.sleep(chance.uniform(0, span))
            refusal = _checkpoint(job, "exit" if _makes_files(case) else "continue", limit, held or 0.0)
            _let_go(job)
            if refusal is None:
                return _restarted(job, case, limit, start)
            if not _runs(job) or "finishing" in refusal:
                continue
            code = _wait(job, limit)
            outcome, detail = judge(case.result, job.output(), code)
            if outcome is Outcome.PASSED and code is not None:
                return Shown(Outcome.REFUSED, time.monotonic() - start, refusal)
            return Shown(outcome, time.monotonic() - start, f"{detail}; after the refusal: {refusal}")
        except JobError as error:
            return Shown(Outcome.HUNG, time.monotonic() - start, str(error).splitlines()[0])
        finally:
            job.end()
    return Shown(Outcome.TOO_SHORT, time.monotonic() - start)


def _job(case: Case, program: Path, where: Path, settings: Settings, **env: str) -> Job:
    """A job in a new directory with the program and its data files."""
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    for file in (settings.suite / case.folder).iterdir():
        if file.is_file() and file.suffix not in SOURCES and not file.name.startswith(("testlist", "Makefile", ".")):
            shutil.copy(file, where)
    (where / case.program).symlink_to(program)
    (where / "traces").mkdir()
    of = language(case.folder, settings.open_mpi)
    env = {**dict(of.env), **dict(case.env), "MANAPY_TRACE_ROOT": str(where / "traces"), **env}
    return Job(where, case.ranks, mpirun=of.mpirun, env=env)


def _makes_files(case: Case) -> bool:
    return case.folder.rpartition("/")[2] == FILES


def _launch(job: Job, case: Case) -> None:
    launcher = [*job.mpirun, *case.launcher, "-n", str(case.ranks), str(BIN / "manapy-launch"), "--dir", str(job.dir)]
    job.spawn([*launcher, f"./{case.program}", *case.arguments])


def _runs(job: Job) -> bool:
    assert job.process is not None
    return job.process.poll() is None


def _is_up(job: Job) -> bool:
    """Wait until the job can be asked for a checkpoint; False if it ends before."""
    while not (job.dir / "job.json").exists():
        if not _runs(job):
            return False
        time.sleep(POLL)
    return True


def _wait(job: Job, limit: float) -> int | None:
    """The exit code of the current mpirun; None if it doesn't end within the limit."""
    assert job.process is not None
    try:
        return job.process.wait(limit)
    except subprocess.TimeoutExpired:
        return None


def _ended(job: Job, case: Case, limit: float, start: Callable[[], object]) -> Shown:
    """Start the job and wait for its end."""
    began = time.monotonic()
    try:
        start()
        code = _wait(job, limit)
        seconds = time.monotonic() - began
    finally:
        job.end()
    return Shown(*_judged(case, job, code, seconds))


def _judged(case: Case, job: Job, code: int | None, seconds: float) -> tuple[Outcome, float, str]:
    outcome, detail = judge(case.result, "\n".join(job.output(run) for run in range(len(job.runs))), code)
    return outcome, seconds, detail


def _let_go(job: Job) -> None:
    (job.where / "go").touch()


def _checkpoint(job: Job, then: str, limit: float, held: float) -> str | None:
    """Ask for a checkpoint, and release the program after so many seconds. Returns the reason why there is no
    checkpoint, None if there is one.

    Raises JobError if there is no answer.
    """
    from manapy.ckpt import command  # imported here: --help must work before manapy is installed
    from manapy.ckpt.store.job import read
    from manapy.core.errors import ManapyError

    said: list[str | None] = []

    def ask() -> None:
        try:
            command.checkpoint(read(job.dir), then=then)
            said.append(None)
        except (ManapyError, OSError, ValueError) as error:  # the job may end while its directory is read
            said.append(str(error))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(min(held, limit))
    _let_go(job)
    asking.join(limit)
    if not said:
        raise JobError(f"no answer to a checkpoint within {limit:.0f} s")
    if said[0] is not None and _runs(job):  # it may be ending at this moment
        with contextlib.suppress(subprocess.TimeoutExpired):
            assert job.process is not None
            job.process.wait(0.5)
    return said[0]


def _restarted(job: Job, case: Case, limit: float, start: float) -> Shown:
    """Kill the job with SIGKILL and restart it."""
    if _makes_files(case):
        _wait(job, limit)
    else:
        with contextlib.suppress(JobError):  # it may have ended meanwhile; the checkpoint exists all the same
            job.kill()
    job.end()
    job.restart()
    code = _wait(job, limit)
    return Shown(*_judged(case, job, code, time.monotonic() - start))


def memory_available() -> float:
    """Available memory in GB."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
