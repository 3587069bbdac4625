"""Run an MPI job to its end. After each crash, and each hang, the job continues from its last checkpoint.

    manapy run -- mpirun -n 4 manapy-launch python solver.py

The command after '--' may be any command or script that starts its MPI programs with manapy-launch. After a crash
manapy runs it again. Each manapy-launch in it then continues its program, or returns the program's exit code if the
program has ended already. Ctrl-C takes a final checkpoint and stops; `manapy run --dir DIR` with the same directory
continues.

The exit code is the command's; or 1 if the chain gives up, 75 after `manapy stop`, and 130 after --time, Ctrl-C or
another signal.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from pathlib import Path

from ..shared import arguments, naming
from ..shared.output import Output

TAKES_MORE = "[-- COMMAND [ARGUMENTS...]]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    arguments.add_chain_directory(
        parser, "; an existing chain is continued (default: a new manapy-chain-<time>/ in the working directory)"
    )
    arguments.add_chain(parser, "--hosts")
    parser.add_argument(
        "--back-off",
        metavar="TIME",
        type=arguments.seconds,
        help=(
            "wait TIME before a restart after an attempt without a checkpoint; each further such attempt doubles the "
            "wait, up to a minute (default 1s)"
        ),
    )
    parser.add_argument(
        "--hosts",
        metavar="HOST[:N],...",
        type=arguments.names,
        default=[],
        help=(
            "hosts for MPICH's mpirun, by the names that `hostname` prints there, and how many ranks each can take "
            "(default 1); manapy excludes a host on which a rank has died, or which is the cause of a hang, as long as "
            "the others can take all ranks"
        ),
    )
    parser.add_argument("--time", metavar="TIME", type=arguments.seconds, help="save the job and stop after TIME")
    arguments.add_force(parser)


def run(options: argparse.Namespace, out: Output) -> int:
    """Supervise the command. Returns the exit code."""
    from ...chain import batch, record, run as chain_run
    from ...chain.supervisor import FORCED, Supervisor
    from ...core.errors import UsageError

    command = options.after
    how = arguments.policy(options)
    if how.move and not options.hosts:
        raise UsageError("--on-slow move needs --hosts: more hosts than the job uses")
    if options.dir is not None and record.is_chain(options.dir):
        chain = record.read_own(options.dir)
        if chain.record["kind"] != "run":
            raise UsageError(f"{options.dir} is a chain of Slurm jobs; continue: {batch.again(chain)}")
        if command and command != chain.record["command"]:
            raise UsageError(f"{options.dir} is a chain of another command: {' '.join(chain.record['command'])}")
        over = chain.over()
        if over is not None and over["event"] == "finished":
            out.note(f"manapy: {chain.dir} has finished: exit code {over['code']}")
            return int(over["code"])
        os.chdir(chain.record["cwd"])
    elif not command:
        raise UsageError("the command is missing: manapy run -- mpirun -n 4 manapy-launch PROGRAM")
    elif shutil.which(command[0]) is None:
        raise UsageError(f"{command[0]}: no such program")
    else:
        directory = options.dir or naming.fresh("chain")
        chain = record.create(directory, {"kind": "run", "command": command, "cwd": str(Path.cwd())})
    if options.force:
        chain.append("note", chain.attempts(), text=FORCED)
    back_off = chain_run.BACK_OFF_FIRST if options.back_off is None else options.back_off
    deadline = None if options.time is None else time.time() + options.time
    return chain_run.supervise(
        Supervisor(chain, how, arguments.limits(options), out.error), options.hosts, deadline, back_off, options.force
    )
