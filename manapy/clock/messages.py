"""Messages of the collective clock between a rank and the coordinator, and their lines in control.h's text protocol.

Invariants
 1. One NamedTuple per kind (they are made quickly, and many at once); ``to_wire()`` gives the line without its newline
    and ``from_wire()`` reads it back equal. The last field, ``kind``, makes messages of two kinds unequal.
 2. ``version`` never decreases on one connection. It rises with every change of the rank's clock: rows, a SEQ that
    reached or passed its TARGET or was taken back, a thread that enters or leaves a blocking collective, a coordinator
    message applied. It does not change for parked, blocked and unblocked: these may come at any rate and must not
    hinder a freeze.
 3. ``applied`` counts every message of this module that the rank has received in this epoch, including INTENT.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from ..core.wire_text import decode_text, encode_text
from ._state import Mode, Row, State, Thread


class WireError(ValueError):
    """A line that is not a message of the clock protocol."""


def encode_ranks(ranks: Sequence[int]) -> str:
    """Comma list. Three or more ascending ranks with the same distance become first-last/distance, or first-last if
    the distance is 1. Empty: '-'."""
    if not ranks:
        return "-"
    parts: list[str] = []
    i = 0
    while i < len(ranks):
        j = i + 1
        step = ranks[j] - ranks[i] if j < len(ranks) else 0
        while j + 1 < len(ranks) and ranks[j + 1] - ranks[j] == step:
            j += 1
        if step > 0 and j - i >= 2:
            parts.append(f"{ranks[i]}-{ranks[j]}" + (f"/{step}" if step > 1 else ""))
            i = j + 1
        else:
            parts.append(str(ranks[i]))
            i += 1
    return ",".join(parts)


def decode_ranks(text: str) -> tuple[int, ...]:
    if text == "-":
        return ()
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, rest = part.partition("-")
        last, _, step = rest.partition("/")
        ranks.extend(range(int(first), int(last) + 1, int(step or 1)) if dash else (int(first),))
    return tuple(ranks)


def encode_row(row: Row) -> str:
    return f"{row.cid:016x}:{row.ggid:016x}:{row.seq}:{encode_ranks(row.members)}:{row.handle}:{encode_text(row.name)}"


Members: TypeAlias = dict[str, tuple[str, tuple[int, ...]]]  # of each cid: its member list, as text and decoded


def decode_row(text: str, known: Members | None = None) -> Row:
    """known: member lists that were decoded before, because all members of a communicator send the same list."""
    cid, group, seq, members, handle, name = text.split(":")
    if known is None:
        ranks = decode_ranks(members)
    elif cid in known and known[cid][0] == members:
        ranks = known[cid][1]
    else:
        ranks = decode_ranks(members)
        known[cid] = members, ranks
    return Row(int(cid, 16), int(group, 16), int(seq), ranks, int(handle), decode_text(name))


# ---- rank -> coordinator


class Rows(NamedTuple):
    """The first one in an epoch lists every row; later ones only rows made since. ``more``: the next ROWS continues the
    list (so that lines stay short)."""

    epoch: int
    version: int
    rows: tuple[Row, ...]
    more: bool = False
    kind: str = "ROWS"

    def to_wire(self) -> str:
        return " ".join(
            [f"ROWS {self.epoch} {self.version} {self.more:d} {len(self.rows)}", *map(encode_row, self.rows)]
        )


class Raise(NamedTuple):
    """SEQ of ``cid`` has reached or passed the TARGET that this rank knows."""

    epoch: int
    version: int
    cid: int
    seq: int
    kind: str = "RAISE"

    def to_wire(self) -> str:
        return f"RAISE {self.epoch} {self.version} {self.cid:016x} {self.seq}"


def encode_thread(t: Thread) -> str:
    return f"{t.state.value}:{t.cid:016x}:{t.mode.value}:{encode_ranks(t.peers)}"


def decode_thread(text: str) -> Thread:
    state, cid, mode, peers = text.split(":")
    return Thread(State(state), int(cid, 16), Mode(mode), decode_ranks(peers))


class StateReport(NamedTuple):
    """All threads that aren't RUNNING, each separately: a parked one may be needed while another is inside a
    collective, and so may the peers of a blocked one while a third is parked. BLOCKED_P2P with ``peers`` empty: every
    member of ``cid``, or nobody if ``cid`` is 0. In other states peers are empty."""

    epoch: int
    version: int
    applied: int
    threads: tuple[Thread, ...] = ()
    kind: str = "STATE"

    def to_wire(self) -> str:
        return " ".join(
            [f"STATE {self.epoch} {self.version} {self.applied} {len(self.threads)}", *map(encode_thread, self.threads)]
        )


class Frozen(NamedTuple):
    epoch: int
    version: int
    kind: str = "FROZEN"

    def to_wire(self) -> str:
        return f"{self.kind} {self.epoch} {self.version}"


class NotFrozen(NamedTuple):
    """Something changed since the version that FREEZE named; the report of it came before this message."""

    epoch: int
    version: int
    kind: str = "NOTFROZEN"

    def to_wire(self) -> str:
        return f"{self.kind} {self.epoch} {self.version}"


class Retract(NamedTuple):
    """A collective that may have been reported to the coordinator failed before it communicated, and isn't counted any
    more. The answer is the INTENT of a new epoch."""

    epoch: int
    version: int
    kind: str = "RETRACT"

    def to_wire(self) -> str:
        return f"{self.kind} {self.epoch} {self.version}"


class Done(NamedTuple):
    kind: str = "DONE"

    def to_wire(self) -> str:
        return "DONE"


# ---- coordinator -> rank


class Intent(NamedTuple):
    epoch: int
    kind: str = "INTENT"

    def to_wire(self) -> str:
        return f"{self.kind} {self.epoch}"


class Targets(NamedTuple):
    """Rows that are not listed are at their target. ``more``: the next TARGETS continues the list; only the last one
    counts in ``applied`` and lets the rank run."""

    epoch: int
    rows: tuple[tuple[int, int], ...]  # (cid, seq)
    more: bool = False
    kind: str = "TARGETS"

    def to_wire(self) -> str:
        return " ".join(
            [f"TARGETS {self.epoch} {self.more:d} {len(self.rows)}", *(f"{cid:016x}:{seq}" for cid, seq in self.rows)]
        )


class Target(NamedTuple):
    epoch: int
    cid: int
    seq: int
    kind: str = "TARGET"

    def to_wire(self) -> str:
        return f"TARGET {self.epoch} {self.cid:016x} {self.seq}"


class Advance(NamedTuple):
    epoch: int
    kind: str = "ADVANCE"

    def to_wire(self) -> str:
        return f"{self.kind} {self.epoch}"


class Withdraw(NamedTuple):
    epoch: int
    kind: str = "WITHDRAW"

    def to_wire(self) -> str:
        return f"{self.kind} {self.epoch}"


class Freeze(NamedTuple):
    epoch: int
    version: int
    kind: str = "FREEZE"

    def to_wire(self) -> str:
        return f"{self.kind} {self.epoch} {self.version}"


class Thaw(NamedTuple):
    epoch: int
    kind: str = "THAW"

    def to_wire(self) -> str:
        return f"{self.kind} {self.epoch}"


class Resume(NamedTuple):
    epoch: int
    then: str = "continue"
    path: str = ""
    kind: str = "RESUME"

    def to_wire(self) -> str:
        return f"RESUME {self.epoch} {self.then} {encode_text(self.path)}"


class Abort(NamedTuple):
    epoch: int
    reason: str = ""
    kind: str = "ABORT"

    def to_wire(self) -> str:
        return f"ABORT {self.epoch} {encode_text(self.reason)}"


FromRank: TypeAlias = Rows | Raise | Retract | StateReport | Frozen | NotFrozen | Done
ToRank: TypeAlias = Intent | Targets | Target | Advance | Withdraw | Freeze | Thaw | Resume | Abort
Message: TypeAlias = FromRank | ToRank

_VERSIONED: dict[str, type[Frozen] | type[NotFrozen] | type[Retract] | type[Freeze]] = {
    "FROZEN": Frozen, "NOTFROZEN": NotFrozen, "RETRACT": Retract, "FREEZE": Freeze,
}  # fmt: skip
_BARE: dict[str, type[Intent] | type[Advance] | type[Withdraw] | type[Thaw]] = {
    "INTENT": Intent, "ADVANCE": Advance, "WITHDRAW": Withdraw, "THAW": Thaw,
}  # fmt: skip
_FLAG = {"0": False, "1": True}
KINDS = frozenset({"ROWS", "RAISE", "STATE", "DONE", "TARGETS", "TARGET", "RESUME", "ABORT", *_VERSIONED, *_BARE})


def from_wire(line: str, known: Members | None = None) -> Message:
    """Read one line. Raises WireError with the line if it isn't one of the kinds in ``KINDS`` or is malformed.
    ``known``: see decode_row."""
    kind, *f = line.split(" ")
    try:
        match kind:
            case "ROWS":
                rows = tuple(decode_row(row, known) for row in f[4:])
                if len(rows) != int(f[3]):
                    raise ValueError("row count")
                return Rows(int(f[0]), int(f[1]), rows, _FLAG[f[2]])
            case "RAISE":
                epoch, version, cid, seq = f
                return Raise(int(epoch), int(version), int(cid, 16), int(seq))
            case "STATE":
                threads = tuple(map(decode_thread, f[4:]))
                if len(threads) != int(f[3]):
                    raise ValueError("thread count")
                return StateReport(int(f[0]), int(f[1]), int(f[2]), threads)
            case "TARGETS":
                targets = tuple((int(c, 16), int(s)) for c, _, s in (x.partition(":") for x in f[3:]))
                if len(targets) != int(f[2]):
                    raise ValueError("row count")
                return Targets(int(f[0]), targets, _FLAG[f[1]])
            case "TARGET":
                epoch, cid, seq = f
                return Target(int(epoch), int(cid, 16), int(seq))
            case "RESUME":
                epoch, then, path = f
                return Resume(int(epoch), then, decode_text(path))
            case "ABORT":
                epoch, reason = f
                return Abort(int(epoch), decode_text(reason))
            case "DONE" if not f:
                return Done()
        if kind in _VERSIONED:
            epoch, version = f
            return _VERSIONED[kind](int(epoch), int(version))
        if kind in _BARE:
            (epoch,) = f
            return _BARE[kind](int(epoch))
    except (ValueError, LookupError) as exc:
        raise WireError(f"malformed {kind} line: {line[:200]!r} ({exc})") from exc
    raise WireError(f"not a clock message: {line[:200]!r}")
