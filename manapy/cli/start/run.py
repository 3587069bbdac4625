"""Run an MPI job until it has ended, whatever happens on the way: after a crash it goes on from its last checkpoint.

    manapy run -- mpirun -n 4 manapy-launch python solver.py

What stands after '--' may be any command or script whose MPI programs are started with manapy-launch; it is run again, and each
manapy-launch in it continues where it was, or gives the exit code it had. Ctrl-C takes a final checkpoint; the same directory given
with --dir continues. The exit code is the command's.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from pathlib import Path

from ..shared import arguments
from ..shared.output import Output

TAKES_MORE = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--dir", metavar="DIR", type=Path, help="the chain's directory (default: a new manapy-chain-<time>/ here); an old one is continued")
    arguments.add_chain(parser)
    parser.add_argument("--back-off", metavar="TIME", type=arguments.seconds, help="before the first restart, doubled at each further one, at most a minute (default 1s)")
    parser.add_argument("--hosts", metavar="HOST[:N],...", type=arguments.names, default=[], help="for MPICH's mpirun, by the names that `hostname` says there; a host where a rank died is left out")
    parser.add_argument("--time", metavar="TIME", type=arguments.seconds, help="save the job and stop after so long")
    parser.add_argument("--force", action="store_true", help="one more attempt although the chain has given up")


def run(options: argparse.Namespace, out: Output) -> int:
    """Supervise; exit code of the command, 130 after Ctrl-C, 1 if the chain gives up."""
    from ...chain import record, run as chain_run
    from ...chain.supervisor import Supervisor
    from ...core.errors import UsageError

    command = options.after
    how = arguments.policy(options)
    if options.dir is not None and record.is_chain(options.dir):
        chain = record.read(options.dir)
        if chain.record["kind"] != "run":
            raise UsageError(f"{options.dir} is a chain of Slurm jobs: manapy slurm chain continues it")
        if command and command != chain.record["command"]:
            raise UsageError(f"{options.dir} is a chain of another command: {' '.join(chain.record['command'])}")
        over = chain.over()
        if over is not None and over["event"] == "finished":
            out.note(f"manapy: {chain.dir} has finished: exit code {over['code']}")
            return int(over["code"])
        os.chdir(chain.record["cwd"])
    elif not command:
        raise UsageError("what is to be run? manapy run -- mpirun -n 4 manapy-launch PROGRAM")
    elif shutil.which(command[0]) is None:
        raise UsageError(f"{command[0]}: no such program")
    else:
        directory = options.dir or Path(f"manapy-chain-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}")
        chain = record.create(directory, {"kind": "run", "command": command, "cwd": str(Path.cwd())})
    if options.force:
        chain.append("note", chain.attempts(), text="--force: one more attempt in any case")
    back_off = chain_run.BACK_OFF_FIRST if options.back_off is None else options.back_off
    deadline = None if options.time is None else time.time() + options.time
    return chain_run.supervise(Supervisor(chain, how, arguments.limits(options), out.error), options.hosts, deadline, back_off, options.force)
