"""The coordinator's side of the protocol: decides from the ranks' reports which ranks must continue, and when the job
is at a safe state.

It has no I/O, no threads and no time. The caller passes every message of a rank to ``on_message``, in the order of its
connection, and sends the returned messages, in order, on each rank's connection. One Controller lives as long as the
job; ``begin`` starts an epoch.

    begin -> INTENT to all -> all ROWS -> TARGETS to all -> RAISE/STATE/ROWS in, TARGET/ADVANCE/WITHDRAW out
          -> no rank is below target, inside a collective, forbids checkpoints, or has an unacknowledged message ->
          FREEZE(version) to all -> all FROZEN -> ``converged`` (stop, drain and write are the coordinator's) ->
          resume() -> a NOTFROZEN, or a rank below target again when all have answered -> THAW to all, and continue
    at any time: RETRACT -> INTENT of the next epoch to all, everything again
    at any time: lost(), abort(), DONE of a rank, or a contradiction in the reports -> ABORT to all; ``failure`` has
        the reason

Invariants
 1. For a row known from a rank, "below" is exact or errs on the side of below: rank.py invariant 2.
 2. A member that has not reported a row counts as SEQ 0 while the row is *open* (WORLD; Comm_create_group that hasn't
    returned on some rank). Otherwise it doesn't count: either all members have freed the communicator (no member drops
    its row before), or it is still inside the constructor, which counts on the parent, and will report the row when it
    leaves the constructor.
 3. TARGET goes only to members that have reported the row. The others get it in answer to that report.
 4. ADVANCE goes to a rank with a parked thread, whatever its other threads do, in two cases: others ask it, or it is
    below target only on rows it doesn't know (invariant 3). A rank below target on a row it knows first continues by
    itself. WITHDRAW follows when the rank isn't needed any more. FREEZE follows only when every message sent has been
    applied.
 5. A rank whose program forbids checkpoints is needed like a rank below target, although it may be at its target. So it
    reaches the place where checkpoints are allowed again, and parked ranks do not block it.
 6. A call that was counted and is taken back (rank.py, invariant 1) may already be other ranks' target, which nobody
    can reach. Lowering the target would race with reports of the others. So everything is asked again, in a new epoch.
    What the ranks have done meanwhile is what their programs would have done anyway. Each retraction uses up one wrong
    call of the program, so this ends.
 7. Work for a message is proportional to the messages it causes (and rows it carries), not to the number of ranks.
 8. A message of several ranks is applied to all of them before anything is decided. Every state of the controller in
    which it decides is one that single messages could have caused, too. Ranks that get the same message get the same
    object, one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TypeAlias

from ._state import WORLD, Row, Stage, State, Thread
from .demand_graph import Needs, Wait
from .messages import (
    Abort,
    Advance,
    Done,
    Freeze,
    FromRank,
    Frozen,
    Intent,
    NotFrozen,
    Raise,
    Resume,
    Retract,
    Rows,
    StateReport,
    Target,
    Targets,
    Thaw,
    ToRank,
    Withdraw,
)

Out: TypeAlias = list[tuple[int, ToRank]]

TARGETS_MAX = 1000  # rows in one message


@dataclass(slots=True)
class Counters:
    """The cost of one epoch."""

    sent: int = 0
    received: int = 0
    raises: int = 0  # messages that raised a target
    advances: int = 0
    withdraws: int = 0
    freezes: int = 0  # freeze rounds; more than one if a NOTFROZEN came
    stalls: int = 0
    retracts: int = 0  # number of times that the epoch was started again


@dataclass(slots=True)
class Comm:
    """A communicator as known in this epoch. ``seqs`` holds the members that have reported the row."""

    cid: int
    ggid: int
    members: tuple[int, ...]
    name: str
    open: bool
    target: int
    seqs: dict[int, int]


# The state of a rank in one word is the first of these states that one of its threads has.
_FIRST = (State.IN_COLLECTIVE, State.PARKED, State.BLOCKED_P2P, State.FINISHED)
_DISABLED = Thread(State.DISABLED)
_RUNNING = Thread(State.RUNNING)


@dataclass(slots=True)
class RankView:
    """What the coordinator knows of a rank. ``threads``: those that are not RUNNING."""

    threads: tuple[Thread, ...] = ()
    parked: bool = False
    disabled: bool = False  # its program forbids checkpoints
    inside: bool = False
    version: int = 0
    sent: int = 0
    applied: int = 0
    below: int = 0  # communicators on which it is below target ...
    hidden: int = 0  # ... and among them those whose row it has not reported
    reported: bool = False
    advanced: bool = False
    frozen: bool = False
    freeze_at: int = 0  # `sent` after the FREEZE that isn't answered yet; 0: none

    @property
    def first(self) -> Thread:
        """The thread that messages name."""
        return min(self.threads, key=lambda t: _FIRST.index(t.state), default=_RUNNING)


class Controller:
    """The decision core for ``size`` ranks. Not thread-safe."""

    def __init__(self, size: int, *, transitive: bool = True) -> None:
        self.size = size
        self.epoch = 0
        self.stage = Stage.IDLE
        self.failure: str | None = None  # why the last epoch ended without success
        self.finishing = False  # a rank has entered MPI_Finalize or ended: no more checkpoints
        self.counters = Counters()
        self.ranks = [RankView() for _ in range(size)]
        self.comms: dict[int, Comm] = {}
        self._transitive = transitive
        self._out: Out = []
        self._reset()

    # ---- called by the coordinator

    @property
    def converged(self) -> bool:
        """All ranks are FROZEN: no rank is inside a collective, SEQ = TARGET everywhere, and nothing changes until
        resume()."""
        return self.stage is Stage.CONVERGED

    @property
    def pending(self) -> bool:
        return self.stage is not Stage.IDLE

    def begin(self, epoch: int) -> Out:
        """Start an epoch (greater than all before). Raises ValueError if one is pending or the job is finishing."""
        if self.pending:
            raise ValueError(f"checkpoint {self.epoch} is pending")
        if self.finishing:
            raise ValueError("the job is finishing")
        if epoch <= self.epoch:
            raise ValueError(f"epoch {epoch} is not greater than {self.epoch}")
        self.failure, self.counters = None, Counters()
        return self._ask(epoch)

    def on_message(self, rank: int, msg: FromRank) -> Out:
        """Apply one message of ``rank``; returns the messages to send. Messages of another epoch are dropped.
        Afterwards ``epoch`` may be the next one."""
        return self.on_messages((rank,), msg)

    def on_messages(self, ranks: Sequence[int], msg: FromRank) -> Out:
        """Apply the same message of several ranks (invariant 8)."""
        if isinstance(msg, Done):
            self.finishing = True
            return self.abort("the job is finishing") if self.pending else []
        if msg.epoch != self.epoch or not self.pending:
            return []
        self.counters.received += len(ranks)
        if isinstance(msg, Retract):
            self.counters.retracts += 1
            return self._ask(self.epoch + 1)
        for rank in ranks:
            view = self.ranks[rank]
            view.version = max(view.version, msg.version)
        self._out = []
        if isinstance(msg, Rows):
            self._on_rows(ranks, msg)
        elif isinstance(msg, Raise):
            self._on_raise(ranks, msg)
        elif isinstance(msg, StateReport):
            self._on_state(ranks, msg)
        elif isinstance(msg, (Frozen, NotFrozen)):
            self._on_answer(ranks, isinstance(msg, Frozen))
        if self.pending:
            self._settle()
            self._decide()
        return self._out

    def lost(self, rank: int) -> Out:
        """The connection of ``rank`` is lost. The epoch, if any, ends, and the other ranks are told."""
        return [(r, m) for r, m in self.abort(f"rank {rank} is lost") if r != rank]

    def abort(self, reason: str) -> Out:
        """End the epoch without success. Also for failures after convergence (drain, write)."""
        if not self.pending:
            return []
        self.stage, self.failure = Stage.IDLE, reason
        self.counters.sent += self.size
        self._out = []
        return self._to_all(Abort(self.epoch, reason))

    def resume(self, then: str = "continue", path: str = "") -> Out:
        """Published: release all ranks. Raises ValueError unless converged."""
        if not self.converged:
            raise ValueError("not converged")
        self.stage = Stage.IDLE
        self.counters.sent += self.size
        return self._to_all(Resume(self.epoch, then, path))

    def stall(self) -> Out:
        """Ask every parked rank to continue, because of dependencies outside MPI (a rank polls a file that a parked
        rank writes).

        The coordinator calls this when nothing has been reported for a long time while a rank runs below target. Each
        asked rank executes one collective (or more if it is really needed) and is then withdrawn. The collective is
        counted.
        """
        if self.stage is not Stage.RUN:
            return []
        self._out = []
        self.counters.stalls += 1
        for rank, view in enumerate(self.ranks):
            if view.parked and not view.below and not view.advanced:
                self._advance(rank, view)
                self._stalled.add(rank)
        return self._out

    # ---- status for users: may look at every rank

    def laggards(self) -> list[tuple[int, int, list[int]]]:
        """(rank, cid, waiting ranks) for each rank below target: these members wait for it on communicator ``cid``."""
        found = []
        for comm in self.comms.values():
            ahead = [m for m, s in comm.seqs.items() if s >= comm.target]
            found += [(m, comm.cid, ahead) for m in comm.members if self._below(comm, m)]
        return sorted(found, key=lambda x: x[:2])

    def askers(self, rank: int) -> list[int]:
        """Needed, blocked ranks that wait for ``rank``."""
        return self._needs.askers(rank)

    def status(self) -> list[str]:
        """One line for each reason why the job is not at a safe state yet."""
        from ._explain import explain

        return explain(self)

    # ---- inside

    def _reset(self) -> None:
        self.comms = {}
        self._groups: dict[int, tuple[int, ...]] = {}
        self._unacked = 0  # ranks with applied < sent
        self._missing = 0  # ranks whose ROWS haven't arrived
        self._inside = 0  # ranks with a thread inside a blocking collective
        self._disabled = 0  # ranks whose program forbids checkpoints
        self._below_ranks = 0
        self._unfrozen = 0
        self._stalled: set[int] = set()  # advanced only by stall(), and not past their collective yet
        self._needs = Needs(self._running, lambda cid: self.comms[cid].members, transitive=self._transitive)

    def _ask(self, epoch: int) -> Out:
        self.epoch, self.stage = epoch, Stage.INTENT
        self.ranks = [RankView(sent=1) for _ in range(self.size)]
        self._reset()
        self._unacked = self._missing = self.size
        self.counters.sent += self.size
        return self._to_all(Intent(epoch))

    def _to_all(self, msg: ToRank) -> Out:
        return list(zip(range(self.size), repeat(msg)))

    def _running(self, rank: int) -> bool:
        """Can the rank act without help?

        A rank inside a collective may wait for the rank that asks; a running thread may wait for a stopped one.
        """
        return not self.ranks[rank].threads

    def _send(self, ranks: Sequence[int], msg: ToRank) -> None:
        for rank in ranks:
            view = self.ranks[rank]
            self._unacked += view.applied == view.sent
            view.sent += 1
        self.counters.sent += len(ranks)
        self._out += zip(ranks, repeat(msg))

    def _acknowledged(self, view: RankView, applied: int) -> None:
        if view.applied < applied:
            view.applied = applied
            self._unacked -= applied == view.sent

    def _on_rows(self, ranks: Sequence[int], msg: Rows) -> None:
        for row in msg.rows:
            comm = self.comms.get(row.cid)
            if comm is None:
                if not self._admit(row):
                    return
                comm = self.comms[row.cid] = Comm(
                    row.cid, row.ggid, row.members, row.name, row.cid == WORLD or row.handle == 0, 0, {}
                )
            elif comm.members is not row.members and comm.members != row.members:
                self._out += self.abort(
                    f"communicator {row.cid:016x} has other members on rank {ranks[0]}: identities collide"
                )
                return
            comm.name = comm.name or row.name
            comm.open |= self.stage is Stage.INTENT and row.handle == 0
            self._on_seq(comm, ranks, row.seq)
            if row.seq < comm.target:
                self._send(ranks, Target(self.epoch, comm.cid, comm.target))
        for rank in ranks:
            view = self.ranks[rank]
            if view.parked:
                self._needs.changed.append(rank)
            if not view.reported and not msg.more:
                view.reported = True
                self._acknowledged(view, 1)
                self._missing -= 1
        if self.stage is Stage.INTENT and not self._missing:
            self._compute_targets()

    def _on_raise(self, ranks: Sequence[int], msg: Raise) -> None:
        comm = self.comms.get(msg.cid)
        for rank in ranks:
            if comm is None or rank not in comm.seqs:
                self._out = self.abort(f"rank {rank} counts on communicator {msg.cid:016x}, which it has not reported")
                return
        assert comm is not None
        self._on_seq(comm, ranks, msg.seq)
        for rank in ranks:
            # it has done what was asked, or another thread must act now
            if rank in self._stalled or self.ranks[rank].parked:
                self._stalled.discard(rank)
                self._needs.changed.append(rank)

    def _admit(self, row: Row) -> bool:
        """Add a new communicator. Its group must not have another group's ggid."""
        group = self._groups.get(row.ggid)
        members = tuple(sorted(row.members))
        if group is None:
            self._groups[row.ggid] = members
        elif group != members:
            self._out += self.abort(f"two groups share the group identity {row.ggid:016x}")
            return False
        return True

    def _compute_targets(self) -> None:
        self.stage = Stage.RUN
        targets: list[list[tuple[int, int]]] = [[] for _ in range(self.size)]
        for comm in self.comms.values():
            comm.target = max(comm.seqs.values())
            if min(comm.seqs.values()) == comm.target and not comm.open:
                continue
            for member, seq in comm.seqs.items():
                if seq < comm.target:
                    targets[member].append((comm.cid, comm.target))
            for member in comm.members:
                if self._below(comm, member):
                    self._count_below(member, 1, hidden=member not in comm.seqs)
        alike: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for rank, rows in enumerate(targets):
            alike.setdefault(tuple(rows), []).append(rank)
        for order, ranks in alike.items():
            while len(order) > TARGETS_MAX:
                self._out += zip(ranks, repeat(Targets(self.epoch, order[:TARGETS_MAX], more=True)))
                self.counters.sent += len(ranks)
                order = order[TARGETS_MAX:]
            self._send(ranks, Targets(self.epoch, order))

    def _below(self, comm: Comm, member: int) -> bool:
        return comm.seqs.get(member, 0 if comm.open else comm.target) < comm.target

    def _count_below(self, rank: int, change: int, *, hidden: bool) -> None:
        view = self.ranks[rank]
        before = view.below > 0
        view.below += change
        view.hidden += change * hidden
        after = view.below > 0
        if before != after:
            self._below_ranks += 1 if after else -1
            self._needs.set_root(rank, after or view.disabled)

    def _on_seq(self, comm: Comm, ranks: Sequence[int], seq: int) -> None:
        """``ranks`` have SEQ ``seq`` on ``comm``. If it is past the target, all other members get a new target."""
        # there are no targets to compare with yet; a call may already be promised (rank.py, promise())
        if self.stage is Stage.INTENT:
            for rank in ranks:
                comm.seqs[rank] = max(comm.seqs.get(rank, 0), seq)
            return
        for rank in ranks:
            was, hidden = self._below(comm, rank), rank not in comm.seqs
            comm.seqs[rank] = seq
            if seq < comm.target:
                if not was:
                    self._count_below(rank, 1, hidden=False)
                elif hidden:
                    self.ranks[rank].hidden -= 1
                continue
            if was:
                self._count_below(rank, -1, hidden=hidden)
            if seq > comm.target:
                self._raise_target(comm, rank, seq)

    def _raise_target(self, comm: Comm, by: int, seq: int) -> None:
        self.counters.raises += 1
        others = [member for member in comm.members if member != by]
        newly = [m for m in others if (m in comm.seqs or comm.open) and not self._below(comm, m)]
        self._send([m for m in others if m in comm.seqs], Target(self.epoch, comm.cid, seq))
        comm.target = seq
        for member in newly:
            self._count_below(member, 1, hidden=member not in comm.seqs)

    def _on_state(self, ranks: Sequence[int], msg: StateReport) -> None:
        disabled = _DISABLED in msg.threads
        threads = tuple(t for t in msg.threads if t.state is not State.DISABLED)
        parked = any(t.state is State.PARKED for t in threads)
        inside = any(t.state is State.IN_COLLECTIVE for t in threads)
        blocked = (t for t in threads if t.state is State.BLOCKED_P2P and (t.peers or t.cid in self.comms))
        waits = tuple(Wait(t.mode, t.peers, t.cid) for t in blocked)
        for rank in ranks:
            view = self.ranks[rank]
            ran = not view.threads
            self._inside += inside - view.inside
            self._disabled += disabled - view.disabled
            view.threads, view.parked, view.inside, view.disabled = threads, parked, inside, disabled
            self._needs.set_root(rank, view.below > 0 or disabled)
            self._needs.set_waits(rank, waits)
            self._acknowledged(view, msg.applied)
            if ran and threads:
                self._needs.stopped(rank)
            if parked or view.advanced:
                self._needs.changed.append(rank)

    def _advance(self, rank: int, view: RankView) -> None:
        view.advanced = True
        self.counters.advances += 1
        self._send((rank,), Advance(self.epoch))

    def _settle(self) -> None:
        """Advance and withdraw ranks whose needed() or state has changed (invariant 4)."""
        if self.stage is not Stage.RUN:
            return
        changed = self._needs.changed
        while changed:
            rank = changed.pop()
            view = self.ranks[rank]
            if self._needs.needed(rank):
                if view.parked and view.below == view.hidden and not view.advanced:
                    self._advance(rank, view)
            elif view.advanced and rank not in self._stalled:
                view.advanced = False
                self.counters.withdraws += 1
                self._send((rank,), Withdraw(self.epoch))

    def _decide(self) -> None:
        if self.stage is Stage.RUN and not (self._below_ranks or self._inside or self._disabled or self._unacked):
            if self._stalled:
                self._needs.changed.extend(self._stalled)
                self._stalled.clear()
                self._settle()
                return
            self._freeze()

    def _freeze(self) -> None:
        self.stage = Stage.FREEZING
        self.counters.freezes += 1
        self._unfrozen = self.size
        alike: dict[int, list[int]] = {}
        for rank, view in enumerate(self.ranks):
            view.frozen = False
            alike.setdefault(view.version, []).append(rank)
        for version, ranks in alike.items():
            self._send(ranks, Freeze(self.epoch, version))
        for view in self.ranks:
            view.freeze_at = view.sent

    def _on_answer(self, ranks: Sequence[int], frozen: bool) -> None:
        for rank in ranks:
            view = self.ranks[rank]
            self._acknowledged(view, view.freeze_at)
            view.freeze_at = 0
        if self.stage is not Stage.FREEZING:
            return
        if frozen:
            for rank in ranks:
                self.ranks[rank].frozen = True
            self._unfrozen -= len(ranks)
            if self._unfrozen:
                return
            if not (self._below_ranks or self._inside or self._disabled):
                self.stage = Stage.CONVERGED
                return
        self.stage = Stage.RUN
        self._send(range(self.size), Thaw(self.epoch))
