"""What JOB, CHECKPOINT and CHAIN mean, the same for all commands and from any directory.

    JOB         a job's directory, its name, one of its checkpoints, or its chain: then the chain's newest job
    CHECKPOINT  a checkpoint's directory, JOB/ckpt-N, or a JOB: then its latest checkpoint
    CHAIN       a chain's directory, its name, or a JOB of it

A name is that of the directory; "manapy-" at its beginning may be left out. Where the directories of names are found:
ckpt/store/known.py. Recordings of programs that have no job directory have names of their own
(trace/capture/locate.py).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from ...core.errors import JobError, ManapyError, ManifestError
from ...core.records import TYPE_CHECKING

if TYPE_CHECKING:
    from ...chain.record import Chain
    from ...ckpt.store.job import Job

JOB = "a job, by its directory, its name from any directory, one of its checkpoints or its chain"  # in help texts
CHECKPOINT = "a checkpoint, by its directory or JOB/ckpt-N, or a JOB (its latest checkpoint is used)"
CHAIN = "a chain, by its directory, its name from any directory, or a JOB of it"


def fresh(kind: str) -> Path:
    """The name of a new directory in this one: manapy-KIND-<time>-<four random characters>."""
    return Path(f"manapy-{kind}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}")


def is_chain(which: str) -> bool:
    """Is it a chain's directory or name? Without importing chains, which most commands never need."""
    from ...ckpt.store import known

    return known.find(which, lambda path: (path / "chain.json").is_file()) is not None


def job(which: str | None) -> Job:
    """The job that JOB means; None: the only live one in this directory. Raises JobError."""
    from ...ckpt.store import job

    try:
        return job.find_live(which)
    except JobError:
        if which is None or not is_chain(which):
            raise
    from ...chain import record, steps

    return steps.newest(record.find(which))


def checkpoint(which: str) -> Path:
    """The directory that CHECKPOINT means. Raises ManifestError, JobError."""
    from ...ckpt.store import publish

    try:
        return publish.resolve(which)
    except ManifestError:
        if not is_chain(which):
            raise
    return publish.resolve(job(which).dir)


def ended() -> Path:
    """The directory of the only job in this directory that has ended and has a checkpoint. Raises JobError."""
    from ...ckpt.store import job

    return job.find_ended().dir


def chain(which: str | None) -> Chain:
    """The chain that CHAIN means; None: the newest one in this directory. Raises ManapyError."""
    from ...chain import record, steps

    try:
        return record.find(which)
    except ManapyError:
        if which is None:
            raise
        try:
            directory = job(which).dir
        except JobError:
            directory = None
        found = None if directory is None else steps.chain_of(directory)
        if found is None:
            raise
        return found
