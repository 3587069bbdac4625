"""Remove recordings of ended jobs from this host's shared memory.

A job removes old recordings when it begins and when it ends, so you need this only if you want the memory immediately.
Recordings of jobs that run, of other users and of other hosts stay, and so do copies on disk (`manapy trace record`).
"""

from __future__ import annotations

import argparse
import time

from ..shared import arguments, quantities
from ..shared.output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "--older",
        metavar="TIME",
        type=arguments.seconds,
        default=0.0,
        help="only recordings of jobs that ended more than TIME ago, such as 24h (default: all)",
    )
    parser.add_argument(
        "--keep",
        metavar="SIZE",
        type=quantities.size,
        default=0,
        help="keep the newest recordings that take at most SIZE together, such as 200MB (default: none)",
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would be removed")
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace, out: Output) -> int:
    """Remove, and print what was removed. Returns 1 if something could not be removed."""
    from ...core.units import ago, size
    from ...trace.capture import tidy

    now = time.time()
    found = tidy.beyond(tidy.ended(), options.keep, now - options.older)
    gone = found if options.dry_run else [one for one in found if tidy.remove(one.folder)]
    out.data([{"folder": str(one.folder), "bytes": one.bytes, "time": one.time} for one in gone])
    out.table(
        ("recording", "size", "ended"),
        [(one.folder.name, size(one.bytes), f"{ago(now - one.time)} ago") for one in gone],
    )
    total = size(sum(one.bytes for one in gone))
    did = "would remove" if options.dry_run else "removed"
    out.note(f"{did} {len(gone)} recording{'s' * (len(gone) != 1)}, {total}")
    if stay := [str(one.folder) for one in found if one not in gone]:
        out.error(f"cannot be removed, or a job runs again: {', '.join(stay)}")
    return int(bool(stay))
