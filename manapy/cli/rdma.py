"""RDMA traffic that survives its network card (RNIC).

    manapy rdma run -- ib_write_bw ...             run a program whose traffic moves to another RNIC when its own fails, and back
    mpirun -n 8 manapy rdma run --kv URL -- PROG   the same for each rank; hosts find each other through the store at URL

Programs that talk with each other must belong to the same job and use the same store.
"""

from __future__ import annotations

import argparse
import os
import shutil
from typing import TYPE_CHECKING

from . import _arguments
from ._output import Output

if TYPE_CHECKING:
    from ..rdma.place import Place

TAKES_MORE = True
LINGER_SECONDS = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its commands."""
    commands = parser.add_subparsers(dest="what", required=True, metavar="run | agent")
    run = commands.add_parser("run", help="run a program with backup RNICs", description="Run the command after '--' with backup RNICs.")
    run.add_argument("--backup", metavar="DEV,...", type=_arguments.names, help="RNICs that may stand in, best first")
    agent = commands.add_parser("agent", help="this host's agent of a job", description="Serve the programs of a job on this host; `manapy rdma run` starts one if there is none.")
    for command in (run, agent):
        command.add_argument("--kv", metavar="URL", help="the store that the job's hosts share: etcd://host:port,... or sqlite:///path/file.db (default: MANAPY_SHIFT_KV; else one of this host's own)")
        command.add_argument("--job", metavar="NAME", help="(default: MANAPY_SHIFT_JOB, else Slurm's, else one job for all that this user runs)")
        command.add_argument("--ttl", metavar="TIME", type=_arguments.seconds, default=10.0, help="how long the keys of a dead host live on (default 10s)")
        command.add_argument("--linger", metavar="TIME", type=_arguments.seconds, help=f"the agent ends so long after its last program (default: {LINGER_SECONDS:.0f}s if run starts it, else never)")
    agent.add_argument("--fd", type=int, help=argparse.SUPPRESS)
    agent.add_argument("--ready-fd", type=int, help=argparse.SUPPRESS)


def run(options: argparse.Namespace, out: Output) -> int:
    """The command that was named."""
    from ..ckpt.errors import UsageError

    if options.after and options.what != "run":
        raise UsageError("nothing may follow '--'")
    return {"run": _run, "agent": _agent}[options.what](options, out)


def _place(options: argparse.Namespace) -> tuple[Place, str]:
    """Of the job, and the store's URL."""
    from ..rdma import place

    where = place.of(options.job or place.default_job())
    return where, options.kv or os.environ.get("MANAPY_SHIFT_KV") or where.default_url


# ---- agent


def _agent(options: argparse.Namespace, out: Output) -> int:
    import logging
    import socket

    from ..ckpt.errors import AgentError, ManapyError
    from ..rdma import agent, store

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True)

    def ready(text: str) -> None:
        if options.ready_fd is not None:
            with open(options.ready_fd, "w") as stream:
                stream.write(text + "\n")

    try:
        where, url = _place(options)
        keys = store.open_store(url, where.job, options.ttl)
    except ManapyError as error:
        ready(f"failed {error}")
        raise
    if options.fd is not None:
        listener = socket.socket(fileno=options.fd)
    else:
        with where.locked():
            if where.is_alive():
                raise AgentError(f"an agent of job {where.job} runs on this host already ({where.address})")
            listener = where.listen()
    agent.serve(where, url, keys, listener, ready, options.linger, options.ttl)
    return 0


# ---- run


def _run(options: argparse.Namespace, out: Output) -> int:
    """Does not return: the process becomes the program."""
    from .. import _install
    from ..ckpt.errors import ManapyError, UsageError
    from ..rdma import protocol

    if not options.after:
        raise UsageError("what is to be run? manapy rdma run -- PROGRAM")
    program = shutil.which(options.after[0])
    if program is None:
        raise UsageError(f"{options.after[0]}: no such program")
    library = _install.library("libmanapy_shift.so")
    if library is None:
        raise ManapyError("this manapy was built without libmanapy_shift.so: its build needs the headers of libibverbs (Debian: libibverbs-dev)")
    if options.backup is not None and not all(protocol.is_device(name) for name in options.backup):
        raise UsageError(f"--backup: not names of RNICs: {','.join(options.backup)}")
    where = _ensure(options, out)
    os.environ["MANAPY_SHIFT_AGENT"] = str(where.address)
    os.environ["MANAPY_SHIFT_JOB"] = where.job
    if options.backup is not None:
        os.environ["MANAPY_SHIFT_BACKUP"] = ",".join(options.backup)
    os.environ["LD_PRELOAD"] = " ".join([str(library), *os.environ.get("LD_PRELOAD", "").split()])
    os.execv(program, options.after)


def _ensure(options: argparse.Namespace, out: Output) -> Place:
    """An agent of the job serves this host, and stays as long as this process, which is to become the program."""
    from ..ckpt.errors import AgentError, UsageError
    from ..rdma import client, place

    where, url = _place(options)
    linger = LINGER_SECONDS if options.linger is None else options.linger
    for last in (False, False, True):  # an agent that is about to end is replaced
        trouble = place.start(where, url, linger, options.ttl)
        if trouble is not None:
            out.error(f"{trouble}; nothing is protected until it can be reached")
        try:
            with client.Connection(where) as connection:
                connection.ask("STAY")
                served = connection.status()["store"]
        except AgentError:
            if last:
                raise
            continue
        if served != url:
            raise UsageError(f"the agent of job {where.job} on this host keeps its keys in {served}, not in {url}: give this job another name (--job)")
        return where
    raise AssertionError("unreachable")
