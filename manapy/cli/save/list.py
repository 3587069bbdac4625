"""List the jobs in a directory, the checkpoints of a job, or, with --all, all jobs that this user has started."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from ...core.units import ago, size
from ..shared import naming
from ..shared.output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "what", nargs="?", metavar="DIR|JOB", help="a directory that contains jobs, or a job (default: this directory)"
    )
    parser.add_argument("--all", action="store_true", help="list all jobs of this user, in any directory")
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace, out: Output) -> int:
    """A table of jobs; for one job, of its checkpoints."""
    from ...ckpt.store import job, known
    from ...core.errors import UsageError

    if options.all and options.what is not None:
        raise UsageError("--all lists all jobs: it takes no directory and no job")
    where = Path(options.what or "")
    if not options.all and (job.is_job(where) or not where.is_dir()):
        return _checkpoints(naming.job(options.what).dir, out)
    jobs = [(j, j.checkpoints()) for j in (job.readable(known.directories()) if options.all else job.jobs_in(where))]
    now = time.time()
    out.data(
        [
            {
                "id": j.id,
                "dir": str(j.dir),
                "live": j.is_live(),
                "ranks": j.ranks,
                "program": j.argv,
                "started": j.started,
                "checkpoints": len(c),
            }
            for j, c in jobs
        ]
    )
    if not jobs:
        out.note("no jobs of this user are known" if options.all else f"no jobs in {where.resolve()}")
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
            *([str(j.dir.parent)] if options.all else []),
        )
        for j, c in jobs
    ]
    out.table(
        ("job", "state", "ranks", "checkpoints", "last", "started", "program", *(["in"] if options.all else [])), rows
    )
    return 0


def _checkpoints(directory: Path, out: Output) -> int:
    from ...ckpt.store import levels, publish

    found = publish.checkpoints(directory)
    latest = publish.latest(directory)
    out.data(
        [
            {
                "path": str(c.path),
                "time": c.manifest.time,
                "ranks": len(c.manifest.ranks),
                "bytes": c.manifest.file_bytes,
                "latest": c.path == latest,
                "parent": c.manifest.parent or None,
                "levels": c.manifest.levels.record(),
            }
            for c in found
        ]
    )
    if not found:
        out.note(f"no checkpoints in {directory}")
        return 0
    now = time.time()
    home = directory.resolve()
    incremental = any(c.manifest.parent for c in found)
    rows = []
    for c in found:
        name = f"{c.path.name if c.path.parent == home else c.path}{' (latest)' if c.path == latest else ''}"
        row = (name, f"{ago(now - c.manifest.time)} ago", len(c.manifest.ranks), size(c.manifest.file_bytes))
        held = levels.describe(c.manifest.levels, len({entry.host for entry in c.manifest.ranks}))
        rows.append((*row, *[c.manifest.parent] * incremental, *held))
    head = ("checkpoint", "taken", "ranks", "size", *["needs"] * incremental, "where", "survives the loss of")
    out.table(head, rows)
    return 0
