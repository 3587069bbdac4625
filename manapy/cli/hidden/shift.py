"""Backup RNICs and an agent for the real MPI below one rank: one line on standard output, for lowerhalf/mpi/rdma.c."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..shared.output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that rdma.c passes."""
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--guard", action="store_true", help="checkpoint the job when traffic falls back")
    parser.add_argument("--pid", type=int, required=True)


def run(options: argparse.Namespace, out: Output) -> int:
    """Print OK, the agent's socket, the job and the backups; or NONE and why there is no backup; or ERROR and the
    reason."""
    from ...core.errors import ManapyError
    from ...rdma import place, prepare

    try:
        backups, why = prepare.backups()
        if why is not None:
            out.line(f"NONE\t{why}")
            return 0
        where = place.make(place.job_name(options.dir))
        trouble = prepare.agent(
            where, prepare.store_url(where), pid=options.pid, guarded=options.dir if options.guard else None
        )
        out.line(f"ERROR\t{trouble}" if trouble is not None else f"OK\t{where.address}\t{where.job}\t{backups}")
    except (ManapyError, OSError) as error:
        out.line(f"ERROR\t{error}")
    return 0
