"""Take a checkpoint of a running job.

The command returns when the checkpoint is complete on disk and published. It prints the checkpoint's path. If it has to
wait, it prints which rank it waits for. If the images were written while the program ran (--background of
manapy-launch), it also prints, on standard error, how long the job was paused and when the checkpoint was published.
"""

from __future__ import annotations

import argparse
import time

from ..shared import arguments, naming
from ..shared.output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    arguments.add_job(parser)
    parser.add_argument(
        "--then",
        choices=("continue", "exit"),
        default="continue",
        help="what the job does after the checkpoint (default: continue)",
    )
    parser.add_argument(
        "--child-grace",
        metavar="TIME",
        type=arguments.seconds,
        help="how long to wait for child processes to end, such as 5s or 2m (default: as at launch)",
    )
    parser.add_argument(
        "--unless-within",
        metavar="TIME",
        type=arguments.seconds,
        help="take no new checkpoint if one is in progress or was published within TIME; return that one",
    )
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace, out: Output) -> int:
    """Ask, show progress, print the path. 1: the job ends, but its last checkpoint is not in the job directory, though
    it was to be copied there."""
    from ...ckpt import command
    from ...core.errors import UsageError

    if options.unless_within is not None and (options.then != "continue" or options.child_grace is not None):
        raise UsageError(
            "--unless-within cannot be combined with --then or --child-grace: the checkpoint may be another command's"
        )
    where = naming.job(options.job)
    begin = time.monotonic()
    with out.activity("checkpoint requested") as show:
        taken = command.take(
            where, then=options.then, child_grace=options.child_grace, within=options.unless_within, progress=show
        )
    seconds = round(time.monotonic() - begin, 3)
    out.data({"checkpoint": str(taken.path), "seconds": seconds, "remark": taken.remark})
    if taken.remark and not options.json:
        out.note(taken.remark)
    out.line(str(taken.path))
    return 1 if taken.remark and options.then == "exit" else 0
