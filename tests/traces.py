"""Traces written by hand, and a tiny model of MPI that executes programs until they end or hang.

The model is strict about which rank waits for which, and simple about everything else. A call that has all it needs
ends after STEP ns. A Ssend waits for its receive, a Send doesn't. Receives take messages in order. Collectives need all
members.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from manapy.trace.capture import format
from manapy.trace.model.events import EVENT, NEVER, NO_PEER, OPEN, Communicator, Op, Rank, Trace

STEP = 1_000_000  # ns
SECOND = 1_000_000_000

Row = dict[str, int]


class Builder:
    """Calls are appended rank by rank; times are in ns. Communicator 0 has all ranks."""

    def __init__(self, size: int, hosts: int = 1) -> None:
        self.size = size
        self.rows: dict[tuple[int, int], list[Row]] = {}
        self.comms = [Communicator(1, 1, np.arange(size, dtype=np.int32))]
        self.ranks = {
            r: Rank(r, host=f"node{r * hosts // size}", pid=1000 + r, process="R", cpu_share=1.0) for r in range(size)
        }
        self.seqs: dict[tuple[int, int], int] = {}

    def comm(self, *members: int, name: str = "") -> int:
        """Make a communicator; its index."""
        self.comms.append(Communicator(len(self.comms) + 1, len(self.comms) + 1, np.array(members, np.int32), name))
        return len(self.comms) - 1

    def call(self, rank: int, op: Op, enter: int, exit: int = OPEN, *, thread: int = 0, **fields: int) -> Row:
        """Append one record. The SEQ of a collective is counted unless `context` is given."""
        row = {
            "rank": rank,
            "thread": thread,
            "op": int(op),
            "enter": enter,
            "exit": exit,
            "comm": 0,
            "peer": NO_PEER,
            "tag": -1,
            **fields,
        }
        if Op.BARRIER <= op < Op.INIT and "context" not in fields:
            key = (rank, row["comm"])
            row["context"] = self.seqs[key] = self.seqs.get(key, 0) + 1
        of = self.rows.setdefault((rank, thread), [])
        row.setdefault("seq", len(of) + 1)
        of.append(row)
        return row

    def lose(self, rank: int, records: int) -> None:
        """The first records of a rank were overwritten."""
        rows = self.rows[rank, 0]
        del rows[:records]
        first = rows[0]["enter"] if rows else 0
        self.ranks[rank] = replace(self.ranks[rank], lost=records, first_ns=first)

    def pause(self, rank: int, begin: int, end: int = OPEN) -> None:
        """A pause in the recording of a rank. Don't add the calls that it makes meanwhile."""
        known = self.ranks[rank]
        self.ranks[rank] = replace(
            known, pauses=(*known.pauses, (begin, end)), first_ns=NEVER if end == OPEN else max(end, known.first_ns)
        )

    def trace(self, now: int) -> Trace:
        """The whole trace, as it is at a time."""
        rows = [row for key in sorted(self.rows) for row in self.rows[key]]
        events = np.zeros(len(rows), EVENT)
        for i, row in enumerate(rows):
            for name, value in row.items():
                events[i][name] = value
        rdma = events["op"] == Op.RDMA_QP
        return Trace(events[~rdma], self.comms, self.size, self.ranks, now, rdma=events[rdma])


def saved(
    folder: Path, *calls: Row, end: int = format.FINALIZED, host: str = "elsewhere", pid: int = 0, pid_start: int = 0
) -> Path:
    """A folder with the recordings of ranks that made these calls after a Barrier, and with a world that they share.
    process: the recordings are of this process."""
    folder.mkdir()
    for rank, call in enumerate(calls):
        writer = format.Writer(folder, rank, len(calls), host=host, pid=pid, pid_start=pid_start, capacity=64)
        world = writer.comm(1, list(range(len(calls))), name="world")
        writer.ring()
        writer.put(op=Op.BARRIER, comm=world, enter=SECOND, exit=SECOND + 1000, context=1)
        writer.put(**{"comm": world, **call})
        writer.sample(0, 0, 0)
        writer.sample(60 * SECOND, 60 * 10**9, 60 * 10**9)
        writer.close(end)
    return folder


def receive(peer: int) -> Row:
    """A receive for saved()."""
    return {"op": Op.RECV, "peer": peer, "tag": 3, "enter": 2 * SECOND}


