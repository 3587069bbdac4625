"""The analyzer's data: the calls of all ranks of one job on one clock. It does not matter here whether they come from
rings, files or the simulator.

lowerhalf/include/manapy/trace.h explains the fields of a record. Here times are nanoseconds, communicators are indices
into one table for the whole job, and peers are world ranks.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np

OPEN = -1  # in `exit`: the call has not returned
NEVER = 1 << 62  # in Rank.first_ns: absence cannot be claimed for any time yet

NO_PEER, ANY, PROC_NULL = -32768, -32767, -32766


class Op(enum.IntEnum):
    """What a record is about: mpy_trace_op_t in trace.h."""

    NONE = 0
    SEND, BSEND, SSEND, RSEND, RECV, MRECV, PROBE, MPROBE = range(1, 9)
    WAIT, WAITALL, WAITANY, TEST, START, CANCEL, REQUEST_FREE = range(16, 23)
    BARRIER, BCAST, REDUCE, ALLREDUCE, GATHER, SCATTER, ALLGATHER, ALLTOALL, REDUCE_SCATTER, SCAN, EXSCAN, NEIGHBOR = (
        range(32, 44)
    )
    COMM_CREATE, WIN_CREATE, FILE, INIT, FINALIZE = range(44, 49)
    WIN_FENCE, WIN_LOCK, WIN_UNLOCK, WIN_POST, WIN_START, WIN_COMPLETE, WIN_WAIT, WIN_FLUSH = range(64, 72)
    MARK, RDMA_QP, PAUSE, REFUSED = range(96, 100)


class Flag(enum.IntFlag):
    """Flags of a record: MPY_TRACE_* in trace.h."""

    NONBLOCKING = 1
    PERSISTENT = 2
    MORE = 4
    WILDCARD = 8
    FAILED = 16
    STOPPED = 32
    CUT = 64
    PENDING = 128


STARTS = 8  # in `flags` of a START, the bits from this one on contain the operation that it starts (Op, 0: unknown)


EVENT = np.dtype(
    [
        ("rank", "i4"),
        ("thread", "u2"),
        ("op", "u2"),
        ("flags", "u2"),
        ("generation", "u2"),
        ("comm", "i4"),  # index into Trace.comms; -1: none
        ("peer", "i4"),  # world rank, or NO_PEER, ANY, PROC_NULL
        ("tag", "i4"),
        ("seq", "u8"),  # of the record in its ring
        ("bytes", "u8"),
        ("enter", "i8"),  # ns on the job's clock
        ("exit", "i8"),  # ns, or OPEN
        ("request", "u8"),
        ("context", "u8"),
    ]
)


@dataclass(frozen=True)
class Communicator:
    """A communicator or window of the job.

    cid: its identity over all ranks and generations.
    ggid: identity of its group.
    members: world ranks in the communicator's order, int32; empty if they are unknown.
    remote: how many members, at the end of `members`, are the remote group of an inter-communicator.
    """

    cid: int
    ggid: int
    members: np.ndarray
    name: str = ""
    remote: int = 0


@dataclass(frozen=True)
class Refusal:
    """A failed call whose error handler has ended the job.

    call: the function's name.
    error: the error class; 0: it was called before MPI_Init or after MPI_Finalize.
    at: when, ns.
    """

    call: str
    error: int
    at: int


@dataclass
class Rank:
    """What is known of one rank besides its calls."""

    rank: int
    host: str = ""
    pid: int = 0
    pid_start: int = 0  # field 22 of /proc/PID/stat: tells whether PID is still that process
    generation: int = 0
    ended: bool = False  # has finalized MPI
    lost: int = 0  # records that were overwritten before they were read, or torn
    first_ns: int = 0  # after this time nothing is lost or paused; only there a missing record shows a missing call
    uncertainty_ns: int = 0  # uncertainty of its clock relative to rank 0's
    polls: int = 0  # failed tests so far
    polled_ns: int = OPEN  # when the last of them was
    polled_request: int = 0
    process: str = ""  # its state in /proc at `now`: "R", "S", "T", "Z" ...; "dead": gone; "": not known
    cpu_share: float = float("nan")  # processor time per elapsed time in the last interval observed
    doing: str | None = None  # what a suspect does besides MPI (activity.py); "": nothing; None: not known
    still_s: float = 0.0  # for how long it has done nothing
    threads: dict[int, int] = field(
        default_factory=dict
    )  # kernel ids of the live threads that record, by `thread` of events
    problems: list[str] = field(default_factory=list)
    # (begin, end) of each pause of recording (MPI_Pcontrol), ns; the last end is OPEN if the pause still lasts
    pauses: tuple[tuple[int, int], ...] = ()

    refused: Refusal | None = None
    place: str = ""  # where in the program its newest call was made, if an imported recording says it

    @property
    def paused(self) -> bool:
        """Return whether the rank is not recorded at present."""
        return bool(self.pauses) and self.pauses[-1][1] == OPEN

    @property
    def whole(self) -> bool:
        """Return whether the trace has all calls of the rank."""
        return not self.lost and not self.pauses


@dataclass
class Trace:
    """The calls of a job up to `now`.

    events: array of EVENT sorted by (rank, thread, seq), without Op.PAUSE (see Rank.pauses) and Op.REFUSED (see
        Rank.refused).
    size: number of ranks of the job. `ranks` has those that are in this trace.
    now: ns on the job's clock.
    rdma: the records of progress of RDMA queue pairs (Op.RDMA_QP), sorted alike. There comm and peer are numbers of
        queue pairs (trace.h), and tag is an index into `devices`, or -1.
    timed: it is known when operations began and ended. Else nothing can be said about speed.
    """

    events: np.ndarray
    comms: list[Communicator]
    size: int
    ranks: dict[int, Rank]
    now: int
    job: str = ""
    problems: list[str] = field(default_factory=list)  # files that could not be read completely
    monotonic_ns: int = 0  # CLOCK_MONOTONIC of this host at `now` if the job runs here; else 0
    rdma: np.ndarray = field(default_factory=lambda: np.empty(0, EVENT))
    devices: list[str] = field(default_factory=list)
    # waits for a processor of ranks on other hosts, if they were sampled there: as in runqueue.Delays
    waits: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    timed: bool = True
