"""List the jobs in a directory, or the checkpoints of a job."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from ..core.units import ago, size
from ._output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "dir",
        nargs="?",
        metavar="DIR",
        type=Path,
        default=Path(),
        help="a directory that contains jobs, or a job directory (default: the working directory)",
    )
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace, out: Output) -> int:
    """A table of jobs; for one job, of its checkpoints."""
    from ..ckpt.store import job
    from ..core.errors import ManapyError

    if not options.dir.is_dir():
        raise ManapyError(f"{options.dir}: no such directory")
    if job.is_job(options.dir):
        return _checkpoints(options.dir, out)
    jobs = [(j, j.checkpoints()) for j in job.jobs_in(options.dir)]
    now = time.time()
    out.data(
        [
            {"id": j.id, "dir": str(j.dir), "live": j.is_live(), "ranks": j.ranks, "program": j.argv, "started": j.started, "checkpoints": len(c)}
            for j, c in jobs
        ]
    )
    if not jobs:
        out.note(f"no jobs in {options.dir.resolve()}")
        return 0
    rows = [
        (
            j.id,
            "live" if j.is_live() else "ended",
            j.ranks,
            len(c),
            f"{ago(now - c[-1].manifest.time)} ago" if c else "",
            f"{ago(now - j.started)} ago",
            " ".join(j.argv)[:60],
        )
        for j, c in jobs
    ]
    out.table(("job", "state", "ranks", "checkpoints", "last", "started", "program"), rows)
    return 0


def _checkpoints(directory: Path, out: Output) -> int:
    from ..ckpt.store import publish

    found = publish.checkpoints(directory)
    latest = publish.latest(directory)
    out.data(
        [
            {"path": str(c.path), "time": c.manifest.time, "ranks": len(c.manifest.ranks), "bytes": c.manifest.file_bytes, "latest": c.path == latest}
            for c in found
        ]
    )
    if not found:
        out.note(f"no checkpoints in {directory}")
        return 0
    now = time.time()
    home = directory.resolve()
    rows = []
    for c in found:
        name = f"{c.path.name if c.path.parent == home else c.path}{' (latest)' if c.path == latest else ''}"
        rows.append((name, f"{ago(now - c.manifest.time)} ago", len(c.manifest.ranks), size(c.manifest.file_bytes)))
    out.table(("checkpoint", "taken", "ranks", "size"), rows)
    return 0
