"""Which recording is meant: by a job directory or id, what `manapy trace run` was given as --dir, a folder of saved trace files, or nothing.

Of its hosts a job of manapy-launch keeps a list in job.json; how one gets there is collect.py's.
Recordings lie in format.root(), one folder a job, until they are saved elsewhere or the machine is restarted.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..ckpt import job
from ..ckpt.errors import JobError
from . import collect, format


class Found(NamedTuple):
    """folder: of the trace files on this host, which may have none. job: the job of manapy-launch that it belongs to, if it does. live: its files are those that are being
    written, or were until it ended. others: the job's other hosts, if there are any."""

    folder: Path
    job: job.Job | None = None
    live: bool = True
    others: collect.Hosts | None = None


def is_recording(folder: Path) -> bool:
    """Are there trace files in it?"""
    return folder.is_dir() and any(format.rank_and_generation(path) for path in folder.iterdir())


def find(which: str | None, hosts: Sequence[str] = (), shell: Sequence[str] | None = None) -> Found:
    """hosts: that the job has, if it isn't one of manapy-launch. shell: see collect.Hosts. Raises JobError, with one line that says what would be found."""
    found = _find(which, hosts)
    names = sorted({*(hosts or (found.job.record.get("hosts", ()) if found.job is not None else ()))} - {socket.gethostname()})
    if names and found.live:
        return found._replace(others=collect.Hosts(names, found.folder.name, shell))
    if is_recording(found.folder):
        return found
    name = found.job.dir if found.job else which
    raise JobError(f"{name}: nothing of it is recorded on this host (did it run on others: --hosts? Was it started with --no-trace, or before the last restart of the machine?)")


def _find(which: str | None, hosts: Sequence[str]) -> Found:
    root = format.root()
    if which is not None:
        path = Path(which)
        if is_recording(path):
            return Found(path, live=path.resolve().parent == root.resolve())
        for folder in (root / which, root / format.job_name(which)):
            if folder.parent == root and is_recording(folder) and not job.is_job(path):
                return Found(folder)
        try:
            return _of_job(job.find_live(which))
        except JobError as error:
            if job.is_job(path):
                raise
            if hosts:
                return Found(root / format.job_name(which))
            raise JobError(f"{which}: no such recording (neither a job, nor a folder of trace files, nor one recorded here)") from error
    try:
        return _of_job(job.find_live(None))
    except JobError as error:
        recordings = sorted((p for p in root.iterdir() if is_recording(p)), key=lambda p: p.stat().st_mtime) if root.is_dir() else []
        if len(recordings) == 1:
            return Found(recordings[0])
        if recordings:
            raise JobError(f"{len(recordings)} recordings are in {root}, name one: {', '.join(p.name for p in recordings[-5:])}") from error
        raise


def _of_job(found: job.Job) -> Found:
    return Found(format.root() / format.job_name(found.dir), found)
