"""Abstract MPI programs for the model: one list of operations per rank, which may fork into several threads.

Communicators have names. By the rules of MPI these are local to a rank; in this module they are equal on all members.
Names of requests belong to a thread. A window is a communicator here. So is a persistent collective (it has a row of
its own): Split makes it, Icoll starts it, Drop is its MPI_Request_free. A program must be correct even if collectives
synchronize and sends wait for their receive; the tests generate only such programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .network import ANY

__all__ = [
    "ANY", "AwaitFlag", "Coll", "Compute", "CreateGroup", "Disable", "Drop", "Enable", "Fail", "Finalize", "Flush",
    "Free", "Icoll", "Lock", "Op",
    "Parallel", "Probe", "Program", "Recv", "Send", "SetFlag", "Split", "Unlock", "Wait", "WaitAny",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compute:
    steps: int = 1


@dataclass(frozen=True, slots=True)
class Coll:
    """Blocking collective. ``loose``: returns without waiting for the others (like a root's Bcast)."""

    comm: str = "world"
    loose: bool = False


@dataclass(frozen=True, slots=True)
class Icoll:
    """``loose``: complete here without the others."""

    req: str
    comm: str = "world"
    loose: bool = False


@dataclass(frozen=True, slots=True)
class Fail:
    """A collective with wrong arguments, on this rank only: returns an error before it communicates."""

    comm: str = "world"


@dataclass(frozen=True, slots=True)
class Send:
    """``req``: nonblocking. ``sync``: completes only when matched."""

    dest: int
    value: int
    tag: int = 0
    comm: str = "world"
    sync: bool = True
    req: str = ""


@dataclass(frozen=True, slots=True)
class Recv:
    source: int
    tag: int = 0
    comm: str = "world"
    req: str = ""


@dataclass(frozen=True, slots=True)
class Probe:
    """Waits until a matching message has arrived; ``poll``: by a loop of MPI_Iprobe."""

    source: int
    tag: int = 0
    comm: str = "world"
    poll: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Waits for all of the requests; ``poll``: by a test loop."""

    reqs: tuple[str, ...]
    poll: bool = False


@dataclass(frozen=True, slots=True)
class WaitAny:
    """Waits for one of the requests (those already waited for are left out)."""

    reqs: tuple[str, ...]
    poll: bool = False


@dataclass(frozen=True, slots=True)
class Split:
    """Collective of ``parent``. ``members`` is the part that contains this rank (all members: a dup)."""

    parent: str
    comm: str
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CreateGroup:
    """Comm_create_group: collective over the new group only."""

    comm: str
    members: tuple[int, ...]
    tag: int = 0


@dataclass(frozen=True, slots=True)
class Free:
    """Comm_free: a local call. The row stays until all members have freed the communicator, and agree on that in a
    later Split."""

    comm: str


@dataclass(frozen=True, slots=True)
class Drop:
    """The same for a persistent collective of ``parent``."""

    comm: str
    parent: str


@dataclass(frozen=True, slots=True)
class Lock:
    """MPI_Win_lock on ``target``: waits while another rank holds it (with ``shared``: holds it exclusively)."""

    win: str
    target: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Unlock:
    win: str
    target: int


@dataclass(frozen=True, slots=True)
class Flush:
    """A call that ends when ``target``'s MPI library has made progress; it needs nothing of the target's program."""

    target: int


@dataclass(frozen=True, slots=True)
class Parallel:
    """The thread continues with the first body, new threads execute the others. At its end it waits, outside MPI, for
    theirs."""

    bodies: tuple[Sequence[Op], ...]


@dataclass(frozen=True, slots=True)
class SetFlag:
    """A dependency outside MPI: this rank writes a file (or this thread sets a variable of its rank) ..."""

    name: str


@dataclass(frozen=True, slots=True)
class AwaitFlag:
    """... and this one waits until that exists, without any MPI call."""

    name: str


@dataclass(frozen=True, slots=True)
class Disable:
    """No checkpoint until this thread's Enable."""


@dataclass(frozen=True, slots=True)
class Enable:
    pass


@dataclass(frozen=True, slots=True)
class Finalize:
    pass


Op: TypeAlias = (
    Compute
    | Coll
    | Icoll
    | Fail
    | Send
    | Recv
    | Probe
    | Wait
    | WaitAny
    | Split
    | CreateGroup
    | Free
    | Drop
    | Lock
    | Unlock
    | Flush
    | Parallel
    | SetFlag
    | AwaitFlag
    | Disable
    | Enable
    | Finalize
)
Program: TypeAlias = Sequence[Sequence[Op]]  # Finalize is added at the end of each rank's list
