"""Show what a job's ranks do, which ranks wait for which, and the last checkpoint; or the state of a chain.

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    arguments.add_job(parser)
    parser.add_argument("--watch", action="store_true", help="update the view until the end")
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace, out: Output) -> int:
    """Ask the coordinator, or read the chain's history, and print."""
    from ...ckpt import command
    from ...core.errors import UsageError

    chain = _chain(options.job)
    if options.watch:
        if options.json:
            raise UsageError("--watch has no --json: read history.jsonl in the chain's directory, or ask again")
        from . import status_watch

        return status_watch.watch(chain, options.job, out)
    if chain is not None:
        from ...chain import view
        from . import status_watch

        out.data(view.summary(chain))
        for line in status_watch.lines(chain):
            out.line(line)
        return 0
    status = command.status(naming.job(options.job))
    out.data(status)
    if not out.json:
        from .job_status import show

        show(status, out)
    return 0


def _chain(which: str | None) -> Chain | None:
    """The chain with this directory or name; if nothing is named and no job is live here, the newest one here; or
    None."""
    from ...chain import record
    from ...ckpt.store import job
    from ...core.errors import JobError

    if which is not None:
        return record.find(which) if naming.is_chain(which) else None
    try:
        job.find_live(None)
    except JobError:
        if any(record.is_chain(path) for path in Path().iterdir()):
            return record.find(None)
    return None
