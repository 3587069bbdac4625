"""Arguments that several commands have in common."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from pathlib import Path

from ...core.records import TYPE_CHECKING
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
        help=f"{naming.JOB} (default: the only live job in this directory)",
    )


def add_checkpoint(parser: argparse.ArgumentParser, default: str = "") -> None:
    """CHECKPOINT. Required, unless default says what the command takes without it."""
    parser.add_argument(
        "checkpoint",
        nargs="?" if default else None,
        metavar="CHECKPOINT",
        help=naming.CHECKPOINT + (f" (default: {default})" if default else ""),
    )


def add_schedule(parser: argparse.ArgumentParser) -> None:
    """--schedule of a training job."""
    names = "tp=2,pp=4,dp=2,micro=8[,kind=1f1b|gpipe|interleaved]"
    parser.add_argument(
        "--schedule",
        metavar="S",
        type=schedule,
        help=(
            f"schedule of a training job; verdicts then name micro-batches: {names} (default: inferred from the calls, "
            "where possible)"
        ),
    )


def add_recording(parser: argparse.ArgumentParser) -> None:
    """JOB, --hosts and --rsh: a recording, where it runs and how to reach its hosts; `recording` needs all three."""
    parser.add_argument(
        "job",
        nargs="?",
        metavar="JOB",
        help=(
            f"{naming.JOB}; or a recording, by its --name or a folder of trace files (default: the only live job in "
            "this directory)"
        ),
    )
    parser.add_argument(
        "--hosts",
        metavar="HOST,...",
        type=names,
        default=[],
        help="the job's hosts (default: known for a job under manapy-launch)",
    )
    parser.add_argument(
        "--rsh",
        metavar="CMD",
        type=shlex.split,
        help=(
            "the remote shell that reaches these hosts; manapy appends a host's name and a command (default: the "
            "agents of a job under manapy-launch while it runs; else srun in a Slurm allocation, else ssh)"
        ),
    )


def recording(options: argparse.Namespace, out: Output) -> Found:
    """The recording that JOB, --hosts and --rsh select. Prints a note if JOB was not given. Raises JobError."""
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


class Renamed(argparse.Action):
    """An old name of an option. It still works, and prints the new name."""

    def __init__(self, option_strings: list[str], dest: str, new: argparse.Action) -> None:
        super().__init__(option_strings, dest, choices=new.choices, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        self.type = new.type
        self.new = new

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        print(f"{parser.prog}: {option} is called {self.new.option_strings[0]} now", file=sys.stderr)
        setattr(namespace, self.dest, values)


def add_renamed(parser: argparse.ArgumentParser, old: str, new: str) -> None:
    """The name that an option, `new`, had in the last version. It works in this one, hidden."""
    action = parser._option_string_actions[new]
    parser.add_argument(old, action=Renamed, dest=action.dest, new=action)


def add_chain_directory(parser: argparse.ArgumentParser, more: str) -> None:
    """--dir DIR: in all commands the directory of what the command makes, a job's or a chain's."""
    parser.add_argument("--dir", metavar="DIR", type=Path, help=f"the chain's directory, which is also its name{more}")


def add_file_system(parser: argparse.ArgumentParser, text: str, default: Path | None = None) -> None:
    """--file-system DIR; it was --dir in 0.1."""
    parser.add_argument("--file-system", metavar="DIR", type=Path, default=default, help=text)
    add_renamed(parser, "--dir", "--file-system")


def schedule(text: str) -> Schedule:
    """Parse a schedule. This needs numpy, which is imported only when the option is used."""
    from ...trace.model.schedule import ScheduleError, parse

    try:
        return parse(text)
    except ScheduleError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("schedule: ")) from None


def seconds(text: str) -> float:
    """Seconds, from a time such as 500ms, 30s, 10m or 2h: the same syntax as manapy-launch's."""
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


def interval(text: str) -> float:
    """Seconds; infinite: never."""
    return math.inf if text == "never" else seconds(text)


