"""List the jobs in a directory, the checkpoints of a job, or, with --all, all jobs that this user has started.

For each checkpoint of a job, the table shows where its images are and which losses they survive. With --verify, every
byte that this host sees is checked, too; the exit code is 1 if the newest checkpoint that is not dropped is damaged.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.units import ago, size
from ..shared import naming
from ..shared.output import Output

if TYPE_CHECKING:
    from ...ckpt.store.publish import Checkpoint

GOOD = "good"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "what",
        nargs="?",
        metavar="JOB|DIR",
        help=f"{naming.JOB}; or a directory that contains jobs (default: this directory)",
    )
    parser.add_argument("--all", action="store_true", help="list all jobs of this user, in any directory")
    parser.add_argument("--verify", action="store_true", help="check the images of each checkpoint of a job")
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace, out: Output) -> int:
    """A table of jobs; for one job, of its checkpoints."""
    from ...ckpt.store import job, known
    from ...core.errors import UsageError

    if options.all and options.what is not None:
        raise UsageError("--all lists all jobs: it takes no directory and no job")
    where = Path(options.what or "")
    if not options.all and (job.is_job(where) or not where.is_dir()):
        return _checkpoints(naming.job(options.what).dir, options.verify, out)
    if options.verify:
        raise UsageError("--verify needs one job: manapy list --verify JOB")
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


def _checkpoints(directory: Path, verified: bool, out: Output) -> int:
    from ...ckpt.store import levels, publish

    found = publish.checkpoints(directory)
    latest = publish.latest(directory)
    states = [_state(c, out) for c in found] if verified else []
    out.data(
        [
            {
                "path": str(c.path),
                "time": c.manifest.time,
                "ranks": len(c.manifest.ranks),
                "bytes": c.manifest.file_bytes,
                "latest": c.path == latest,
                "dropped": publish.is_dropped(c.path),
                "parent": c.manifest.parent or None,
                "levels": c.manifest.levels.record(),
                **({"state": states[i]} if verified else {}),
            }
            for i, c in enumerate(found)
        ]
    )
    if not found:
        out.note(f"no checkpoints in {directory}")
        return 0
    now = time.time()
    home = directory.resolve()
    incremental = any(c.manifest.parent for c in found)
    rows = []
    for i, c in enumerate(found):
        remark = " (latest)" if c.path == latest else " (dropped)" if publish.is_dropped(c.path) else ""
        name = f"{c.path.name if c.path.parent == home else c.path}{remark}"
        row = (name, f"{ago(now - c.manifest.time)} ago", len(c.manifest.ranks), size(c.manifest.file_bytes))
        held = levels.describe(c.manifest.levels, len({entry.host for entry in c.manifest.ranks}))
        rows.append((*row, *[c.manifest.parent] * incremental, *held, *states[i : i + 1]))
    head = ("checkpoint", "taken", "ranks", "size", *["needs"] * incremental, "where", "survives the loss of")
    out.table((*head, *["state"] * verified), rows)
    newest = next((i for i, c in enumerate(found) if c.path == latest), None)
    return int(verified and newest is not None and not states[newest].startswith(GOOD))


def _state(found: Checkpoint, out: Output) -> str:
    """Check every byte of a checkpoint that this host sees. Returns what is wrong with it."""
    from ...ckpt.store import verify

    headers, problems = verify.headers(found.path, found.manifest)
    if not problems:
        with out.bar(f"checking {found.path.name}", sum(h.memory_bytes for h in headers.values())) as advance:
            problems = verify.images(found.path, found.manifest, headers, advance)
    elsewhere = len(found.manifest.ranks) - len(headers)
    if problems:
        return f"damaged: {problems[0]}"
    return GOOD + (f" ({elsewhere} images on other hosts were not checked)" if elsewhere else "")
