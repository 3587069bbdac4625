"""Finds the recording that the user means: by a job directory or id, by the --name of `manapy trace run`, by a folder
of saved trace files, or without a name.

A job of manapy-launch keeps a list of its hosts in job.json; collect.py reaches them. Recordings are in format.root(),
one folder for each job, until they are saved elsewhere or the machine is restarted. Root, who may read them, can also
name those of other users.
"""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...ckpt.store import job
from ...core.errors import JobError
from . import collect, format, layout
from .tracefile import TraceFile


class Found(NamedTuple):
    """A recording.

    folder: the trace files on this host; it may have none.
    job: the job of manapy-launch to which it belongs, if any.
    live: its files are those that the job writes, or wrote until it ended; not a saved copy.
    others: the job's other hosts, if there are any.
    guessed: a line that says which recording it is, if the user has not named it exactly.
    """

    folder: Path
    job: job.Job | None = None
    live: bool = True
    others: collect.Hosts | None = None
    guessed: str = ""


def is_recording(folder: Path) -> bool:
    """Return whether there are trace files in a folder."""
    return any(format.files_in(folder))


def find(which: str | None, hosts: Sequence[str] = (), shell: Sequence[str] | None = None) -> Found:
    """Find a recording. Raises JobError, with one line, if there is none or more than one.

    which: its name; None: the only one.
    hosts: the job's hosts, if it isn't a job of manapy-launch.
    shell: as in collect.Hosts. If it is given, it is used even for hosts that have an agent.
    """
    found = _find(which, hosts)
    names = sorted(
        {*(hosts or (found.job.record.get("hosts", ()) if found.job is not None else ()))} - {socket.gethostname()}
    )
    if names and found.live:
        agents = found.job if shell is None else None
        return found._replace(others=collect.Hosts(names, found.folder.name, shell, agents=agents))
    if is_recording(found.folder):
        return found
    name = found.job.dir if found.job else which
    raise JobError(
        f"{name}: this host has no recording of it (did it run on other hosts: --hosts? Was it started with "
        "--no-trace, or before the last restart of the machine?)"
    )


def _find(which: str | None, hosts: Sequence[str]) -> Found:
    roots = _roots()
    if which is None:
        return _only(roots[0])
    path = Path(which)
    if is_recording(path):
        return Found(path, live=path.resolve().parent in [root.resolve() for root in roots])
    for root in roots:
        for folder in (root / which, root / format.job_name(which)):
            if folder.parent == root and is_recording(folder) and not job.is_job(path):
                return Found(folder)
    try:
        return _of_job(job.find_live(which))
    except JobError as error:
        if job.is_job(path):
            raise
        if not hosts and (named := _named(which, roots)) is not None:
            return named
        if hosts:
            return Found(roots[0] / format.job_name(which))
        raise JobError(
            f"{which}: no such recording (neither a job, nor a folder of trace files, nor one recorded here)"
        ) from error


def _named(which: str, roots: Sequence[Path]) -> Found | None:
    """Return the recording of a job that was started in another directory under this name, or None. Raises JobError if
    there are several."""
    if os.sep in which:
        return None
    pattern = re.compile(re.escape(which[:40]) + "-[0-9a-f]{8}")
    found = [
        folder
        for root in roots
        for folder in layout.recordings_in(root)
        if pattern.fullmatch(folder.name) and is_recording(folder)
    ]
    if len(found) > 1:
        raise JobError(
            f"{which}: {len(found)} recordings have this name, from different directories: name one:"
            f" {', '.join(folder.name for folder in found[:5])}"
        )
    if not found:
        return None
    return Found(found[0], guessed=f"{found[0].name}: the only recording of that name, from another directory")


def _roots() -> list[Path]:
    """Return the folder with the recordings of this user, then readable ones of other users."""
    own = format.root()
    found = [path for path in layout.recordings_in(own.parent) if path.name.startswith("manapy-trace-")]
    return [own, *sorted(path for path in found if path != own and _is_another_users(path))]


def _is_another_users(path: Path) -> bool:
    """Return whether a path is the readable folder of the user in its name. Anybody may put anything beside it: links
    are not followed."""
    try:
        seen = path.lstat()
    except OSError:
        return False
    is_named = stat.S_ISDIR(seen.st_mode) and path.name == f"manapy-trace-{seen.st_uid}"
    return is_named and os.access(path, os.R_OK | os.X_OK)


def _changed(folder: Path) -> float:
    """Return when a recording was changed, seconds since the epoch; 0 if it was removed meanwhile."""
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def _only(root: Path) -> Found:
    """Return the only live job here, or the only recording, or the only recording of which a process is alive. Raises
    JobError."""
    try:
        return _of_job(job.find_live(None))
    except JobError as error:
        recordings = sorted(filter(is_recording, layout.recordings_in(root)), key=_changed)
        if not recordings:
            raise
        live = [folder for folder in recordings if _lives(folder)]
        if len(chosen := live or recordings) == 1:
            return Found(
                chosen[0],
                guessed=(
                    f"{chosen[0].name}: the only recording of this user "
                    f"here{' of a job that runs' if len(recordings) > 1 else ''}"
                ),
            )
        if len(here := [folder for folder in chosen if _from_here(folder)]) == 1:
            return Found(
                here[0],
                guessed=(
                    f"{here[0].name}: the only recording from this directory{' of a job that runs' if live else ''}"
                ),
            )
        names = [f"{folder.name}{' (runs)' if folder in live else ''}" for folder in recordings[-5:]]
        raise JobError(f"{len(recordings)} recordings are in {root}, name one: {', '.join(names)}") from error


def _from_here(folder: Path) -> bool:
    """Return whether the recording belongs to a job directory, or a name, in the current directory."""
    return format.job_name(folder.name[: -len("-00000000")]) == folder.name


def _lives(folder: Path) -> bool:
    """Return whether a process of this host still writes there."""
    for path in format.files_in(folder):
        try:
            if TraceFile(path).alive:
                return True
        except (OSError, ValueError):
            continue
    return False


def _of_job(found: job.Job) -> Found:
    """Return a job's recording. Raises JobError if this user may not read it."""
    owner = found.dir.stat().st_uid
    root = format.root(owner)
    if owner != os.getuid() and root.is_dir() and not os.access(root, os.R_OK | os.X_OK):
        raise JobError(
            f"{found.dir}: a job of another user (uid {owner}): only this user and root may read its recording"
        )
    return Found(root / format.job_name(found.dir), found)
