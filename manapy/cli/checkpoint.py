"""Take a checkpoint of a running job.

Returns when the checkpoint is complete on disk and published, and prints its path. What must wait says whom it waits for.
"""

from __future__ import annotations

import argparse
import time

from . import _arguments
from ._output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    _arguments.add_job(parser)
    parser.add_argument("--then", choices=("continue", "exit"), default="continue", help="what the job does afterwards (default: continue)")
    parser.add_argument("--child-grace", metavar="TIME", type=_arguments.seconds, help="how long to wait for child processes to end (5s, 2m; default: as at launch)")
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace, out: Output) -> int:
    """Ask, show progress, print the path."""
    from ..ckpt import command, job

    where = job.find_live(options.job)
    begin = time.monotonic()
    with out.activity("checkpoint requested") as show:
        path = command.checkpoint(where, then=options.then, child_grace=options.child_grace, progress=show)
    out.data({"checkpoint": str(path), "seconds": round(time.monotonic() - begin, 3)})
    out.line(str(path))
    return 0
