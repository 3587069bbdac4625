"""Runs an application: natively, under manapy, and through checkpoints, SIGKILL and restarts.

Each run has a directory of its own with the application's input. Native runs and runs under manapy take turns, so that
a change of the machine's load meets both.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jobs import Job, JobError
from launchers import MPICH, Launcher

from .cause import cause, first_line
from .packages import missing
from .programs import Application
from .record import Moment, Record, Run
from .results import ResultError

TRIES, SHORTER = 4, 0.6  # of a run through restarts, each with its moments in a shorter span
FIRST, LAST = 0.05, 0.8  # the part of the running time in which checkpoints are taken


@dataclass(frozen=True)
class Settings:
    """What all runs share. others: the MPIs for the restarts in turn; limit: seconds for one run."""

    others: Sequence[Launcher] = (MPICH,)
    repeat: int = 1
    moments: int = 3
    limit: float = 120.0
    seed: int = 1


def run(app: Application, where: Path, settings: Settings, said: Callable[[str], None] = lambda text: None) -> Record:
    """Run an application in all ways. Directories of runs without an error are removed. said: is told what is next."""
    record = Record(app.name, app.mpi.abi, app.ranks)
    lacking = missing(app.packages)
    if lacking:
        return replace(record, missing=f"apt install {' '.join(lacking)}")
    if shutil.which(app.command[0]) is None:
        return replace(record, missing=f"no program {app.command[0]}")
    if not app.mpi.is_there:
        return replace(record, missing=f"no {app.mpi.mpirun[0]}")
    for number in range(settings.repeat):
        if all(run.result for run in record.native):
            said(f"{app.name}: native run {number + 1}")
            record.native.append(native(app, where / f"native-{number}", settings))
        said(f"{app.name}: run under manapy {number + 1}")
        record.manapy.append(under_manapy(app, where / f"manapy-{number}", settings))
        if record.manapy[-1].result is None:
            return record
    if settings.moments:
        said(f"{app.name}: {settings.moments} restarts")
        span = record.manapy[-1].seconds
        restarted, moments = through_restarts(app, where / "restarted", settings, span)
        record = replace(record, restarted=restarted, moments=moments)
    return record


def native(app: Application, where: Path, settings: Settings) -> Run:
    """The application without manapy, under its own MPI."""
    job = prepare(app, where, app.mpi)
    return _to_the_end(app, job, settings, lambda: job.spawn([*job.mpirun, "-n", str(app.ranks), *app.command]))


def under_manapy(app: Application, where: Path, settings: Settings) -> Run:
    """The application under manapy-launch."""
    job = prepare(app, where, MPICH)
    return _to_the_end(app, job, settings, lambda: job.start(*app.command))


def through_restarts(app: Application, where: Path, settings: Settings, span: float) -> tuple[Run, list[Moment]]:
    """The application under manapy, killed after each of its checkpoints. span: how long it runs in all.

    On a busy machine a run may be over before its last moment. Then the next try takes earlier ones.
    """
    tries = [_through_restarts(app, where, settings, span)]
    while tries[-1][0].result and len(tries[-1][1]) < settings.moments and len(tries) < TRIES:
        span *= SHORTER
        tries.append(_through_restarts(app, where, settings, span))
    run, done = tries[-1] if tries[-1][0].result is None else max(tries, key=lambda one: len(one[1]))
    return (run, done) if done or not run.result else (Run(run.seconds, None, "over before each checkpoint"), done)


def _through_restarts(app: Application, where: Path, settings: Settings, span: float) -> tuple[Run, list[Moment]]:
    chance = random.Random(f"{settings.seed} {app.name} {span}")
    waits = sorted(chance.uniform(FIRST * span, LAST * span) for _ in range(settings.moments))
    others = [mpi for mpi in settings.others if mpi not in app.not_under]
    done: list[Moment] = []
    job, began, before = prepare(app, where, MPICH), time.monotonic(), 0.0
    try:
        job.start(*app.command)
        for number, moment in enumerate(waits):
            if not _runs(job):
                break
            time.sleep(moment - before)
            try:
                job.checkpoint(timeout=settings.limit)
                job.kill()
            except JobError as error:
                if not _runs(job):
                    break
                return Run(time.monotonic() - began, None, f"checkpoint: {first_line(str(error))}"), done
            under, before = others[number % len(others)], moment
            job.mpirun = under.mpirun
            job.restart()
            done.append(Moment(moment, under.title))
        return _ended(app, job, job.wait(settings.limit), time.monotonic() - began), done
    except JobError as error:
        return Run(time.monotonic() - began, None, cause(job) or first_line(str(error))), done
    finally:
        job.end()


def _runs(job: Job) -> bool:
    """Wait until the job runs; False if it ends, or has ended."""
    assert job.process is not None
    with contextlib.suppress(JobError):
        job.wait_until_it_runs()
    with contextlib.suppress(subprocess.TimeoutExpired):  # it may be ending at this moment
        job.process.wait(0.5)
    return job.process.poll() is None


def prepare(app: Application, where: Path, mpi: Launcher) -> Job:
    """A job in a new directory with the application's input."""
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    app.prepare(where)
    environment = {"OMP_NUM_THREADS": "1", "MANAPY_TRACE_ROOT": str(where), **mpi.native, **app.environment}
    return Job(where, app.ranks, mpirun=mpi.mpirun, env=environment)


def _to_the_end(app: Application, job: Job, settings: Settings, start: Callable[[], object]) -> Run:
    began = time.monotonic()
    try:
        start()
        code = job.wait(settings.limit)
        return _ended(app, job, code, time.monotonic() - began)
    except JobError as error:
        return Run(time.monotonic() - began, None, f"{first_line(str(error))} {cause(job)}")
    finally:
        job.end()


def _ended(app: Application, job: Job, code: int, seconds: float) -> Run:
    output = "\n".join(job.output(number) for number in range(len(job.runs)))
    if code:
        return Run(seconds, None, f"exit code {code}: {cause(job)}")
    try:
        return Run(seconds, app.extract(job.where, output))
    except ResultError as error:
        return Run(seconds, None, f"{error}; {cause(job)}")
