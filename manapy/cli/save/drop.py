"""Exclude a checkpoint from automatic restarts, for example because its results are wrong.

A restart of the job then uses another checkpoint, older or newer. Nothing is deleted. A restart that names the dropped
checkpoint still uses it, and newer checkpoints whose images need it can be restarted. `manapy list` shows which
checkpoints are dropped.
"""

from __future__ import annotations

import argparse

from ..shared import arguments, naming
from ..shared.output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    arguments.add_checkpoint(parser)
    parser.add_argument("--undo", action="store_true", help="let restarts choose the checkpoint again")
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace, out: Output) -> int:
    """Mark the checkpoint, and print which one the job continues now."""
    from ...ckpt.store import publish
    from ...core.errors import ManapyError, explained

    path = naming.checkpoint(options.checkpoint)
    with explained(ManapyError):
        publish.drop(path, not options.undo)
    newest = publish.latest(publish.owner(path.parent))
    out.data({"checkpoint": str(path), "dropped": not options.undo, "latest": str(newest)})
    out.line(f"{path} is {'used again' if options.undo else 'dropped'}; the newest one is now {newest}")
    return 0
