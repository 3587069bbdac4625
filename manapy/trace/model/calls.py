"""The names of recorded calls in sentences."""

from __future__ import annotations

from collections.abc import Collection

from ...core.units import first_and_more
from .events import ANY, NO_PEER, PROC_NULL, Flag, Op, Trace
from .match import IS_COLLECTIVE, IS_COMPLETION, IS_RECEIVE, IS_SEND, Matching

_PLAIN = {
    Op.REDUCE_SCATTER: "Reduce_scatter",
    Op.COMM_CREATE: "Comm_create (or _split, _dup, _free)",
    Op.WIN_CREATE: "Win_create (or _allocate)",
    Op.FILE: "File call",
    Op.NEIGHBOR: "Neighbor collective",
}
_PROBES = (Op.PROBE, Op.MPROBE)
_EPOCHS = (Op.WIN_POST, Op.WIN_START, Op.WIN_COMPLETE, Op.WIN_WAIT)


def name(op: int, nonblocking: bool = False) -> str:
    """Return the name of a call: MPI_Recv, MPI_Ibarrier ..."""
    try:
        known = Op(op)
    except ValueError:
        return f"call {op}"
    plain = _PLAIN.get(known, known.name.capitalize())
    return f"MPI_I{plain[0].lower()}{plain[1:]}" if nonblocking else f"MPI_{plain}"


def communicator(trace: Trace, comm: int) -> str:
    """Return a communicator's name for people, or else its members. If several communicators without a name have these
    members, the text also says which one it is."""
    if not 0 <= comm < len(trace.comms):
        return "an unknown communicator"
    known = trace.comms[comm]
    if known.name:
        return known.name
    if not len(known.members):
        return f"communicator {known.cid:x}"
    alike = [i for i, one in enumerate(trace.comms) if one.ggid == known.ggid and not one.name]
    group = "MPI_COMM_WORLD's group" if len(known.members) == trace.size else named(known.members)
    if len(alike) > 1:
        return f"communicator {alike.index(comm) + 1} of {len(alike)} on {group}"
    return group if len(known.members) == trace.size else f"the communicator of {group}"


def is_window(trace: Trace, comm: int) -> bool:
    """Return whether an index in Trace.comms is a window, not a communicator. A window has calls that only windows
    have, or its name says so."""
    known = trace.comms[comm] if 0 <= comm < len(trace.comms) else None
    ops = trace.events["op"][trace.events["comm"] == comm]
    return known is not None and (known.name == "window" or bool(((ops >= Op.WIN_FENCE) & (ops <= Op.WIN_FLUSH)).any()))


def window(trace: Trace, comm: int) -> str:
    """Return a window's name for people, or else its members. The preloaded recorder calls all windows "window"."""
    known = trace.comms[comm] if 0 <= comm < len(trace.comms) else None
    if known is None or known.name and known.name != "window":
        return communicator(trace, comm)
    return f"the window of {named(known.members)}" if len(known.members) else f"window {known.cid:x}"


def ranks(members: object, limit: int = 6) -> str:
    """Return a list of ranks as text: `0, 1, 2 and 13 more`."""
    every = [int(m) for m in members]  # type: ignore[attr-defined]
    if len(every) <= limit:
        return ", ".join(map(str, every))
    if every == list(range(every[0], every[-1] + 1)):
        return f"{every[0]} to {every[-1]}"
    return first_and_more(every, limit)


def named(members: Collection[int]) -> str:
    """Return ranks as text: `rank 1`, `ranks 0, 1`."""
    return f"rank{'s' if len(members) != 1 else ''} {ranks(members)}"


def count(number: int, what: str) -> str:
    """Return how many wait, as text: `1 rank waits`, `3 ranks wait`."""
    return f"{number} {what}{'s wait' if number != 1 else ' waits'}"


def other(trace: Trace, peer: int) -> str:
    """Return a peer as text: `rank 13`, `any rank`."""
    return {ANY: "any rank", PROC_NULL: "no rank", NO_PEER: "an unknown rank"}.get(peer, f"rank {peer}")


def describe(trace: Trace, matching: Matching, event: int) -> str:
    """Describe a call with what distinguishes it: `MPI_Recv from rank 13, tag 7`."""
    post = int(matching.post[event])
    own = trace.events[event]
    if IS_COMPLETION[own["op"]]:
        called = "MPI_Waitany" if own["op"] == Op.WAITANY else name(int(own["op"]))
        return called if post < 0 else f"{called} for its {_operation(trace, matching, post)}"
    started = own["op"] == Op.START != matching.op[event]
    return ("MPI_Start of " if started else "") + _operation(trace, matching, event)


def _operation(trace: Trace, matching: Matching, event: int) -> str:
    """Describe the operation of a call. For the start of a persistent request, this is the call that made the
    request."""
    own, turn = trace.events[event], int(matching.turn[event])
    op, peer, tag, seq = (int(array[event]) for array in (matching.op, matching.peer, matching.tag, matching.seq))
    called = name(op, bool(own["flags"] & Flag.NONBLOCKING)) + (
        "_init" if op != own["op"] or own["flags"] & Flag.PERSISTENT else ""
    )
    tags = ", any tag" if tag == ANY else f", tag {tag}"
    if IS_SEND[op]:
        return f"{called} to {other(trace, peer)}{tags}"
    if IS_RECEIVE[op] or op in _PROBES:
        return f"{called} from {other(trace, peer)}{tags}"
    if op == Op.WIN_CREATE and is_window(trace, int(matching.comm[event])):  # this call on the window itself frees it
        return f"MPI_Win_free on {window(trace, int(matching.comm[event]))}"
    if IS_COLLECTIVE[op]:
        root = f" with root {peer}" if peer >= 0 else ""
        started = f", start {turn}" if turn else ""
        place = (window if op == Op.WIN_FENCE else communicator)(trace, int(matching.comm[event]))
        return f"{called}{root} on {place} (call {seq} there{started})" if seq else f"{called}{root}"
    if Op.WIN_LOCK <= op <= Op.WIN_FLUSH:
        called += f" {'with' if op in _EPOCHS else 'of'} {other(trace, peer)}" if peer >= 0 else ""
        return f"{called} on {window(trace, int(matching.comm[event]))}"
    return f"{called} of {other(trace, peer)}" if peer >= 0 else called
