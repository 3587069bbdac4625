"""Arguments that several commands have in common."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from . import naming

if TYPE_CHECKING:
    from ...chain.attempt import Policy
    from ...chain.policy import Limits
    from ...trace.capture.locate import Found
    from ...trace.model.schedule import Schedule
    from .output import Output


def add_job(parser: argparse.ArgumentParser) -> None:
    """JOB, optional."""
    parser.add_argument(
        "job",
        nargs="?",
        metavar="JOB",
        help="a job, by its directory, its name, one of its checkpoints or its chain (default: the only live job in this directory)",
    )


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """CHECKPOINT, required."""
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help="a checkpoint's directory, JOB/ckpt-N, or a job: its latest checkpoint",
    )


def add_schedule(parser: argparse.ArgumentParser) -> None:
    """--schedule of a training job."""
    names = "tp=2,pp=4,dp=2,micro=8[,kind=1f1b|gpipe|interleaved]"
    parser.add_argument("--schedule", metavar="S", type=schedule, help=f"of a training job, so that its micro-batches are named: {names} (default: found in its calls, if it can be)")


def add_recording(parser: argparse.ArgumentParser) -> None:
    """JOB of what is recorded, where it runs, and how to get there: `recording` needs all three."""
    parser.add_argument(
        "job",
        nargs="?",
        metavar="JOB",
        help="a job as for 'manapy status', the name of a recording, or a folder of trace files (default: the only live job in this directory)",
    )
    parser.add_argument("--hosts", metavar="HOST,...", type=names, default=[], help="the job's hosts (default: those of a job of manapy-launch)")
    parser.add_argument("--rsh", metavar="CMD", type=shlex.split, help="how to get to them: a host's name and a command are put behind it (default: srun in an allocation of Slurm, else ssh)")


def recording(options: argparse.Namespace, out: Output) -> Found:
    """The recording that JOB, --hosts and --rsh mean; said, if nobody has named it. Raises JobError."""
    from ...core.errors import JobError
    from ...trace.capture import locate

    try:
        found = locate.find(options.job, options.hosts, options.rsh)
    except JobError:
        if options.job is None or not naming.is_chain(options.job):
            raise
        found = locate.find(str(naming.job(options.job).dir), options.hosts, options.rsh)
    if found.guessed:
        out.note(found.guessed)
    return found


class _Renamed(argparse.Action):
    """An old name of an option: it works, and says what the option is called now."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None) -> None:
        new = next(action for action in parser._actions if action.dest == self.dest and action is not self)
        print(f"{parser.prog}: {option} is called {new.option_strings[0]} now", file=sys.stderr)
        setattr(namespace, self.dest, values)


def add_file_system(parser: argparse.ArgumentParser, text: str, default: Path | None = None) -> None:
    """--file-system DIR; it was --dir in 0.1."""
    parser.add_argument("--file-system", metavar="DIR", type=Path, default=default, help=text)
    parser.add_argument("--dir", dest="file_system", type=Path, default=default, action=_Renamed, help=argparse.SUPPRESS)


def schedule(text: str) -> Schedule:
    """The schedule that a text names. numpy is needed for it, and imported with the option only."""
    from ...trace.model.schedule import ScheduleError, parse

    try:
        return parse(text)
    except ScheduleError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("schedule: ")) from None


def seconds(text: str) -> float:
    """A time such as 500ms, 30s, 10m or 2h, as manapy-launch takes it."""
    for suffix, factor in (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("", 1.0)):
        if text.endswith(suffix):
            try:
                value = float(text.removesuffix(suffix) if suffix else text) * factor
            except ValueError:
                break
            if 0 <= value < math.inf:
                return value
            break
    raise argparse.ArgumentTypeError(f"not a time such as 30s, 10m or 2h: '{text}'")


def positive(text: str) -> int:
    """A number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"not a number of at least 1: '{text}'")
    return int(text)


def natural(text: str) -> int:
    """A number, or 0."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"not a number: '{text}'")
    return int(text)


def names(text: str) -> list[str]:
    """A list with commas."""
    found = text.split(",")
    if not all(found):
        raise argparse.ArgumentTypeError(f"an empty name in the list '{text}'")
    return found


def add_chain(parser: argparse.ArgumentParser) -> None:
    """How a chain takes checkpoints, and when it gives up."""
    parser.add_argument("--interval", metavar="TIME", type=seconds, help="between checkpoints (default: by --mtbf; else only before the end)")
    parser.add_argument("--mtbf", metavar="TIME", type=seconds, help="mean time between failures: the interval is Daly's, of this and of the measured cost")
    parser.add_argument("--margin", metavar="FACTOR", type=float, default=1.5, help="a checkpoint may take so many times what the last ones took (default 1.5)")
    parser.add_argument("--max-restarts", metavar="N", type=natural, help="(default: any number)")
    parser.add_argument("--max-crashes", metavar="N", type=positive, default=3, help="give up after so many crashes in a row, with less than two checkpoints between them (default 3)")
    parser.add_argument("--budget", metavar="TIME", type=seconds, help="give up when all runs together have taken so long")


def policy(options: argparse.Namespace) -> Policy:
    """Of add_chain's options. Raises UsageError."""
    from ...chain.attempt import Policy
    from ...core.errors import UsageError

    if not 1 <= options.margin < math.inf:
        raise UsageError(f"--margin must be at least 1, not {options.margin:g}")
    for option in ("interval", "mtbf", "budget"):
        if getattr(options, option) == 0:
            raise UsageError(f"--{option} must be more than 0")
    return Policy(options.interval, options.mtbf, options.margin)


def limits(options: argparse.Namespace) -> Limits:
    """Of add_chain's options."""
    from ...chain.policy import Limits

    return Limits(options.max_restarts, options.budget, options.max_crashes)
