"""Show what a job's ranks do, which ranks wait for which, and the last checkpoint; or the state of a chain.

If a rank consists of several processes, their number is shown; --rank and --ranks show them as a tree.

With --watch the view is updated until the job or chain has ended. If the output is not a terminal, each change is
printed as a line.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..shared import arguments, naming
from ..shared.output import Output

if TYPE_CHECKING:
    from ...chain.record import Chain
    from ...ckpt.store.job import Job

GLANCE_SECONDS, PATIENT_SECONDS = 0.25, 2.0  # for the processes of ranks that do not answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    arguments.add_job(parser)
    parser.add_argument("--watch", action="store_true", help="look again, and update the view, until the end or Ctrl-C")
    parser.add_argument(
        "--ranks",
        action="store_true",
        help="show one line for each rank, and all its processes (default: many ranks are shown in groups)",
    )
    parser.add_argument("--rank", metavar="R", type=int, help="show only rank R, and its processes if it has several")
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace, out: Output) -> int:
    """Ask the coordinator, or read the chain's history, and print."""
    from ...ckpt import command
    from ...ckpt.store.job import Job
    from ...core.errors import JobError, UsageError

    named = _named(options.job)
    if options.watch:
        if options.json:
            raise UsageError("--watch has no --json: read history.jsonl in the chain's directory, or ask again")
        from . import status_watch

        return status_watch.watch(named, out)
    if not isinstance(named, Job):
        from ...chain import view
        from . import status_watch

        out.data(view.summary(named))
        for line in status_watch.lines(named):
            out.line(line)
        return 0
    in_full = options.ranks or options.json or options.rank is not None
    status = command.status(named, trees=PATIENT_SECONDS if in_full else GLANCE_SECONDS)
    if options.rank is not None:
        if not 0 <= options.rank < status["size"]:
            raise JobError(f"{status['dir']}: the job has no rank {options.rank}")
        status["ranks"] = [status["ranks"][options.rank]]
    out.data(status)
    if not out.json:
        from .job_status import show

        show(status, out, each=options.ranks, trees=in_full)
    return 0


def _named(which: str | None) -> Chain | Job:
    """The chain or job with this directory or name. None: the job that is live here, else the newest chain here. Raises
    ManapyError."""
    from ...chain import record
    from ...core.errors import JobError

    if which is not None and naming.is_chain(which):
        return record.find(which)
    try:
        return naming.job(which)
    except JobError:
        if record.chains_in(Path(which or "")):
            return record.find(which)
        raise
