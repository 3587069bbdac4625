"""Why is the job stuck, or slow? One sentence, then the evidence, other explanations, and what to do next.

Looks at what its ranks have recorded: live, or after its end, or in a folder of saved trace files. With --watch it goes on looking until the job has ended, and says
what is new; then the exit code is that of the gravest thing it has said.

Exit codes: 0 healthy, 1 it can't be said, 2 wrong usage, 3 slow, 4 stuck.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import queue
import shlex
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _arguments
from ._leaving import Leaving
from ._output import Output, ago

if TYPE_CHECKING:
    from ..ckpt.job import Job
    from ..trace.events import Trace
    from ..trace.find import Found
    from ..trace.network import Probe
    from ..trace.runqueue import Sampler
    from ..trace.schedule import Schedule
    from ..trace.slow import Looks
    from ..trace.verdict import State, Verdict

PROBLEMS = 8  # lines, in one look
QUIET = 60.0  # seconds for which a verdict that comes and goes isn't said again
SAFE_SECONDS = 20.0  # a stuck job's checkpoint may wait so long for a moment at which all ranks can be saved
EXITS = {"healthy": 0, "unknown": 1, "slow": 3, "hung": 4}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("job", nargs="?", metavar="JOB", help="job directory or id, name of a recording, or folder of trace files (default: the only live job here)")
    parser.add_argument("--json", action="store_true", help="as data; in `unreachable` the hosts that could not be looked at, and why")
    _arguments.add_hosts(parser)
    _arguments.add_schedule(parser)
    parser.add_argument("--waits", action="store_true", help="also a table of what each rank has waited in which calls, and for whom")
    parser.add_argument("--watch", action="store_true", help="go on until the job has ended, or Ctrl-C; each new verdict is said")
    parser.add_argument("--every", metavar="TIME", type=_arguments.seconds, default=1.0, help="with --watch (default 1s); while every rank goes on, what is only slow is looked for each 5s")
    parser.add_argument("--run", metavar="CMD", help="with --watch: a shell command for each new verdict, which it finds in MANAPY_VERDICT (JSON) and MANAPY_SENTENCE; its end is waited for")
    told = "exit code 0 if it works between the hosts MANAPY_FROM and MANAPY_TO, 1 if it doesn't: 'ssh $MANAPY_FROM ping -c 1 $MANAPY_TO'"
    parser.add_argument("--probe", metavar="CMD", type=_probe, help=f"a shell command that is asked before the network is blamed: {told}")
    parser.add_argument("--on-hang", choices=("checkpoint", "kill"), help="with --watch: do that when the job is stuck, and end")


def run(options: argparse.Namespace, out: Output) -> int:
    """Find the recording, look, say."""
    from ..ckpt.errors import UsageError

    if not options.watch and (options.run or options.on_hang):
        raise UsageError("--run and --on-hang need --watch")
    if options.watch and options.every <= 0:
        raise UsageError("--every must be more than 0")
    found = _arguments.recording(options, out)
    if options.watch:
        return _watch(found, options, out)
    trace, verdicts = _look(found, options)
    _note(trace, set(), out)
    waits = _waits(trace) if options.waits else None
    said = _say(found, trace, verdicts, out, waits)
    if waits is not None:
        out.line("")
        out.table(("rank", "call", "calls", "time, ms", "waiting", "transfer", "mostly for"), [tuple("" if v is None else v for v in row.values()) for row in waits])
    return EXITS[said]


def _probe(command: str) -> Probe:
    from ..trace import network  # numpy: with the option only

    return network.by_command(command)


def _look(found: Found, options: argparse.Namespace, sampler: Sampler | None = None, watched: Looks | None = None) -> tuple[Trace, list[Verdict]]:
    """The recording and what it says."""
    from ..trace import rings

    trace = rings.read(found.folder, others=found.others)
    return trace, judge(found, trace, options.schedule, live=found.live, sampler=sampler, watched=watched, probe=options.probe)


def _problems(trace: Trace) -> list[str]:
    """What is wrong with the recording, one line each."""
    return list(dict.fromkeys([*trace.problems, *(problem for known in trace.ranks.values() for problem in known.problems)]))


def _note(trace: Trace, said: set[str], out: Output) -> None:
    """Say what is wrong with it, unless that was said already."""
    new = [problem for problem in _problems(trace) if problem not in said]
    said.update(new)
    for problem in new[:PROBLEMS]:
        out.note(problem)
    if len(new) > PROBLEMS:
        out.note(f"{len(new) - PROBLEMS} more like this: --json has all")


def judge(found: Found, trace: Trace, plan: Schedule | None, *, live: bool, sampler: Sampler | None = None, watched: Looks | None = None, probe: Probe | None = None) -> list[Verdict]:
    """What a recording says. A job that seems stuck may be held by a checkpoint: its coordinator is asked. live: look at its processes, too.
    sampler: what it has seen of them so far. watched: the job is looked at again and again, and these were the earlier looks: only what is worth an alarm is said
    of slow iterations. probe: of the network between hosts."""
    from ..ckpt import job
    from ..trace import alarms, slow
    from ..trace.diagnose import diagnose
    from ..trace.verdict import State

    failure = job.read(found.job.dir).record.get("first_failure") if found.job is not None else None
    slowness = functools.partial(alarms.verdicts, looks=watched) if watched is not None else slow.verdicts
    stack = found.others.stack if found.others else None
    verdicts = diagnose(trace, plan, live=live, died=failure["rank"] if failure else None, stack=stack, sampler=sampler, judge=slowness, probe=probe)
    if found.job is not None and any(verdict.state is State.HUNG for verdict in verdicts) and (parked := _parked(found)):
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


def _say(found: Found, trace: Trace, verdicts: list[Verdict], out: Output, waits: list[dict[str, Any]] | None = None) -> str:
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


def _watch(found: Found, options: argparse.Namespace, out: Output) -> int:
    from ..ckpt.errors import UsageError
    from ..trace.runqueue import Sampler

    if not found.live:
        raise UsageError(f"{found.folder} is a saved recording: there is nothing to watch")
    if options.on_hang == "checkpoint" and found.job is None:
        raise UsageError("--on-hang checkpoint: only a job under manapy-launch can be checkpointed")
    if found.others is not None:
        found.others.sample = True
    with Sampler() as sampler, Leaving() as leaving:
        return _watched(found, sampler, leaving, options, out)


def _watched(found: Found, sampler: Sampler, leaving: Leaving, options: argparse.Namespace, out: Output) -> int:
    from ..trace.alarms import WINDOW
    from ..trace.diagnose import state
    from ..trace.pulse import Pulse
    from ..trace.slow import Looks
    from ..trace.verdict import State

    worst = 0
    pulse = Pulse(found.folder)
    looks = Looks()
    noted: set[str] = set()
    said: dict[tuple[object, ...], float] = {}  # when it was last found
    began = time.monotonic()
    over = False
    while True:
        trace, verdicts = _look(found, options, sampler, looks)
        now, moment = state(verdicts), time.monotonic()
        worst = max(worst, EXITS[now.value]) if now is not State.UNKNOWN else worst
        faults = [verdict for verdict in verdicts if verdict.state in (State.HUNG, State.SLOW) and moment - said.get(_same(verdict), -QUIET) >= QUIET]
        said |= {_same(verdict): moment for verdict in verdicts}
        _note(trace, noted, out)
        if faults:
            _say(found, trace, faults, out)
            for verdict in faults:
                _command(options.run, verdict, out)
        if now is State.HUNG and options.on_hang and not over:
            return _act(options.on_hang, found, trace, verdicts, out)
        if over or leaving.asked:
            return worst or _nothing_found(found, trace, verdicts, f"{'the job has ended' if over else 'the job goes on'}; nothing was wrong with it in {ago(time.monotonic() - began)}", out)
        over = _over(found, trace)  # of what came after this look another one tells
        due = time.monotonic() + (WINDOW if found.others is None else 0.0)
        leaving.wait(0.0 if over else options.every)
        while not over and not leaving.asked and time.monotonic() < due and pulse.beats():  # nobody is stuck, and what is slow can wait
            leaving.wait(options.every)


def _nothing_found(found: Found, trace: Trace, verdicts: list[Verdict], text: str, out: Output) -> int:
    """The last words of a watch that has found no fault. Of a job that has ended without a word, that is no proof of its health."""
    from ..trace.diagnose import state
    from ..trace.verdict import State

    if state(verdicts) is State.UNKNOWN:
        return EXITS[_say(found, trace, verdicts, out)]
    out.line(text)
    return 0


def _same(verdict: Verdict) -> tuple[object, ...]:
    """What a verdict that was said already has in common with one that says it again."""
    return verdict.state, verdict.cause, verdict.rank, verdict.call, verdict.since_ns


def _over(found: Found, trace: Trace) -> bool:
    """Has the job ended, as far as can be seen from here?"""
    from ..trace import proc

    if all(known.ended for known in trace.ranks.values()):
        return True
    here, gone = proc.here(trace), found.others.gone() if found.others else frozenset()
    return gone.union(here) >= set(trace.ranks) and all(proc.look(trace.ranks[r].pid, trace.ranks[r].pid_start).state == proc.DEAD for r in here)


def _command(command: str | None, verdict: Verdict, out: Output) -> None:
    """Run the user's command on a verdict; that it fails is said, and no reason to stop watching."""
    import json

    from ..trace.diagnose import as_json

    if command is None:
        return
    env = {**os.environ, "MANAPY_VERDICT": json.dumps(as_json(verdict)), "MANAPY_SENTENCE": verdict.sentence}
    done = subprocess.run(command, shell=True, stdin=subprocess.DEVNULL, env=env)
    if done.returncode:
        out.note(f"{shlex.quote(command)} ended with {done.returncode}")


