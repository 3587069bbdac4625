"""Finds messages that no rank receives, and their relation to a waiting receive or to Finalize."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..model import calls
from ..model.events import Flag
from ..model.match import IS_RECEIVE, IS_SEND
from ..model.verdict import Cause, State, Verdict
from .suspects import Suspects
from .waitfor import Open, WaitCondition, inside


def crossed(search: Suspects, waiting: Iterable[Open]) -> Verdict | None:
    """Return the verdict on a receive that waits for ever although a message for it has arrived: with another tag, on
    another communicator, or from another source. waiting: calls that wait for ever. None: there is no such receive."""
    m = search.matching
    for call in waiting:
        for want in call.wants:
            post = search.posted_by(want.event)
            peer = int(m.peer[post])
            if not IS_RECEIVE[m.op[post]] or peer < 0 or peer not in want.ranks:
                continue
            if (sent := _unreceived(search, post)) is not None:
                return _disagree(search, call, peer, want, post, sent)
    return None


def _unreceived(search: Suspects, post: int) -> int | None:
    """Return the message that was most probably meant for a receive, or None. It was sent to the receive's rank, and no
    rank receives it. It comes from the receive's source, or it has the receive's tag and communicator and comes from
    another source. If the source has ended, its own message is missing. Then a message of another rank is not
    considered, because it may be meant for the next receive."""
    m, events = search.matching, search.trace.events
    rank, peer = int(events["rank"][post]), int(m.peer[post])
    sends = np.flatnonzero(
        IS_SEND[m.op] & (m.peer == rank) & (m.partner < 0) & m.sure & (events["flags"] & Flag.FAILED == 0)
    )
    theirs = sends[events["rank"][sends] == peer]
    alike = sends[(m.tag[sends] == m.tag[post]) & (m.comm[sends] == m.comm[post])]
    known = search.trace.ranks.get(peer)
    found = theirs if len(theirs) or (known is not None and known.ended) else alike
    return int(found[-1]) if len(found) else None


def _disagree(search: Suspects, call: Open, peer: int, want: WaitCondition, post: int, sent: int) -> Verdict:
    m, rank, sender = search.matching, call.rank, int(search.trace.events["rank"][sent])
    made, waits = calls.describe(search.trace, m, sent), inside(search.trace, m, call, post)
    on = ""
    if m.comm[post] != m.comm[sent]:
        there, here = (calls.communicator(search.trace, int(m.comm[event])) for event in (sent, post))
        on = f" on {there}, not on {here}"
    which = "sources" if sender != peer else "communicators" if on else "tags"
    return Verdict(
        State.HUNG,
        f"rank {rank} and rank {sender} don't agree: rank {rank} waits {waits}, and rank {sender} made {made}{on},"
        " which nobody receives",
        Cause.MISMATCH,
        call=calls.describe(search.trace, m, post),
        peer=sender,
        since_ns=int(search.trace.events["enter"][want.event]),
        evidence=tuple(search.facts(rank) + search.facts(sender)),
        confidence=0.9,
        action=f"compare {which} of these two calls",
    )


def left_over(search: Suspects, call: Open) -> bool:
    """Add a verdict if all ranks are in Finalize, one does not return from it, and a message that it has sent, or that
    was sent to it, is not received by any rank. MPI may wait for its receiver. Returns whether there is such a
    message."""
    m, events = search.matching, search.trace.events
    left = np.flatnonzero(
        IS_SEND[m.op]
        & (m.partner < 0)
        & m.sure
        & (m.peer >= 0)
        & (events["flags"] & (Flag.FAILED | Flag.PERSISTENT) == 0)
    )
    left = left[(events["rank"][left] == call.rank) | (m.peer[left] == call.rank)]
    if not len(left):
        return False
    sent = int(left[-1])
    sender, receiver = int(events["rank"][sent]), int(m.peer[sent])
    if {sender, receiver} <= search.accused:
        return True
    needed = search.needed(WaitCondition(sent), receiver)
    search.accused.update((sender, receiver))
    search.found.append(
        Verdict(
            State.HUNG,
            f"rank {receiver} and rank {sender} don't agree: rank {receiver} never called {needed}, and went on to"
            f" MPI_Finalize; rank {sender} made"
            f" {calls.describe(search.trace, m, sent)}, which nobody receives",
            Cause.MISSING,
            rank=receiver,
            peer=sender,
            call=needed,
            since_ns=call.since,
            evidence=(f"{search.name(call.rank)} {search.been(call)}", f"messages that nobody receives: {len(left)}"),
            confidence=0.9,
            action="receive each message that is sent, or don't send it",
        )
    )
    return True
