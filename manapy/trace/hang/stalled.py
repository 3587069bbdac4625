"""Finds transfers that do not end although all participants have made their calls.

Time alone makes such a transfer late, because the network may be slow or the message large. It is hung if RDMA work
requests that do not complete, or a probe that does not return, prove it.
"""

from __future__ import annotations

import numpy as np

from ...core.units import span
from ..model import calls
from ..model.events import Op
from ..model.verdict import Cause, Phase, State, Verdict
from . import network, unmatched
from .network import Probe
from .suspects import Suspects
from .timeouts import FIRST
from .waitfor import Open, WaitCondition


def find(search: Suspects, mismatched: set[int], probe: Probe | None) -> None:
    """Add verdicts on calls that have all they need and do not end. In a job that is over, such calls prove nothing.
    mismatched: instances of collectives that mismatch.find has reported."""
    if search.over:
        return
    m, events = search.matching, search.trace.events
    seen, creating = set(), set()
    for call in sorted(search.graph.calls, key=lambda one: one.rank):
        rank = call.rank
        if rank in search.dead or rank in search.stopped:
            continue
        # The records of a Waitall end together. While it waits for a rank, it is unknown which of its transfers have
        # ended.
        waits = any(want.ranks or want.unproven for want in call.wants)
        for want in call.wants:
            post = search.posted_by(want.event)
            instance = int(m.collectives.of[post])
            if want.unproven:
                search.doubt(
                    call, want, f", perhaps for {' and '.join(search.unrecorded(r) for r in want.unproven[:3])}"
                )
                continue
            if not want.known:
                if search.unposted(want.event):
                    search.doubt(call, want, "; what for was begun while its recording was paused")
                elif not waits:
                    _unrecorded(search, call, want)
                continue
            if waits or instance in mismatched or call.any:
                continue
            if m.op[want.event] == Op.COMM_CREATE:  # _accept, _connect and _spawn may wait for another job
                if instance not in creating:
                    _unrecorded(search, call, want, " (another job, if it is MPI_Comm_accept, _connect or _spawn)")
                creating.add(instance)
                continue
            partners = search.partners(want.event)
            if any(r in search.accused or search.waiting.has(r, call) for r in partners if r != rank):
                continue
            if doubtful := [r for r in partners if r != rank and search.hidden(want.event, r)]:
                search.doubt(call, want, f", perhaps for {search.unrecorded(doubtful[0])}")
                continue
            if instance < 0 and m.partner[post] >= 0 and not m.sure[post]:
                search.doubt(call, want, "; records that could tell why are lost")
                continue
            key = (
                ("collective", instance)
                if instance >= 0
                else ("message", *sorted((rank, partners[0] if partners else -1)))
            )
            if key in seen:
                continue
            arrival = (
                int(events["enter"][m.collectives.last[instance]])
                if instance >= 0
                else max(call.since, _posted(search, post))
            )
            typical, limit = search.expected.transfer(post)
            members = tuple(sorted({*partners, rank}))
            if search.trace.now - arrival <= limit:
                continue
            if search.trace.now - arrival - (waited := search.starved(members, arrival)) <= limit:
                search.doubt(
                    call, want, f"; {calls.named(members)} had perhaps no processor for up to {span(waited)} of that"
                )
                continue
            seen.add(key)
            if m.op[want.event] == Op.FINALIZE and unmatched.left_over(search, call):
                continue
            if not search.trace.timed:
                all_have = (
                    f"; all {len(members)} ranks have posted it: the network, or work before it on a GPU, is slow"
                )
                search.doubt(call, want, f"{all_have} or stuck")
                continue
            _network(search, call, want, members, arrival, typical, probe)


def _posted(search: Suspects, post: int) -> int:
    """Return when the partner of a message's post was posted, ns; 0: it is not known."""
    partner = int(search.matching.partner[post])
    return int(search.trace.events["enter"][partner]) if partner >= 0 else 0


def _began(search: Suspects, call: Open, want: WaitCondition, members: tuple[int, ...]) -> int:
    """Return when the first of the members began the transfer, ns."""
    events = search.trace.events
    parts = np.concatenate([search.parts(want.event, rank) for rank in members])
    own = int(events["enter"][search.posted_by(want.event)])
    return int(min(events["enter"][parts].min(initial=call.since), own))


def _unrecorded(search: Suspects, call: Open, want: WaitCondition, perhaps: str = "") -> None:
    """Add the verdict on a call whose end depends on something that is not recorded. It is late by time alone, if
    others wait for it."""
    long, why = search.trace.now - call.since, f"what that waits for is not recorded{perhaps}"
    if not search.waiting.on(call.rank):
        search.doubt(call, want, f"; {why}")
    if long <= FIRST or not search.waiting.on(call.rank):
        return
    what = calls.describe(search.trace, search.matching, want.event)
    search.add(
        call.rank,
        Cause.NONE,
        f"{search.stuck(call.rank, how='late')}: it has been in {what} for {span(long)}; {why}",
        state=State.LATE,
        call=what,
        since_ns=call.since,
        evidence=tuple(search.victims(call.rank)),
        alternatives=("it may be stuck there",),
        confidence=0.5,
        action=search.look_at(call.rank) if call.rank in search.trace.ranks else "",
    )


def _network(
    search: Suspects,
    call: Open,
    want: WaitCondition,
    members: tuple[int, ...],
    arrival: int,
    typical: int,
    probe: Probe | None,
) -> None:
    """Add the verdict on a transfer that takes too long."""
    what = calls.describe(search.trace, search.matching, want.event)
    rdma = network.in_flight(search.trace, members, _began(search, call, want, members))
    # The place is that of the message, because a sender has gone on to the Wait for it.
    partner = int(search.matching.partner[search.posted_by(want.event)])
    place = {**search.place(call.rank, partner if partner >= 0 else None), "phase": Phase.TRANSFER}
    usual = f" (usually {span(typical)})" if typical else ""
    everybody = f"all {len(members)} ranks have entered" if len(members) > 2 else "both sides have made their calls"
    collective = len(members) > 2
    lasts = f"{what} of rank {call.rank} hasn't ended in {span(search.trace.now - arrival)}{usual}"
    works, broken = network.probed(search.trace, probe, call.rank, members) if probe is not None else ([], [])
    proven = bool(rdma or broken)
    if not proven and Op.WIN_FENCE <= search.matching.op[want.event] <= Op.WIN_FLUSH:
        search.doubt(call, want, "; how much the operations on the window move is not recorded")
        return
    elsewhere = bool(works) and not proven
    others = [r for r in members if r != call.rank]
    search.found.append(
        Verdict(
            State.HUNG if proven else State.LATE,
            f"{lasts}, though {everybody} and probes find the network working"
            if elsewhere
            else f"the network {'between' if len(members) > 1 else 'of'} {calls.named(members)} is"
            f" {'stuck' if proven else 'slow or stuck'}: {everybody}, and {lasts}",
            Cause.NONE if elsewhere else Cause.NETWORK,
            rank=call.rank,
            peer=None if collective or not others else others[0],
            **place,  # type: ignore[arg-type]
            call=what,
            since_ns=arrival,
            evidence=(f"last arrival {span(search.trace.now - arrival)} ago", *rdma, *broken, *works),
            alternatives=(
                "a fault inside of the MPI library",
                *(("a fault of the network that probes don't meet",) if elsewhere else ()),
            ),
            confidence=0.5 if elsewhere else 0.98 if broken else 0.9 if rdma else 0.75,
            action="check links and switches between these hosts (`manapy rdma status`, ping);"
            " stacks of these ranks, if they are on one host",
        )
    )
