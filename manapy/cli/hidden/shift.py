"""Backup RNICs and an agent for the real MPI below one rank: one line on standard output, for lowerhalf/mpi/rdma.c.

The agent is a part of the job's processes, and its store is the coordinator (manapy/rdma/host.py). It is a process of
its own if the user has named a store, or if the coordinator is lost.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..shared.output import Output

if TYPE_CHECKING:
    from ...rdma.place import Place


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that rdma.c passes."""
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--host", required=True, help="the coordinator's address")
    parser.add_argument("--port", type=int, required=True)
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
        trouble = _agent(where, options)
        out.line(f"ERROR\t{trouble}" if trouble is not None else f"OK\t{where.address}\t{where.job}\t{backups}")
    except (ManapyError, OSError) as error:
        out.line(f"ERROR\t{error}")
    return 0


def _agent(where: Place, options: argparse.Namespace) -> str | None:
    """Have an agent serve this rank. Returns its complaint, or None."""
    from ...ckpt import command
    from ...core.errors import GoneError
    from ...rdma import prepare, store

    guarded = options.dir if options.guard else None
    if not os.environ.get("MANAPY_SHIFT_KV"):
        url = store.central_url(options.host, options.port)
        try:
            return prepare.hosted_agent(
                where,
                url,
                options.pid,
                guarded,
                lambda: command.serve_rdma(options.dir, options.host, options.port),
            )
        except GoneError:  # a rank that starts after the loss of its job's coordinator
            pass
    return prepare.agent(where, prepare.store_url(where), pid=options.pid, guarded=guarded)