def positive(text: str) -> int:
    """An integer of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"not a number of at least 1: '{text}'")
    return int(text)


def natural(text: str) -> int:
    """An integer of at least 0."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"not a number: '{text}'")
    return int(text)


def names(text: str) -> list[str]:
    """A list of names, separated by commas."""
    found = text.split(",")
    if not all(found):
        raise argparse.ArgumentTypeError(f"an empty name in the list '{text}'")
    return found


def add_chain(parser: argparse.ArgumentParser, elsewhere: str) -> None:
    """Options for when a chain takes checkpoints and when it gives up. elsewhere: the option that gives a job other
    hosts to be moved to."""
    parser.add_argument(
        "--interval",
        metavar="TIME|never",
        type=interval,
        help=(
            "take a checkpoint every TIME (default: computed from --mtbf); never: only the final checkpoint, and, if "
            "the time is limited, one that measures how long a checkpoint takes"
        ),
    )
    parser.add_argument(
        "--mtbf",
        metavar="TIME",
        type=seconds,
        help=(
            "mean time between failures; Daly's formula gives the interval from it and from the measured cost of a "
            "checkpoint (default: 24h, with at least 30 minutes between two checkpoints)"
        ),
    )
    parser.add_argument(
        "--margin",
        metavar="FACTOR",
        type=float,
        default=1.5,
        help="reserve FACTOR times the time of the last checkpoints for the final one (default 1.5)",
    )
    parser.add_argument(
        "--max-restarts", metavar="N", type=natural, help="give up after N restarts (default: no limit)"
    )
    parser.add_argument(
        "--max-crashes",
        metavar="N",
        type=positive,
        default=3,
        help="give up after N crashes in a row, with fewer than two checkpoints between them (default 3)",
    )
    parser.add_argument("--budget", metavar="TIME", type=seconds, help="give up when all runs together have taken TIME")
    parser.add_argument(
        "--watch",
        choices=("on", "off"),
        default="on",
        help=(
            "on (default): look for ranks that are hung, late or slow, as `manapy why --watch` does, and report them; "
            "end and continue a job that is certainly hung"
        ),
    )
    parser.add_argument(
        "--patience",
        metavar="TIME",
        type=seconds,
        default=300.0,
        help="how long a job must be hung before it is ended (default 5m); does not apply to a proven deadlock",
    )
    parser.add_argument(
        "--on-slow",
        choices=("report", "move"),
        default="report",
        help=(
            "move: if one host makes the job slow for the time of --patience, and the expected gain is more than the "
            f"cost, save the job and continue it without that host; needs {elsewhere} (default: report)"
        ),
    )


def add_force(parser: argparse.ArgumentParser) -> None:
    """--force."""
    parser.add_argument("--force", action="store_true", help="make one more attempt although the chain has given up")


def policy(options: argparse.Namespace) -> Policy:
    """The policy from add_chain's options. Raises UsageError."""
    from ...chain import timing
    from ...chain.attempt import Policy
    from ...core.errors import UsageError

    if not 1 <= options.margin < math.inf:
        raise UsageError(f"--margin must be at least 1, not {options.margin:g}")
    for option in ("interval", "mtbf", "budget"):
        if getattr(options, option) == 0:
            raise UsageError(f"--{option} must be more than 0")
    patience, move = options.patience if options.watch == "on" else None, options.on_slow == "move"
    if move and patience is None:
        raise UsageError("--on-slow move needs --watch on")
    if options.interval == math.inf:
        return Policy(margin=options.margin, patience=patience, move=move)
    if options.interval is None and options.mtbf is None:
        return Policy(None, timing.ASSUMED_MTBF, timing.ASSUMED_LEAST, options.margin, patience, move)
    return Policy(options.interval, options.mtbf, margin=options.margin, patience=patience, move=move)


def limits(options: argparse.Namespace) -> Limits:
    """The limits from add_chain's options."""
    from ...chain.policy import Limits

    return Limits(options.max_restarts, options.budget, options.max_crashes)
