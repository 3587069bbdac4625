"""Reads a recording and prints the verdicts on it: for `manapy why`, its --watch, and `manapy trace top`."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..shared.output import Output

if TYPE_CHECKING:
    from ...trace.capture.locate import Found
    from ...trace.hang.network import Probe
    from ...trace.host.runqueue import Sampler
    from ...trace.live.diagnose import DiagnosisState
    from ...trace.model.events import Trace
    from ...trace.model.schedule import Schedule
    from ...trace.model.verdict import State, Verdict
    from ...trace.slow.slow import WatchState

PROBLEMS = 8  # lines, in one look
RESTARTED = 10_000_000_000  # ns after a restart in which the recordings of all ranks begin
EXITS = {"healthy": 0, "unknown": 1, "late": 3, "slow": 3, "hung": 4}


def look(
    found: Found,
    plan: Schedule | None,
    *,
    sampler: Sampler | None = None,
    watched: WatchState | None = None,
    probe: Probe | None = None,
    looked: DiagnosisState | None = None,
    take_stacks: bool = True,
) -> tuple[Trace, list[Verdict]]:
    """Read a recording. Returns it and the verdicts.

    A process that has ended since it was read may have finalized MPI before. So the recording is read again until no
    more processes have ended.
    """
    from ...ckpt.store import job
    from ...trace.capture import rings

    restarts = job.read(found.job.dir).record.get("generation", 0) if found.job is not None else 0
    gone: frozenset[int] = frozenset()
    while True:
        trace = _recorded(found, rings.read(found.folder, others=found.others), restarts)
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
            take_stacks=take_stacks,
        )
        if not found.live or _gone(found, trace) <= gone:
            return trace, verdicts


def _gone(found: Found, trace: Trace) -> frozenset[int]:
    """The ranks whose processes have ended and that have not finalized MPI in the part that was read."""
    from ...trace.host import process_state

    here = {
        rank
        for rank, seen in process_state.sight(trace).seen.items()
        if seen.state in (process_state.DEAD, process_state.ZOMBIE)
    }
    elsewhere = found.others.gone() if found.others is not None else frozenset()
    return frozenset(rank for rank in here | elsewhere if rank in trace.ranks and not trace.ranks[rank].ended)


def _problems(trace: Trace) -> list[str]:
    """The defects of the recording, one line each."""
    return list(
        dict.fromkeys([*trace.problems, *(problem for known in trace.ranks.values() for problem in known.problems)])
    )


def note(trace: Trace, said: set[str], out: Output) -> None:
    """Print the defects of a recording that were not printed before."""
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
    watched: WatchState | None = None,
    probe: Probe | None = None,
    looked: DiagnosisState | None = None,
    take_stacks: bool = True,
) -> list[Verdict]:
    """The verdicts on a recording.

    A job that seems stuck may be held by a checkpoint, so its coordinator is asked. live: look at its processes, too.
    sampler: what it has seen of the processes so far. watched: the earlier looks of a watch; of slow iterations only
    those worth an alarm are reported. probe: of the network between hosts. looked: earlier looks at the activity of
    ranks for which others wait. take_stacks: those of suspects, as evidence.
    """
    from ...ckpt.store import job
    from ...trace.live.diagnose import diagnose
    from ...trace.model.verdict import State
    from ...trace.slow import alarms, slow

    record = job.read(found.job.dir).record if found.job is not None else {}
    restarts = record.get("generation", 0)
    trace = _recorded(found, trace, restarts)
    if found.live and (unrecorded := _unrecorded(trace, restarts)):
        return [unrecorded]
    failure = record.get("first_failure")
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
        take_stacks=take_stacks,
    )
    if (
        found.job is not None
        and any(verdict.state in (State.HUNG, State.LATE) for verdict in verdicts)
        and (parked := _parked(found))
    ):
        verdicts = diagnose(trace, plan, parked=parked)
    return verdicts


def _recorded(found: Found, trace: Trace, restarts: int) -> Trace:
    """The trace without ranks that have recorded nothing since the last restart, if that was a while ago and other
    ranks have. Their files are of before: nothing is known of these ranks now. One line in ``problems`` names them."""
    import numpy as np

    from ...trace.model.calls import named

    newer = trace.events["generation"] >= restarts
    old = [rank for rank, known in trace.ranks.items() if known.generation < restarts]
    if not found.live or not old or not newer.any():
        return trace
    if trace.now - int(trace.events["enter"][newer].min()) < RESTARTED:
        return trace
    whose = f"{named(old)} {'is' if len(old) == 1 else 'are'} not recorded since the restart"
    return replace(
        trace,
        events=trace.events[~np.isin(trace.events["rank"], old)],
        rdma=trace.rdma[~np.isin(trace.rdma["rank"], old)],
        ranks={rank: known for rank, known in trace.ranks.items() if rank not in old},
        problems=[*trace.problems, f"{whose}: see the job's output"],
    )


def _unrecorded(trace: Trace, restarts: int) -> Verdict | None:
    """The verdict on a job that was restarted, if some ranks have recordings of before the restart only: on this host,
    for example, and they are on another one now."""
    from ...trace.model.verdict import State, Verdict
    from ...trace.report.markup import plural

    old = [rank for rank, known in trace.ranks.items() if known.generation < restarts]
    if not old:
        return None
    return Verdict(
        State.UNKNOWN,
        f"the job was restarted, and of {plural(len(old), 'rank')} nothing that came later was found",
        confidence=0.0,
        action="look again",
    )


def _parked(found: Found) -> frozenset[int]:
    """The ranks that a checkpoint holds, by the coordinator's status."""
    from ...ckpt import command
    from ...core.errors import JobError

    assert found.job is not None
    try:
        status = command.status(found.job)
    except JobError:
        return frozenset()
    return frozenset(rank["rank"] for rank in status["ranks"] if rank["state"] == "stopped")


def say(found: Found, trace: Trace, verdicts: list[Verdict], out: Output, more: dict[str, Any] | None = None) -> str:
    """Print the verdicts; with --json, also `more`. Returns the job's state."""
    from ...trace.live.diagnose import state
    from ...trace.model.verdict import lines

    now = state(verdicts)
    out.data(_data(found, trace, now, verdicts) | (more or {}))
    for i, verdict in enumerate(verdicts):
        if i:
            out.line("")
        for line in lines(verdict):
            out.line(line)
    return now.value


def _data(found: Found, trace: Trace, now: State, verdicts: list[Verdict]) -> dict[str, Any]:
    from ...trace.live.diagnose import as_json

    return {
        "recording": str(found.folder),
        "job": str(found.job.dir) if found.job else None,
        "unreachable": found.others.lost if found.others else {},
        "problems": _problems(trace),
        "state": now.value,
        "verdicts": [as_json(verdict) for verdict in verdicts],
    }
