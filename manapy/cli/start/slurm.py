"""Run a job that needs more time than one Slurm allocation, as a chain of allocations.

Either submit an unchanged script:

    manapy slurm chain [options] job.sh [arguments]

or add two lines to a script and submit it with sbatch as usual:

    #SBATCH --requeue --open-mode=append
    [ "$MANAPY_CHAIN" ] || exec manapy slurm guard -- "$0" "$@"

The script starts its MPI programs with manapy-launch (srun --mpi=pmi2 manapy-launch PROGRAM, or mpiexec manapy-launch
PROGRAM). manapy saves them before an allocation ends. The next allocation runs the script again, and each manapy-launch
in it continues its program.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from pathlib import Path

from ..shared import arguments, defaults, naming
from ..shared.output import Output

TAKES_MORE = "-- SCRIPT [ARGUMENTS...]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Two commands."""
    commands = parser.add_subparsers(dest="what", required=True, metavar="chain | guard")
    chain = commands.add_parser(
        "chain",
        help="submit a script as a chain",
        description="Submit a script as a chain of allocations, and print the job's id.",
    )
    chain.add_argument(
        "--sbatch", metavar="OPTIONS", default="", help="options for sbatch, as one word: --sbatch='-N 2 --time=30'"
    )
    chain.add_argument(
        "--checkpoint-time",
        metavar="TIME",
        type=arguments.seconds,
        help="expected time of a checkpoint; manapy then checks that the time limit is long enough",
    )
    chain.add_argument(
        "--spares",
        metavar="N",
        type=arguments.natural,
        default=0,
        help=(
            "ask for N more nodes than the script's --nodes; after the loss of a node, or a hang that it has caused, "
            "the job continues on a spare one in the same allocation (default 0)"
        ),
    )
    chain.add_argument("script", type=Path, metavar="job.sh", help="the batch script")
    chain.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="arguments of the script")
    guard = commands.add_parser(
        "guard",
        help="in a job: run a script under supervision",
        description=(
            "In a batch job: run the script after '--' as part of a chain. The exit code is the script's; or 75 if the "
            "chain gives up, after manapy stop, scancel, and while Slurm requeues the job; or 0 if a dependent job "
            "continues."
        ),
    )
    places = {
        chain: "a new manapy-chain-<time>/ in the working directory",
        guard: "manapy-chain-JOB/ in the job's working directory; for a task of an array, task-N/ in it",
    }
    for command in (chain, guard):
        arguments.add_chain_directory(command, f" (default: {places[command]})")
        command.add_argument(
            "--mode",
            choices=("requeue", "chain"),
            default="requeue",
            help="requeue the same job (default), or submit dependent jobs",
        )
        command.add_argument(
            "--poll",
            metavar="TIME",
            type=arguments.seconds,
            default=15.0,
            help="ask Slurm for deadline and nodes every TIME (default 15s)",
        )
        arguments.add_chain(command, "--spares")
    arguments.add_force(guard)


def run(options: argparse.Namespace, out: Output) -> int:
    """Submit, or guard."""
    return _chain(options, out) if options.what == "chain" else _guard(options, out)


def _chain(options: argparse.Namespace, out: Output) -> int:
    from ...chain import batch, slurm
    from ...core.errors import UsageError

    if options.after:
        raise UsageError(
            "'--' is not allowed here: put the script's arguments directly after the script, and sbatch's options into "
            "--sbatch"
        )
    how = arguments.policy(options)
    if how.move and not options.spares:
        raise UsageError("--on-slow move needs --spares: nodes to move the job to")
    if late := _own_options(options.arguments):
        out.note(f"manapy: {', '.join(late)}: passed to {options.script}; options of manapy stand before the script")
    script = batch.read_script(options.script)
    directory = options.dir or naming.fresh("chain")
    chain = batch.prepare(
        directory,
        script,
        options.arguments,
        _guard_options(options),
        slurm.words(options.sbatch),
        options.mode,
        options.spares,
    )
    try:
        job, limit = batch.submit(chain, batch.estimate(chain, options.checkpoint_time), how.margin)
    except BaseException:
        batch.withdraw(chain)
        raise
    length = "no time limit" if limit is None else f"allocations of {limit / 60:.0f} min"
    if not batch.names_time(chain):
        length = "allocations as long as the partition's default (the script has no --time)"
        if options.checkpoint_time is not None:
            length += ", so --checkpoint-time was not checked"
    out.note(f"chain {os.path.relpath(chain.dir)}: job {job}, {length}")
    out.line(job)
    return 0


def _own_options(words: Sequence[str]) -> list[str]:
    """The options of `manapy slurm chain` among the arguments of a script."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    own = defaults.options_of(defaults.parsers(parser, "slurm")["slurm.chain"])
    names = [word.partition("=")[0] for word in words]
    return [name for name in names if name.startswith("--") and name[2:] in own]


def _guard(options: argparse.Namespace, out: Output) -> int:
    from ...chain import batch
    from ...chain.supervisor import Supervisor

    how, limits = arguments.policy(options), arguments.limits(options)
    chain = batch.patiently(
        lambda: batch.open_in_job(options.dir, options.after, _guard_options(options), options.mode), out.error
    )
    return batch.guard(
        Supervisor(chain, how, limits, out.error, at_once=False), options.budget, options.poll, options.force
    )


def _guard_options(options: argparse.Namespace) -> list[str]:
    """The options that later allocations need, as words of a command line."""
    words = []
    for name in ("interval", "mtbf", "margin", "max_restarts", "max_crashes", "budget", "poll", "patience"):
        if (value := getattr(options, name)) is not None:
            text = "never" if value == math.inf else str(value) if isinstance(value, int) else f"{value:.12g}"
            words.append(f"--{name.replace('_', '-')}={text}")
    return [*words, f"--watch={options.watch}", f"--on-slow={options.on_slow}"]
