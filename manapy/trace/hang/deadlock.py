"""Finds knots of the wait-for graph: ranks whose calls wait for each other, and the reason."""

from __future__ import annotations

from ..model import calls
from ..model.events import Flag, Op
from ..model.verdict import Cause, State, Verdict
from . import missing, unmatched
from .suspects import Suspects
from .timeouts import FLOOR
from .waitfor import Open, WaitCondition, described, inside
from .waiting import cycle_in


def find(search: Suspects) -> None:
    """Report the rank that has left out the call for which the others of a knot wait; or else the whole knot. Also
    report ranks that have gone on to Finalize without the call for which others wait."""
    for knot in search.graph.knots:
        if set(knot) & search.accused:
            continue
        opens = [search.graph.opened[r] for r in knot]
        since = max(call.since for call in opens)
        if search.trace.now - since < FLOOR and not search.over:
            continue
        guilty = [(rank, skip) for rank in knot if (skip := missing.skip_awaited(search, rank)) is not None]
        if len(guilty) == 1:
            rank, want = guilty[0]
            at = search.graph.opened[rank].call
            missing.report(
                search, rank, want, f", and went on to {calls.describe(search.trace, search.matching, at)}", 0.9
            )
            search.accused.update(knot)
            continue
        if crossed := unmatched.crossed(search, opens):
            search.accused.update(knot)
            search.found.append(crossed)
            continue
        if not _finalizing(search, knot):
            _deadlock(search, knot, opens)
    _finalizing_alone(search)


def _deadlock(search: Suspects, knot: tuple[int, ...], opens: list[Open]) -> None:
    """Add the verdict on a knot. A rank that polls may do something else as well, and so may a rank with a thread
    outside MPI. So a knot with such a rank is only late."""
    cycle = cycle_in(search.graph, knot)
    chain = "; ".join(_waits(search, r, want, p) for r, want, p in cycle[:6])
    more = f"; and {len(cycle) - 6} more" if len(cycle) > 6 else ""
    behind = {r for rank in knot for r in search.waiting.behind(rank)} - set(knot)
    evidence = [f"{search.name(call.rank)} {search.been(call)}" for call in opens[:8]]
    search.accused.update(knot)
    polling = [call.rank for call in opens if call.polling]
    blind = any(not want.known for call in opens for want in call.wants)
    working = [rank for rank in knot if search.works_elsewhere(rank)]
    unsure = bool(polling or blind or working)
    what = f"deadlock of {calls.named(knot)}" if len(knot) > 1 else f"rank {knot[0]} waits for itself"
    search.found.append(
        Verdict(
            State.LATE if unsure else State.HUNG,
            f"{'perhaps a ' if unsure else ''}{what}: {chain}{more}",
            Cause.DEADLOCK,
            call=described(search.trace, search.matching, search.graph.opened[cycle[0][0]], cycle[0][1].event),
            detail=" -> ".join(str(r) for r in [*(r for r, _, _ in cycle), cycle[0][0]]),
            since_ns=int(max(search.trace.events["enter"][call.call] for call in opens)),
            evidence=(
                *evidence,
                *((f"{calls.count(len(behind), 'more rank')} behind these",) if behind else ()),
                *search.ended(),
            ),
            confidence=0.5 if blind else 0.7 if unsure else 0.98,
            alternatives=(
                *(
                    ("a rank that tests may find something else to do, or end by itself what it tests for",)
                    * bool(polling)
                ),
                *(f"another thread of rank {rank} may make the call that is missing" for rank in working[:2]),
            ),
            action=f"look at what {calls.named(polling)} {'does' if len(polling) == 1 else 'do'} between two tests"
            if polling
            else f"look at what the other threads of {calls.named(working)} do"
            if working
            else "these calls can't all be right: change the order of one of them, or make it nonblocking",
        )
    )


def _waits(search: Suspects, rank: int, want: WaitCondition, peer: int) -> str:
    call = search.graph.opened[rank]
    what = inside(search.trace, search.matching, call, want.event)
    return f"rank {rank} {'is' if call.polling else 'waits'} {what}" + (
        "" if f"rank {peer}" in what or call.polling else f" for rank {peer}"
    )


def _finalizing(search: Suspects, knot: tuple[int, ...]) -> bool:
    """Accuse ranks of a knot that are in Finalize while others wait for another call of theirs."""
    found = False
    for rank in knot:
        if wanted := _wanted(search, rank):
            missing.report(search, rank, wanted[0][1], ", and went on to MPI_Finalize", 0.98)
            found = True
    if found:
        search.accused.update(knot)
    return found


def _wanted(search: Suspects, rank: int) -> list[tuple[Open, WaitCondition]]:
    """Return the calls that wait for another call of a rank that is in Finalize."""
    events = search.trace.events
    if rank not in search.graph.opened or events["op"][search.graph.opened[rank].call] != Op.FINALIZE:
        return []
    return [(call, want) for call, want in search.waiting.on(rank) if events["op"][call.call] != Op.FINALIZE]


def _finalizing_alone(search: Suspects) -> None:
    """Accuse ranks in Finalize outside of a knot. A rank that waits for another call of theirs waits for ever.
    Nonblocking operations are excluded, because their rank may have a thread outside MPI, which could cancel them."""
    for rank in sorted(search.graph.opened):
        wanted = [
            (call, want) for call, want in _wanted(search, rank) if not (call.any or want.any or _posted(search, want))
        ]
        if rank in search.accused or not wanted:
            continue
        since = max(wanted[0][0].since, search.graph.opened[rank].since)
        if search.trace.now - since < FLOOR and not search.over:
            continue
        if crossed := unmatched.crossed(search, (call for call, _ in wanted)):
            search.found.append(crossed)
            search.accused.add(rank)
        else:
            missing.report(search, rank, wanted[0][1], ", and went on to MPI_Finalize", 0.98)
        search.accused.update(call.rank for call, _ in wanted)


def _posted(search: Suspects, want: WaitCondition) -> bool:
    return bool(search.trace.events["flags"][want.event] & Flag.NONBLOCKING)
