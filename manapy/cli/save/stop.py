"""End a job: take a final checkpoint, then let all ranks exit. With --no-checkpoint, end it at once."""

from __future__ import annotations

import argparse

from ..shared import arguments, naming
from ..shared.output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    arguments.add_job(parser)
    parser.add_argument(
        "--no-checkpoint",
        action="store_true",
        help="take no final checkpoint; the work since the last checkpoint is lost",
    )
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace, out: Output) -> int:
    """Ask the coordinator; prints the path of the final checkpoint."""
    from ...ckpt import command

    where = naming.job(options.job)
    with out.activity("stopping") as show:
        path = command.stop(where, checkpoint=not options.no_checkpoint, progress=show)
    out.data({"stopped": str(where.dir), "checkpoint": None if path is None else str(path)})
    if path is not None:
        out.line(str(path))
    return 0
