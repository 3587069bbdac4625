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
import functools
from typing import TYPE_CHECKING, Any

from . import _arguments
from ._output import Output

if TYPE_CHECKING:
    from ..trace.diagnose import Looked
    from ..trace.events import Trace
    from ..trace.find import Found
    from ..trace.network import Probe
    from ..trace.runqueue import Sampler
    from ..trace.schedule import Schedule
    from ..trace.slow import Looks
    from ..trace.verdict import State, Verdict

PROBLEMS = 8  # lines, in one look
EXITS = {"healthy": 0, "unknown": 1, "late": 3, "slow": 3, "hung": 4}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("job", nargs="?", metavar="JOB", help="job directory or id, name of a recording, or folder of trace files (default: the only live job here)")
    parser.add_argument("--json", action="store_true", help="as data; in `unreachable` the hosts that could not be looked at, and why")
    _arguments.add_hosts(parser)
    _arguments.add_schedule(parser)
    parser.add_argument("--waits", action="store_true", help="also a table of what each rank has waited in which calls, and for whom")
    parser.add_argument("--watch", action="store_true", help="go on until the job has ended, or Ctrl-C; each new verdict is said")
    parser.add_argument("--every", metavar="TIME", type=_arguments.seconds, default=1.0, help="with --watch (default 1s); while every rank goes on, what is only slow is looked for each 5s")
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
        type=_arguments.seconds,
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
        type=_arguments.seconds,
        default=300.0,
        help=f"for how long a verdict has to stand before --on-hang and --run {at_once}",
    )


def run(options: argparse.Namespace, out: Output) -> int:
    """Find the recording, look, say."""
    from ..ckpt.errors import UsageError

    if not options.watch and (options.run or options.on_hang):
        raise UsageError("--run and --on-hang need --watch")
    if options.watch and options.every <= 0:
        raise UsageError("--every must be more than 0")
    found = _arguments.recording(options, out)
    if options.watch:
        from . import _why_watch

        return _why_watch.watch(found, options, out)
    trace, verdicts = look(found, options.schedule, probe=options.probe)
    note(trace, set(), out)
    waits = _waits(trace) if options.waits else None
    said = say(found, trace, verdicts, out, waits)
    if waits is not None:
        out.line("")
        out.table(("rank", "call", "calls", "time, ms", "waiting", "transfer", "mostly for"), [tuple("" if v is None else v for v in row.values()) for row in waits])
    return EXITS[said]


def _probe(command: str) -> Probe:
    from ..trace import network  # numpy: with the option only

    return network.by_command(command)


def look(
    found: Found,
    plan: Schedule | None,
    *,
    sampler: Sampler | None = None,
    watched: Looks | None = None,
    probe: Probe | None = None,
    looked: Looked | None = None,
) -> tuple[Trace, list[Verdict]]:
    """The recording and what it says. A process that has ended since it was read may have finalized MPI before: then it
    is read again, until no more have ended."""
    from ..trace import rings

    gone: frozenset[int] = frozenset()
    while True:
        trace = rings.read(found.folder, others=found.others)
        if found.live and not (now := _gone(found, trace)) <= gone:
            gone |= now
            continue
        verdicts = judge(
            found,
            trace,
            plan,
            live=found.live,
            sampler=sampler,
            watched=watched,
            probe=probe,
            looked=looked,
        )
        if not found.live or _gone(found, trace) <= gone:
            return trace, verdicts


def _gone(found: Found, trace: Trace) -> frozenset[int]:
    """Ranks that have not finalized MPI, as far as was read, and whose processes have ended."""
    from ..trace import proc

    here = {rank for rank, seen in proc.sight(trace).seen.items() if seen.state in (proc.DEAD, proc.ZOMBIE)}
    elsewhere = found.others.gone() if found.others is not None else frozenset()
    return frozenset(rank for rank in here | elsewhere if rank in trace.ranks and not trace.ranks[rank].ended)


def _problems(trace: Trace) -> list[str]:
    """What is wrong with the recording, one line each."""
    return list(dict.fromkeys([*trace.problems, *(problem for known in trace.ranks.values() for problem in known.problems)]))


def note(trace: Trace, said: set[str], out: Output) -> None:
    """Say what is wrong with it, unless that was said already."""
    new = [problem for problem in _problems(trace) if problem not in said]
    said.update(new)
    for problem in new[:PROBLEMS]:
        out.note(problem)
    if len(new) > PROBLEMS:
        out.note(f"{len(new) - PROBLEMS} more like this: --json has all")


def judge(
    found: Found,
    trace: Trace,
    plan: Schedule | None,
    *,
    live: bool,
    sampler: Sampler | None = None,
    watched: Looks | None = None,
    probe: Probe | None = None,
    looked: Looked | None = None,
) -> list[Verdict]:
    """What a recording says. A job that seems stuck may be held by a checkpoint: its coordinator is asked. live: look at its processes, too.
    sampler: what it has seen of them so far. watched: the job is looked at again and again, and these were the earlier looks: only what is worth an alarm is said
    of slow iterations. probe: of the network between hosts. looked: earlier looks, too: at what ranks do that others
    wait for."""
    from ..ckpt import job
    from ..trace import alarms, slow
    from ..trace.diagnose import diagnose
    from ..trace.verdict import State

    failure = job.read(found.job.dir).record.get("first_failure") if found.job is not None else None
    slowness = functools.partial(alarms.verdicts, looks=watched) if watched is not None else slow.verdicts
    died = failure["rank"] if failure else None
    verdicts = diagnose(
        trace,
        plan,
        live=live,
        died=died,
        others=found.others,
        sampler=sampler,
        judge=slowness,
        probe=probe,
        looked=looked,
    )
    if (
        found.job is not None
        and any(verdict.state in (State.HUNG, State.LATE) for verdict in verdicts)
        and (parked := _parked(found))
    ):
        verdicts = diagnose(trace, plan, parked=parked)
    return verdicts


def _parked(found: Found) -> frozenset[int]:
    """Ranks that a checkpoint holds, as the coordinator says."""
    from ..ckpt import command
    from ..ckpt.errors import JobError

    assert found.job is not None
    try:
        status = command.status(found.job)
    except JobError:
        return frozenset()
    return frozenset(rank["rank"] for rank in status["ranks"] if rank["state"] == "stopped")


def _waits(trace: Trace) -> list[dict[str, Any]]:
    """The table of --waits: times in ms."""
    from ..trace import calls, match, waits

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


def say(
    found: Found, trace: Trace, verdicts: list[Verdict], out: Output, waits: list[dict[str, Any]] | None = None
) -> str:
    """Print all of it; returns the job's state."""
    from ..trace.diagnose import state
    from ..trace.verdict import lines

    now = state(verdicts)
    out.data(_data(found, trace, now, verdicts) | ({"waits": waits} if waits is not None else {}))
    for i, verdict in enumerate(verdicts):
        if i:
            out.line("")
        for line in lines(verdict):
            out.line(line)
    return now.value


def _data(found: Found, trace: Trace, now: State, verdicts: list[Verdict]) -> dict[str, Any]:
    from ..trace.diagnose import as_json

    return {
        "recording": str(found.folder),
        "job": str(found.job.dir) if found.job else None,
        "unreachable": found.others.lost if found.others else {},
        "problems": _problems(trace),
        "state": now.value,
        "verdicts": [as_json(verdict) for verdict in verdicts],
    }
