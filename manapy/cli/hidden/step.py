"""What a manapy-launch in a chain (MANAPY_CHAIN) has to do: one line on standard output, for lowerhalf/join/chain.c."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ..shared.output import Output

TAKES_MORE = "-- PROGRAM [ARGUMENTS...]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that chain.c passes; the program and its arguments follow '--'."""
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--damaged", type=Path, metavar="CHECKPOINT", help="the ranks cannot use the last answer ...")
    parser.add_argument("--because", metavar="REASON", help="... for this reason")


def run(options: argparse.Namespace, out: Output) -> int:
    """Print NEW, RESUME, DONE or ERROR."""
    from ...chain import record, steps
    from ...core.errors import ManapyError

    try:
        chain = record.read(Path(os.environ["MANAPY_CHAIN"]))
        attempts = chain.events("attempt")
        if not attempts:
            raise ManapyError(
                f"MANAPY_CHAIN names {chain.dir}, of which no attempt has begun: it is for manapy run and manapy slurm "
                "to set"
            )
        number = str(chain.attempts())
        if os.environ.get("MANAPY_CHAIN_ATTEMPT", number) != number:
            raise ManapyError(
                f"{chain.dir}: this script belongs to attempt {os.environ['MANAPY_CHAIN_ATTEMPT']}, which is over: "
                f"attempt {number} runs now"
            )
        job = attempts[-1]["id"]
        if job and not _is_ours(job):
            raise ManapyError(
                f"MANAPY_CHAIN names the chain of job {job}, which this isn't: unset it before other jobs are submitted"
            )
        if options.damaged is None:
            verdict = steps.decide(chain, options.after, options.ranks, options.dir, out.error)
        else:
            verdict = steps.decide_again(chain, options.damaged, options.because, out.error)
        out.line(verdict.line())
    except (ManapyError, OSError) as error:
        out.line(f"ERROR {error}")
    return 0


def _is_ours(job: str) -> bool:
    """Do we run in this Slurm job? A job that continues a task of an array has the task's variables, but an id of its
    own."""
    if job == os.environ.get("SLURM_JOB_ID"):
        return True
    from ...chain import slurm

    return job == slurm.own_job()
