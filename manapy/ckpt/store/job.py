"""Job directories: manapy-<id>/ with job.json, secret, coordinator.log and the checkpoints.

Invariants
 1. job.json is replaced by rename: a reader sees the old one or the new one.
 2. A job is live if its coordinator answers an authenticated connection. The state in job.json may be out of date.

publish is imported where it is needed, because commands to a running job do not need it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterable
from pathlib import Path

from ...core.errors import CoordinatorError, JobError, LeavingError, why
from ...core.files import as_text, reading, replace_file, those_with
from ...core.records import TYPE_CHECKING, NamedTuple
from . import known, own

if TYPE_CHECKING:
    from typing import Any

    from . import publish

FORMAT = 1
LIVE = ("starting", "restarting", "running")  # states of a job that hasn't come to an end yet


class Job(NamedTuple):
    """A job directory. ``started`` in seconds since the epoch; ``record`` is job.json as it is."""

    dir: Path
    id: str
    host: str
    port: int
    ranks: int
    argv: list[str]
    started: float
    state: str
    record: dict[str, Any]

    def secret(self) -> bytes:
        """The job's secret. Raises CoordinatorError."""
        try:
            if (
                os.geteuid()
                and (complaint := own.complaint(self.dir / "secret"))
                and os.access(self.dir / "secret", os.R_OK)
            ):
                raise CoordinatorError(complaint)
            return (self.dir / "secret").read_bytes()
        except PermissionError as error:
            raise CoordinatorError(
                f"{self.dir}: a job of another user (uid {self.dir.stat().st_uid}):"
                " only this user and root may send it commands"
            ) from error
        except OSError as error:
            raise CoordinatorError(why(error, self.dir / "secret")) from error

    def end(self) -> str | None:
        """How the job has ended, as a line for people; None if it has not. Reads job.json again."""
        try:
            record = read(self.dir).record
        except JobError:
            return None
        if record["state"] in LIVE:
            return None
        first, code = record.get("first_failure") or {}, record.get("code", 0)
        if record["state"] == "failed" and record.get("lost_host"):
            how = f"host {record['lost_host']} was lost"
        elif record["state"] == "failed" and first and first.get("code") is None:
            how = f"rank {first['rank']} died on {first['host']}"
        else:
            how = {
                "done": f"exit code {code}",
                "failed": f"exit code {code}" if code else "ranks died",
                "checkpointed": "after a checkpoint",
                "stopped": "by manapy stop",
            }.get(record["state"], "for an unknown reason")
        when = time.strftime(" at %Y-%m-%d %H:%M:%S", time.localtime(record["changed"])) if "changed" in record else ""
        return f"{self.dir}: the job is no longer running: it has ended{when}, {how}"

    def is_live(self) -> bool:
        """Does its coordinator answer?"""
        from ..command import Connection

        try:
            Connection(self, patience=0).close()
        except LeavingError:
            return True
        except CoordinatorError:
            return False
        return True

    def again(self) -> Job:
        """Read job.json again. Raises JobError."""
        return read(self.dir)

    def checkpoints(self) -> list[publish.Checkpoint]:
        """Oldest first."""
        from . import publish

        return publish.checkpoints(self.dir)


def is_job(directory: Path) -> bool:
    """Is it a job directory?"""
    return (directory / "job.json").is_file()


def read(directory: Path) -> Job:
    """Read job.json. Raises JobError."""
    with reading(directory / "job.json", FORMAT, JobError, "not a job's file, or damaged") as record:
        return Job(
            directory.resolve(),
            str(record["id"]),
            str(record["host"]),
            int(record["port"]),
            int(record["ranks"]),
            [str(a) for a in record["argv"]],
            float(record["started"]),
            str(record["state"]),
            record,
        )


def write(directory: Path, record: dict[str, Any]) -> None:
    """Replace job.json (invariant 1). On a full disk the file is overwritten in place, by one write into the space that
    it has: the record of how a job has ended is more important than the invariant."""
    path, data = directory / "job.json", as_text(record)
    try:
        replace_file(path, data)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        with path.open("r+b", buffering=0) as stream:
            before = stream.read()
            stream.seek(0)
            if stream.write(data) < len(data):  # the file has no room for more than it had
                stream.seek(0)
                stream.write(before)
                stream.truncate()
                raise
            stream.truncate()


def jobs_in(directory: Path) -> list[Job]:
    """All readable jobs directly inside a directory, oldest first."""
    return readable(directory.iterdir())


def readable(directories: Iterable[Path]) -> list[Job]:
    """The jobs among some directories, without those that can't be read, oldest first."""
    found = []
    for path in those_with("job.json", directories):
        with contextlib.suppress(JobError):
            found.append(read(path))
    return sorted(found, key=lambda j: (j.started, j.id))


def find_ended() -> Job:
    """The only job here that has ended, or was killed, and has a checkpoint. Raises JobError."""
    from . import publish

    here = Path()
    if is_job(here):
        return read(here)
    found = [job for job in jobs_in(here) if publish.latest(job.dir) is not None and not job.is_live()]
    if not found:
        raise JobError(
            f"no ended job with a checkpoint is in {here.resolve()}: name one ('manapy list --all' shows yours)"
        )
    if len(found) > 1:
        names = ", ".join(os.path.relpath(job.dir) for job in found)
        raise JobError(f"{len(found)} ended jobs here have a checkpoint, name one: {names}")
    return found[0]


def find_live(which: str | None) -> Job:
    """The job with this directory, name (known.py) or checkpoint; without one, the only live job here. Raises JobError.

    Whether the job is live is checked only where it decides; else the command finds out when it connects.
    """
    here = Path()
    if which is not None:
        if (directory := known.find(which, is_job)) is not None:
            return read(directory)
        from . import publish

        checkpoint = known.find(which, publish.is_checkpoint)
        if checkpoint is not None and is_job(owner := publish.owner(checkpoint.resolve().parent)):
            return read(owner)
        raise JobError(
            f"{which}: no such job (neither a job's directory nor its name; 'manapy list --all' shows yours)"
        )
    if is_job(here):
        return read(here)
    live = [job for job in jobs_in(here) if job.is_live()]
    if not live:
        raise JobError(f"no job is running in {here.resolve()}: name one ('manapy list --all' shows yours)")
    if len(live) > 1:
        raise JobError(
            f"{len(live)} jobs are running here, name one: {', '.join(os.path.relpath(job.dir) for job in live)}"
        )
    return live[0]
