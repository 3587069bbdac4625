"""Finds ranks outside MPI for which others wait: late, hung, starved, or ended."""

from __future__ import annotations

from ...core.units import span
from ..host import activity
from ..model import calls
from ..model.stages import REDUCING
from ..model.verdict import Cause, Phase, State, Verdict
from . import missing, unmatched
from .suspects import Suspects
from .timeouts import FIRST, FLOOR
from .waitfor import Open, WaitCondition

STILL = 60.0  # seconds; a rank that does nothing for so long is surely hung, even if its usual time is unknown
STARVING = 0.9  # a rank without a processor for this share of its time is held up by that alone


def find(search: Suspects) -> None:
    """Accuse ranks that others wait for, that wait for no rank themselves, and that are in no call."""
    for rank in sorted(search.waiting.ranks()):
        if (
            rank in search.accused
            or rank in search.dead
            or rank in search.stopped
            or rank not in search.graph.free
            or rank in search.graph.opened
        ):
            continue
        direct = search.waiting.on(rank)
        if all(call.any and not call.polling or want.any for call, want in direct):
            others = {r for call, want in direct for r in want.ranks} - {rank}
            others -= search.graph.deadlocked | search.accused
            if all(want.known for call, _ in direct for want in call.wants):
                others -= search.waiting.behind(rank)  # they wait for this one, like those who wait for any of them
            if others:
                continue  # any of several ranks would suffice; this is one of them
        call, want = direct[0]
        known = search.trace.ranks.get(rank)
        if known is None:
            search.unproven.append(f"rank {call.rank} waits for rank {rank}, which has no trace")
            continue
        if known.paused:
            search.doubt(call, want, f", perhaps for {search.unrecorded(rank)}")
            continue
        if known.ended and (search.trace.now - call.since > FLOOR or search.over):
            if crossed := unmatched.crossed(
                search, (waiter for waiter, _ in direct if waiter.rank not in search.accused)
            ):
                search.found.append(crossed)
                search.accused.add(rank)
                continue
            missing.report(search, rank, want, ", and has finalized MPI", 0.98)
            continue
        if search.over:
            continue  # the remaining time is unknown
        if rank in search.graph.last:
            search.expected.awaited(search.graph.last[rank])
        if search.idle(rank) <= FLOOR:
            continue  # no limit is below this, and finding the limit takes time
        typical, limit = search.outside(rank)
        if search.idle(rank) <= limit:
            continue
        waited = search.starved([rank], search.trace.now - search.idle(rank))
        if search.idle(rank) - waited <= limit and search.doing(rank) != activity.NOTHING:
            _starving(search, rank, waited, call, want)
            continue
        late = search.doing(rank) != activity.NOTHING
        skip = missing.skip_awaited(search, rank)
        if skip is not None:
            missing.report(search, rank, skip, ", and went on", 0.95, late)
            continue
        _awaited(search, rank, call, want, typical, late)


def _awaited(search: Suspects, rank: int, call: Open, want: WaitCondition, typical: int, late: bool) -> None:
    """Add the verdict on a rank that is outside MPI for longer than expected."""
    known, said, detail = search.trace.ranks[rank], *search.process(rank)
    needed, behind, idle = search.needed(want, rank), search.waiting.behind(rank), span(search.idle(rank))
    lacks = f"it never called {needed}" if not late else f"it has not called {needed} yet"
    if not want.ranks:
        lacks = f"it has posted {needed}, but makes no call in which it could progress"
    others = (
        ()
        if typical
        else (f"it computes for longer than anything seen so far, and {calls.count(len(behind), 'rank')} for it",)
    )
    if late and not said:
        others = (*others, "it may be stuck: what its process does can't be seen from here")
    sure = typical or known.still_s >= STILL
    search.add(
        rank,
        Cause.COMPUTE,
        f"{search.stuck(rank, how='late' if late else 'stuck')}"
        f"{'' if search.where(rank) else f', outside MPI for {idle}'}: {lacks}" + (f"; {said}" if said else ""),
        state=State.LATE if late else State.HUNG,
        peer=call.rank,
        call=needed if want.known else "",
        detail=detail,
        since_ns=search.last_active(rank),
        evidence=tuple([*search.facts(rank), *search.victims(rank)]),
        alternatives=(*_threads(search, rank), *_between(search, rank), *others),
        confidence=0.7 if detail == "starved" else 0.95 if sure else 0.6,
        action=search.look_at(rank),
    )


def _threads(search: Suspects, rank: int) -> tuple[str, ...]:
    """Return alternatives: the rank may wait for another thread of its own, which waits for a rank."""
    return tuple(
        f"it may wait for its thread {int(search.trace.events['thread'][call.call])} (a barrier of threads, a lock),"
        f" which {search.been(call)}"
        for call in search.graph.calls
        if call.rank == rank and any(True for _ in call.awaited())
    )[:2]


def _starving(search: Suspects, rank: int, waited: int, call: Open, want: WaitCondition) -> None:
    """Add the verdict on a rank that would go on if it had a processor.

    This is claimed only if it had almost no processor for long, and all of that time was sampled. Otherwise it is
    unknown which of its threads had no processor.
    """
    since = search.trace.now - search.idle(rank)
    if waited < max(FIRST, STARVING * search.idle(rank)) or search.delays.waited(rank, since, search.trace.now) is None:
        if search.trace.now - call.since > FIRST:
            _undecided(search, rank, waited, call, want)
        return
    known = search.trace.ranks[rank]
    search.add(
        rank,
        Cause.STARVED,
        f"{search.stuck(rank, how='late')}: its process is ready to run, and has had no processor for {span(waited)}"
        f" of the last {span(search.idle(rank))}",
        state=State.LATE,
        since_ns=search.last_active(rank),
        evidence=tuple([*search.facts(rank), *search.victims(rank)]),
        confidence=0.9,
        action=f"see what else runs on the processors of process {known.pid} (taskset -p {known.pid}; top;"
        " the cpu.max of its cgroup)",
    )


def _undecided(search: Suspects, rank: int, waited: int, call: Open, want: WaitCondition) -> None:
    """Add the verdict UNKNOWN on a rank that may have had no processor."""
    search.accused.add(rank)
    what = f" ({search.needed(want, rank)})" if want.known else ""
    search.undecided.append(
        Verdict(
            State.UNKNOWN,
            f"it is unknown whether {search.name(rank)} is stuck: rank {call.rank} has waited"
            f" {span(search.trace.now - call.since)} for it{what}, but it may have had no"
            f" processor for {span(waited)} of the last {span(search.idle(rank))}",
            peer=rank,
            confidence=0.0,
            evidence=tuple([*search.facts(rank), *search.victims(rank)]),
            action="look again; `manapy why --watch` observes which ranks have a processor",
        )
    )


def _between(search: Suspects, rank: int) -> tuple[str, ...]:
    """Return an alternative if the rank is between two iterations: no call separates the optimizer from the first
    forward pass."""
    at = search.graph.last.get(rank)
    if (
        search.labels is None
        or at is None
        or search.labels.item[at] != REDUCING
        or search.place(rank)["phase"] is not Phase.FORWARD
    ):
        return ()
    return (f"still in the optimizer of iteration {search.labels.iteration[at]}, or waiting for data",)
