"""Delete all but the newest checkpoints of a job. The newest ones may be incremental: older checkpoints that they need
are kept, too."""

from __future__ import annotations

import argparse

from ..shared import arguments, naming
from ..shared.output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("job", metavar="JOB", help="a job, by its directory, its name from any directory or its chain")
    parser.add_argument(
        "--keep", metavar="K", type=arguments.positive, required=True, help="keep the K newest checkpoints"
    )
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace, out: Output) -> int:
    """Delete, and print what was deleted."""
    from ...ckpt.store import known, publish
    from ...core.errors import JobError

    if known.find(options.job, publish.is_checkpoint) is not None:
        raise JobError(f"{options.job} is a checkpoint: name the job of which the oldest are to be deleted")
    directory = naming.job(options.job).dir
    removed = publish.prune(directory, options.keep)
    out.data([str(path) for path in removed])
    for path in removed:
        out.line(f"deleted {path}")
    if (left := len(publish.usable(directory))) > options.keep:
        out.note(f"{left} checkpoints remain, because newer ones need the images of older ones: see `manapy list`")
    return 0
