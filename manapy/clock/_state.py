"""States, phases, rows and identities of the collective clock. Pure data, no protocol.

Invariants
 1. The clock is kept per communicator identity (cid), never per group: with congruent communicators a and b, rank 0 may
    start Ibarrier(a) and rank 1 Ibarrier(b); a counter shared by a and b would call that a safe state.
 2. An identity is agreed without messages: every member computes it from values that are equal on all members.
 3. The values here (names on the wire, byte order of what is hashed) are those of control.h and boundary.h.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from ..core.fnv import fnv1a


class State(Enum):
    """State of one thread of a rank; the value is the word on the wire."""

    # computes, is in an MPI call that does not block, or waits outside MPI (for another thread, for example)
    RUNNING = "running"
    BLOCKED_P2P = "blocked"  # waits for peers, in a call or in a poll that keeps failing
    IN_COLLECTIVE = "collective"  # inside a call on state_cid that ends once all members have made it
    PARKED = "parked"  # stopped at the entry of a collective on state_cid, before it is counted
    FINISHED = "finished"  # MPI_Finalize entered
    DISABLED = "disabled"  # not a thread's state: a word in a report while the program forbids checkpoints


class Mode(Enum):
    """What a blocked rank waits for."""

    ALL = "all"  # every peer must act
    ANY = "any"  # one of the peers must act (MPI_ANY_SOURCE, Waitany, a window lock)


class ClockPhase(Enum):
    """Phase of the protocol on one rank (mpy_phase_t)."""

    NONE = 0  # no checkpoint pending
    INTENT = 1  # requested, targets unknown: every collective stops at its entry
    RUN = 2  # targets known: run up to the targets
    FROZEN = 3  # every MPI call stops at its entry


class Stage(Enum):
    """The stage of an epoch."""

    IDLE = "idle"
    INTENT = "intent"  # rows are missing
    RUN = "run"  # ranks run to their targets
    FREEZING = "freezing"  # answers to FREEZE are missing
    CONVERGED = "converged"  # every rank is frozen


class Decision(Enum):
    """Answer to a rank that wants to start a collective."""

    GO = "go"
    PARK = "park"  # sleep; ask again when woken


def ggid(world_ranks: Iterable[int]) -> int:
    """Group identity: FNV-1a over the sorted world ranks as little-endian uint32 (equal for MPI_SIMILAR groups)."""
    return fnv1a(b"".join(r.to_bytes(4, "little") for r in sorted(world_ranks)))


def _hash3(a: int, b: int, c: int) -> int:
    mask = 0xFFFFFFFFFFFFFFFF  # negative values (a tag never is one) wrap as in C
    return fnv1a(b"".join((v & mask).to_bytes(8, "little") for v in (a, b, c))) or 1  # 0 marks a free row in C


def child_identity(parent_id: int, parent_seq: int, smallest_world_rank: int) -> int:
    """Identity of a communicator made by a collective of its parent.

    ``parent_seq`` is the parent's SEQ including the constructor call itself. The children of one split are disjoint, so
    the smallest world rank tells them apart.
    """
    return _hash3(parent_id, parent_seq, smallest_world_rank)


def group_identity(group: int, tag: int, count: int) -> int:
    """Identity of a communicator made by Comm_create_group: (ggid, tag, number of this call with them, from 1).

    Known at the *entry* of the call, so the call is counted on the new row itself, as its SEQ 1.
    """
    return _hash3(group, tag, count)


WORLD = child_identity(0, 0, 0)


class Thread(NamedTuple):
    """The state of a thread that is not RUNNING. ``peers``: the world ranks that a blocked thread waits for
    (StateReport)."""

    state: State
    cid: int = 0
    mode: Mode = Mode.ALL
    peers: tuple[int, ...] = ()


@dataclass(slots=True)
class ClockRow:
    """One communicator on one rank. ``members`` are world ranks in the order of the communicator's ranks."""

    cid: int
    ggid: int
    members: tuple[int, ...]
    seq: int = 0
    target: int = 0
    handle: int = 1  # 0: the communicator is under construction, because Comm_create_group has not returned
    name: str = ""


class Row(NamedTuple):
    """A row as reported. Equal ``members`` objects may be shared between ranks (the model does)."""

    cid: int
    ggid: int
    seq: int
    members: tuple[int, ...]
    handle: int = 1
    name: str = ""
