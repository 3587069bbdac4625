"""End a job: take a final checkpoint, then let all ranks exit. With --no-checkpoint, end it immediately.

--next and --before schedule the end in advance. The command waits until the job has ended. If the command is
interrupted, the end remains scheduled; --cancel withdraws it. `manapy status` shows it.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..shared import arguments, naming
from ..shared.output import Output

if TYPE_CHECKING:
    from datetime import datetime


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    arguments.add_job(parser)
    when = parser.add_mutually_exclusive_group()
    when.add_argument(
        "--no-checkpoint",
        action="store_true",
        help="take no final checkpoint; the work since the last checkpoint is lost",
    )
    when.add_argument(
        "--next",
        action="store_true",
        help="end the job with its next checkpoint, which --interval, the program or another command asks for",
    )
    when.add_argument(
        "--before",
        metavar="TIME",
        type=moment,
        help=(
            "end the job before TIME, such as 18:30 or 2026-11-27T18:30. The final checkpoint begins before TIME by "
            "ten seconds and twice the duration of the last checkpoint (with --local also of its copy to the job "
            "directory)"
        ),
    )
    when.add_argument("--cancel", action="store_true", help="withdraw --next or --before")
    parser.add_argument("--json", action="store_true")


def moment(text: str) -> datetime:
    """A time of today, or of tomorrow if it has passed; or a date and a time."""
    from datetime import datetime, timedelta

    now = datetime.now()  # local time without an offset, because that may change until then
    for form in ("%H:%M", "%H:%M:%S"):
        try:
            clock = datetime.strptime(text, form)
        except ValueError:
            continue
        found = now.replace(hour=clock.hour, minute=clock.minute, second=clock.second, microsecond=0)
        return (found if found > now else found + timedelta(days=1)).astimezone()
    try:
        found = datetime.fromisoformat(text).astimezone()  # the text may contain an offset
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a time such as 18:30 or 2026-11-27T18:30: '{text}'") from None
    if found <= now.astimezone():
        raise argparse.ArgumentTypeError(f"this time has passed: '{text}'")
    return found


def run(options: argparse.Namespace, out: Output) -> int:
    """Ask the coordinator; prints the path of the final checkpoint. 1: the job has ended, but that is not in the job
    directory, though it was to be copied there."""
    from ...ckpt import command

    where = naming.job(options.job)
    if options.cancel:
        command.go_on(where)
        out.data({"job": str(where.dir), "ends": None})
        out.line(f"{where.dir}: the job goes on")
        return 0
    with out.activity("stopping") as show:
        if options.next:
            last: command.CheckpointResult | None = command.stop_later(where, progress=show)
        elif options.before:
            at = options.before
            last = command.stop_later(where, before=at.timestamp(), moment=at.strftime("%F %T"), progress=show)
        else:
            last = command.stop(where, checkpoint=not options.no_checkpoint, progress=show)
    trouble = "" if last is None else last.remark
    out.data({"stopped": str(where.dir), "checkpoint": last and str(last.path), "remark": trouble})
    if last is not None:
        out.line(str(last.path))
    if trouble and not options.json:
        out.note(trouble)
    return 1 if trouble else 0
