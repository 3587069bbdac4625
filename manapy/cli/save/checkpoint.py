"""Take a checkpoint of a running job.

Returns when the checkpoint is complete on disk and published, and prints its path. What must wait says whom it waits for.
"""

from __future__ import annotations

import argparse
import time

from ..shared import arguments, naming
from ..shared.output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    arguments.add_job(parser)
    parser.add_argument("--then", choices=("continue", "exit"), default="continue", help="what the job does afterwards (default: continue)")
    parser.add_argument("--child-grace", metavar="TIME", type=arguments.seconds, help="how long to wait for child processes to end (5s, 2m; default: as at launch)")
    parser.add_argument("--unless-within", metavar="TIME", type=arguments.seconds, help="not if one is being taken, or was published within this time: that one will do")
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace, out: Output) -> int:
    """Ask, show progress, print the path."""
    from ...ckpt import command
    from ...core.errors import UsageError

    if options.unless_within is not None and (options.then != "continue" or options.child_grace is not None):
        raise UsageError("--unless-within takes neither --then nor --child-grace: the checkpoint may be another's")
    where = naming.job(options.job)
    begin = time.monotonic()
    with out.activity("checkpoint requested") as show:
        path = command.checkpoint(where, then=options.then, child_grace=options.child_grace, within=options.unless_within, progress=show)
    out.data({"checkpoint": str(path), "seconds": round(time.monotonic() - begin, 3)})
    out.line(str(path))
    return 0
