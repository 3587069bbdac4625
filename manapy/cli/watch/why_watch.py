"""`manapy why --watch`: looks repeatedly, prints new verdicts, withdraws verdicts that no longer hold, and acts on
verdicts that have stood for long enough (standing.py).
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.units import ago
from ..shared.leaving import Leaving
from ..shared.output import Output
from .diagnosis import EXITS, note, say
from .looks import looks

if TYPE_CHECKING:
    from ...trace.capture.locate import Found
    from ...trace.host.runqueue import Sampler
    from ...trace.live.standing import WatchUpdate
    from ...trace.model.events import Trace
    from ...trace.model.verdict import Verdict


def watch(found: Found, options: argparse.Namespace, out: Output) -> int:
    """Watch until the job has ended, Ctrl-C, or --on-hang has acted. Returns the exit code."""
    from ...core.errors import UsageError
    from ...trace.host.runqueue import Sampler

    if not found.live:
        raise UsageError(f"{found.folder} is a saved recording: there is nothing to watch")
    if options.on_hang == "checkpoint" and found.job is None:
        raise UsageError("--on-hang checkpoint: only a job under manapy-launch can be checkpointed")
    if found.others is not None:
        found.others.sample = True
    with Sampler() as sampler, Leaving() as leaving:
        return _watched(found, sampler, leaving, options, out)


def _watched(found: Found, sampler: Sampler, leaving: Leaving, options: argparse.Namespace, out: Output) -> int:
    from ...trace.live.standing import StandingVerdicts
    from ...trace.model.verdict import State

    standing = StandingVerdicts(options.patience)
    noted: set[str] = set()
    began = time.monotonic()
    seen = None
    for seen in looks(found, sampler, leaving, standing, options.every, options.schedule, options.probe):
        note(seen.trace, noted, out)
        if seen.news.new:
            say(found, seen.trace, list(seen.news.new), out)
        _take_back(seen.news, seen.over, out)
        for verdict in seen.news.act:
            _command(options.run, options.run_limit, verdict, out)
        if options.on_hang and not seen.over and any(verdict.state is State.HUNG for verdict in seen.news.act):
            return _act(options.on_hang, found, seen.trace, seen.verdicts, out)
    assert seen is not None
    if standing.worst is not State.HEALTHY:
        return EXITS[standing.worst.value]
    how = "the job has ended" if seen.over else "the job goes on"
    text = f"{how}; nothing was wrong with it in {ago(time.monotonic() - began)}"
    return _nothing_found(found, seen.trace, seen.verdicts, text, out)


def _take_back(news: WatchUpdate, over: bool, out: Output) -> None:
    """Print verdicts that no longer hold."""
    from ...trace.live.diagnose import as_json
    from ...trace.live.standing import taken_back

    if news.back:
        out.data({"taken_back": [as_json(verdict) for verdict, _ in news.back]})
    for verdict, stood in news.back:
        out.line(taken_back(verdict, stood, over))


def _nothing_found(found: Found, trace: Trace, verdicts: list[Verdict], text: str, out: Output) -> int:
    """The last output of a watch that has found no fault.

    If the job's end was not recorded, the job may not have been healthy.
    """
    from ...trace.live.diagnose import state
    from ...trace.model.verdict import State

    if state(verdicts) is State.UNKNOWN:
        return EXITS[say(found, trace, verdicts, out)]
    out.line(text)
    return 0


def _command(command: str | None, limit: float, verdict: Verdict, out: Output) -> None:
    """Run the user's command on a verdict. If it fails or takes too long, print that and go on watching."""
    import json

    from ...trace.live.diagnose import as_json

    if command is None:
        return
    env = {**os.environ, "MANAPY_VERDICT": json.dumps(as_json(verdict)), "MANAPY_SENTENCE": verdict.sentence}
    with subprocess.Popen(command, shell=True, stdin=subprocess.DEVNULL, env=env, start_new_session=True) as process:
        try:
            if code := process.wait(limit):
                out.note(f"{shlex.quote(command)} ended with {code}")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out.note(f"{shlex.quote(command)} was ended: it took longer than {ago(limit)} (--run-limit)")
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def _act(what: str, found: Found, trace: Trace, verdicts: list[Verdict], out: Output) -> int:
    """Save or end a job that is stuck. Raises JobError if it cannot be saved."""
    from ...ckpt import command
    from ...core.errors import JobError
    from ...trace.host import process_state
    from ...trace.model.verdict import Cause

    if what == "checkpoint":
        assert found.job is not None
        if halted := [
            verdict for verdict in verdicts if verdict.cause in (Cause.DEAD, Cause.STOPPED)
        ]:  # a checkpoint would wait for it for ever
            raise JobError(f"no checkpoint can be made: {halted[0].sentence}")
        out.line(f"checkpoint: {command.checkpoint_stuck(found.job, progress=out.note)}")
        return EXITS["hung"]
    if found.job is not None:
        command.stop(found.job, checkpoint=False, progress=out.note)
    else:
        for rank in process_state.here(trace):
            known = trace.ranks[rank]
            if (
                known.pid_start
                and process_state.look(known.pid, known.pid_start).state != process_state.DEAD
                and _is_owners(known.pid, found.folder)
            ):
                os.kill(known.pid, signal.SIGKILL)
    out.line("the job was ended")
    return EXITS["hung"]


def _is_owners(pid: int, folder: Path) -> bool:
    """Does a process belong to the recording's owner? Root must not kill a process because another user's file names
    it."""
    try:
        return os.stat(f"/proc/{pid}").st_uid == folder.stat().st_uid
    except FileNotFoundError:
        return False