def _act(what: str, found: Found, trace: Trace, verdicts: list[Verdict], out: Output) -> int:
    """Save or end a job that is stuck. Raises JobError where it can't be saved."""
    from ..ckpt import command
    from ..ckpt.errors import JobError
    from ..trace import proc
    from ..trace.verdict import Cause

    if what == "checkpoint":
        assert found.job is not None
        if halted := [verdict for verdict in verdicts if verdict.cause in (Cause.DEAD, Cause.STOPPED)]:  # it would be waited for, for ever
            raise JobError(f"no checkpoint can be made: {halted[0].sentence}")
        out.line(f"checkpoint: {_saved(found.job, out)}")
        return EXITS["hung"]
    if found.job is not None:
        command.stop(found.job, checkpoint=False, progress=out.note)
    else:
        for rank in proc.here(trace):
            known = trace.ranks[rank]
            if known.pid_start and proc.look(known.pid, known.pid_start).state != proc.DEAD and _is_owners(known.pid, found.folder):
                os.kill(known.pid, signal.SIGKILL)
    out.line("the job was ended")
    return EXITS["hung"]


def _is_owners(pid: int, folder: Path) -> bool:
    """Does a process belong to whom the recording belongs to? Root must not kill what another user's file names."""
    try:
        return os.stat(f"/proc/{pid}").st_uid == folder.stat().st_uid
    except FileNotFoundError:
        return False


def _saved(job: Job, out: Output) -> Path:
    """A checkpoint of a stuck job. Raises JobError if there is no safe moment: where some ranks are in a collective, the others must come to it first, and that they don't
    may be just why the job is stuck. The coordinator goes on trying."""
    from ..ckpt import command
    from ..ckpt._flow import Phase
    from ..ckpt.errors import JobError, ManapyError

    answers: queue.SimpleQueue[Path | ManapyError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(command.checkpoint(job))
        except ManapyError as error:
            answers.put(error)

    threading.Thread(target=ask, daemon=True).start()
    since = time.monotonic()
    while True:
        with contextlib.suppress(queue.Empty):
            answer = answers.get(timeout=1.0)
            if isinstance(answer, ManapyError):
                raise answer
            return answer
        now = command.status(job)
        for text in now["waiting"][:1]:
            out.note(text)
        if now["phase"] not in (Phase.CHECK.value, Phase.CLOCK.value):
            since = time.monotonic()
        elif time.monotonic() - since > SAFE_SECONDS:
            raise JobError(f"no checkpoint can be made in {SAFE_SECONDS:.0f} s: {'; '.join(now['waiting'][:2]) or 'there is no safe moment'}")
