"""The calls of a trace as other tools show them: begin, end, title and details."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np

from ..model.calls import name
from ..model.events import ANY, NO_PEER, OPEN, PROC_NULL, Flag, Op, Trace
from ..model.match import first_of_call

PEERS = {NO_PEER: None, ANY: "any", PROC_NULL: "null"}


def calls(trace: Trace) -> Iterator[tuple[int, list[int], int]]:
    """Yield begin, events and end of each call."""
    events = trace.events
    heads = [*np.flatnonzero(first_of_call(events)).tolist(), len(events)]
    for head, after in pairwise(heads):
        end = int(events["exit"][head])
        yield int(events["enter"][head]), list(range(head, after)), trace.now if end == OPEN else end


def title(trace: Trace, group: list[int]) -> str:
    """Return the name of the function that a call has called. group: its events."""
    ops = trace.events["op"][group].tolist()
    return (
        "MPI_Sendrecv"
        if ops == [Op.SEND, Op.RECV]
        else name(ops[0], bool(trace.events["flags"][group[0]] & Flag.NONBLOCKING))
    )


def details(trace: Trace, event: np.void) -> Iterable[tuple[str, int | str]]:
    """Yield what distinguishes a call from others of this name, by its first event."""
    comm = int(event["comm"])
    if comm >= 0:
        yield "communicator", trace.comms[comm].name or f"{trace.comms[comm].cid:016x}"
    if int(event["peer"]) != NO_PEER:
        yield "peer", PEERS.get(int(event["peer"])) or int(event["peer"])
        yield "tag", int(event["tag"])
    yield "bytes", int(event["bytes"])
    yield "seq", int(event["context"])
