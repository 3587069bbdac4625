"""Report why a job is stuck or slow: one sentence, then the evidence, other explanations, and what to do next.

The command reads what the job's ranks have recorded: of a running job, of a job that has ended, or in a folder of saved
trace files. With --watch it looks again until the job has ended. It prints new verdicts, and withdraws verdicts that no
longer hold. The exit code is then that of the most serious verdict that still holds.

exit code  state    meaning
        0  healthy  no rank is stuck, late or slow
        1  unknown  the recording does not allow a verdict, or nothing is recorded
        2           wrong usage
        3  late     others wait for a rank longer than ever before; it may go on: it works, or cannot be observed
        3  slow     a rank or a link makes the job slower
        4  hung     a rank is dead, stopped, or does nothing at all; calls do not match; a deadlock
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..shared import arguments
from ..shared.output import Output
from .diagnosis import EXITS, look, note, say

if TYPE_CHECKING:
    from ...trace.hang.network import Probe
    from ...trace.model.events import Trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "--json", action="store_true", help="print JSON; `unreachable` has the hosts that could not be reached, and why"
    )
    arguments.add_recording(parser)
    arguments.add_schedule(parser)
    parser.add_argument(
        "--waits",
        action="store_true",
        help=(
            "also print a table of how long each rank has waited, in which calls, and for which rank, and POP's "
            "parallel efficiency"
        ),
    )
    parser.add_argument(
        "--watch", action="store_true", help="look again until the job has ended or Ctrl-C, and print each new verdict"
    )
    parser.add_argument(
        "--every",
        metavar="TIME",
        type=arguments.seconds,
        default=1.0,
        help="with --watch: look every TIME (default 1s); while all ranks make progress, look for slow ones every 5s",
    )
    acts = "each verdict that has a confidence of 90 %% and that three looks in a row have found"
    env = "the variables MANAPY_VERDICT (JSON) and MANAPY_SENTENCE contain it"
    parser.add_argument(
        "--run",
        metavar="CMD",
        help=f"with --watch: run a shell command for {acts}; {env}. --patience applies, except to slow ranks and links",
    )
    parser.add_argument(
        "--run-limit",
        metavar="TIME",
        type=arguments.seconds,
        default=300.0,
        help="end the command of --run after TIME (default 5m)",
    )
    told = (
        "its exit code is 0 if the network between the hosts MANAPY_FROM and MANAPY_TO works, else 1:"
        " 'ssh $MANAPY_FROM ping -c 1 $MANAPY_TO'"
    )
    parser.add_argument(
        "--probe",
        metavar="CMD",
        type=_probe,
        help=f"a shell command that manapy runs before it names the network as the cause; {told}",
    )
    what = (
        "do this once a verdict says that the job is hung, with a confidence of 90 %%, in three looks in a row,"
        " and for --patience; then end"
    )
    parser.add_argument(
        "--on-hang", choices=("checkpoint", "kill"), help=f"with --watch: {what}. A late rank never causes this"
    )
    at_once = "(default 5m); does not apply to a dead or stopped rank and a proven deadlock"
    parser.add_argument(
        "--patience",
        metavar="TIME",
        type=arguments.seconds,
        default=300.0,
        help=f"how long a verdict must hold before --on-hang and --run act {at_once}",
    )


def run(options: argparse.Namespace, out: Output) -> int:
    """Find the recording, look at it, and print the verdicts."""
    from ...core.errors import UsageError

    if not options.watch and (options.run or options.on_hang):
        raise UsageError("--run and --on-hang need --watch")
    if options.watch and options.every <= 0:
        raise UsageError("--every must be more than 0")
    found = arguments.recording(options, out)
    if options.watch:
        from . import why_watch

        return why_watch.watch(found, options, out)
    trace, verdicts = look(found, options.schedule, probe=options.probe)
    note(trace, set(), out)
    if not options.waits:
        return EXITS[say(found, trace, verdicts, out)]
    from ...trace.model.efficiency import efficiency, sentence

    waits, efficient = _waits(trace), efficiency(trace)
    figures = {"efficiency": efficient.figures if efficient is not None else None}
    said = say(found, trace, verdicts, out, {"waits": waits} | figures)
    out.line("")
    columns = ("rank", "call", "calls", "time, ms", "waiting", "transfer", "mostly for")
    out.table(columns, [tuple("" if v is None else v for v in row.values()) for row in waits])
    out.line("")
    out.line(sentence(efficient))
    return EXITS[said]


def _probe(command: str) -> Probe:
    from ...trace.hang import network  # imports numpy: only when the option is used

    return network.by_command(command)


def _waits(trace: Trace) -> list[dict[str, Any]]:
    """The rows of the table of --waits; times in ms."""
    from ...trace.model import calls, match, waits

    found = waits.classify(trace, match.match(trace))
    return [
        {
            "rank": row.rank,
            "call": calls.name(row.op),
            "calls": row.calls,
            "time_ms": round(row.time / 1e6, 3),
            "wait_ms": round(row.wait / 1e6, 3),
            "transfer_ms": round(row.transfer / 1e6, 3),
            "mostly_for": row.culprit if row.wait else None,
        }
        for row in waits.table(trace, found)
    ]