@dataclass(frozen=True)
class Step:
    """One action of a rank: a call, or computing for some ns."""

    op: Op | None
    peer: int = NO_PEER
    tag: int = -1
    comm: int = 0
    compute: int = 0


def compute(ns: int) -> Step:
    return Step(None, compute=ns)


def send(peer: int, tag: int = 0) -> Step:
    return Step(Op.SEND, peer, tag)


def ssend(peer: int, tag: int = 0) -> Step:
    return Step(Op.SSEND, peer, tag)


def recv(peer: int, tag: int = 0) -> Step:
    return Step(Op.RECV, peer, tag)


def barrier(comm: int = 0) -> Step:
    return Step(Op.BARRIER, comm=comm)


def allreduce(comm: int = 0) -> Step:
    return Step(Op.ALLREDUCE, comm=comm)


SPIN = compute(1 << 60)


@dataclass(eq=False)
class _Message:
    row: Row
    arrived: int | None = None  # when the other side had arrived


@dataclass
class _State:
    at: int = 0
    time: int = 0
    opened: Row | None = None
    message: _Message | None = None


@dataclass
class Model:
    """Executes one program per rank."""

    programs: Sequence[Sequence[Step]]
    comms: Sequence[tuple[int, ...]] = ()
    hosts: int = 1
    _sends: dict[tuple[int, int, int], list[_Message]] = field(default_factory=dict)
    _receives: dict[tuple[int, int, int], list[_Message]] = field(default_factory=dict)
    _arrivals: dict[tuple[int, int], list[Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.builder = Builder(len(self.programs), self.hosts)
        for members in self.comms:
            self.builder.comm(*members)
        self._states = [_State() for _ in self.programs]

    def run(self) -> bool:
        """Execute until no rank can go on. Have all programs ended?"""
        moved = True
        while moved:
            moved = False
            for rank in range(len(self.programs)):
                while self._step(rank):
                    moved = True
        return all(state.at == len(program) for state, program in zip(self._states, self.programs, strict=True))

    def trace(self, later: int = 60 * SECOND) -> Trace:
        """The trace, `later` ns after the last event. Ranks that spin are outside MPI."""
        newest = max((max(row["enter"], row["exit"]) for rows in self.builder.rows.values() for row in rows), default=0)
        return self.builder.trace(newest + later)

    def _step(self, rank: int) -> bool:
        state = self._states[rank]
        if state.at == len(self.programs[rank]):
            return False
        step = self.programs[rank][state.at]
        if step is SPIN:
            return False
        if step.op is None:
            state.time += step.compute
            state.at += 1
            return True
        if state.opened is None:
            state.opened = self.builder.call(rank, step.op, state.time, comm=step.comm, peer=step.peer, tag=step.tag)
            self._arrive(rank, step, state)
            return True
        ends = self._ends(step, state)
        if ends is None:
            return False
        state.opened["exit"] = state.time = max(ends, state.opened["enter"]) + STEP
        state.opened = None
        state.at += 1
        return True

    def _arrive(self, rank: int, step: Step, state: _State) -> None:
        assert state.opened is not None and step.op is not None
        if step.op >= Op.BARRIER:
            self._arrivals.setdefault((step.comm, state.opened["context"]), []).append(state.opened)
            return
        sending = step.op is not Op.RECV
        key = (rank, step.peer, step.tag) if sending else (step.peer, rank, step.tag)
        mine, theirs = (self._sends, self._receives) if sending else (self._receives, self._sends)
        state.message = message = _Message(state.opened)
        mine.setdefault(key, []).append(message)
        place = len(mine[key]) - 1
        if len(others := theirs.get(key, [])) > place:
            message.arrived = others[place].row["enter"]
            others[place].arrived = state.time

    def _ends(self, step: Step, state: _State) -> int | None:
        assert state.opened is not None
        if step.op is Op.SEND:
            return state.time
        if step.op in (Op.SSEND, Op.RECV):
            assert state.message is not None
            return state.message.arrived
        there = self._arrivals[step.comm, state.opened["context"]]
        agree = len({row["op"] for row in there}) == 1
        return (
            max(row["enter"] for row in there)
            if len(there) == len(self.builder.comms[step.comm].members) and agree
            else None
        )


def calls_of(work: Callable[[], object]) -> int:
    """The number of calls of Python and C functions that some work makes. It measures the cost independently of the
    machine."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
