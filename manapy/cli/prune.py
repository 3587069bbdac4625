"""Delete all but the newest checkpoints of a job."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import _arguments
from ._output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("dir", metavar="DIR", type=Path, help="job directory")
    parser.add_argument(
        "--keep", metavar="K", type=_arguments.positive, required=True, help="keep the K newest checkpoints"
    )
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace, out: Output) -> int:
    """Delete, and print what was deleted."""
    from ..ckpt.store import job, publish
    from ..core.errors import ManapyError

    if not job.is_job(options.dir):
        raise ManapyError(f"{options.dir}: not a job directory")
    removed = publish.prune(options.dir, options.keep)
    out.data([str(path) for path in removed])
    for path in removed:
        out.line(f"deleted {path}")
    return 0
