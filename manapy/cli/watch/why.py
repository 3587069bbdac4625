"""Why is the job stuck, or slow? One sentence, then the evidence, other explanations, and what to do next.

Looks at what its ranks have recorded: live, or after its end, or in a folder of saved trace files. With --watch it goes
on looking until the job has ended, says
what is new, and takes back what has turned out otherwise; then the exit code is that of the gravest thing that still
holds.

exit code  state    meaning
        0  healthy  nobody is stuck, late or slow
        1  unknown  it can't be told, or nothing is recorded
        2           wrong usage
        3  late     others wait for a rank longer than ever before; it computes, reads or writes, or can't be seen: it
        may go on
        3  slow     a rank or a link makes the job slower
        4  hung     a rank is dead, stopped, or does nothing at all; calls that can't belong together; a deadlock
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
    parser.add_argument("--json", action="store_true", help="as data; in `unreachable` the hosts that could not be looked at, and why")
    arguments.add_recording(parser)
    arguments.add_schedule(parser)
    parser.add_argument("--waits", action="store_true", help="also a table of what each rank has waited in which calls, and for whom")
    parser.add_argument("--watch", action="store_true", help="go on until the job has ended, or Ctrl-C; each new verdict is said")
    parser.add_argument("--every", metavar="TIME", type=arguments.seconds, default=1.0, help="with --watch (default 1s); while every rank goes on, what is only slow is looked for each 5s")
    acts = "each verdict that is sure (90 %%) and that three looks in a row have found"
    env = "which it finds in MANAPY_VERDICT (JSON) and MANAPY_SENTENCE"
    parser.add_argument(
        "--run",
        metavar="CMD",
        help=f"with --watch: a shell command for {acts}, {env}; --patience holds here, too, except for what is slow",
    )
    parser.add_argument(
        "--run-limit",
        metavar="TIME",
        type=arguments.seconds,
        default=300.0,
        help="the command is ended after so long (default 5m)",
    )
    told = "exit code 0 if it works between the hosts MANAPY_FROM and MANAPY_TO, 1 if it doesn't: 'ssh $MANAPY_FROM ping -c 1 $MANAPY_TO'"
    parser.add_argument("--probe", metavar="CMD", type=_probe, help=f"a shell command that is asked before the network is blamed: {told}")
    what = (
        "do that when the job is hung by a verdict that is sure (90 %%), that three looks in a row have found,"
        " and that has stood for --patience; then end"
    )
    parser.add_argument(
        "--on-hang", choices=("checkpoint", "kill"), help=f"with --watch: {what}. A rank that is late is never acted on"
    )
    at_once = "(default 5m); a dead or stopped rank and a proven deadlock need none"
    parser.add_argument(
        "--patience",
        metavar="TIME",
        type=arguments.seconds,
        default=300.0,
        help=f"for how long a verdict has to stand before --on-hang and --run {at_once}",
    )


def run(options: argparse.Namespace, out: Output) -> int:
    """Find the recording, look, say."""
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
    waits = _waits(trace) if options.waits else None
    said = say(found, trace, verdicts, out, waits)
    if waits is not None:
        out.line("")
        out.table(("rank", "call", "calls", "time, ms", "waiting", "transfer", "mostly for"), [tuple("" if v is None else v for v in row.values()) for row in waits])
    return EXITS[said]


def _probe(command: str) -> Probe:
    from ...trace.hang import network  # numpy: with the option only

    return network.by_command(command)


def _waits(trace: Trace) -> list[dict[str, Any]]:
    """The table of --waits: times in ms."""
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
