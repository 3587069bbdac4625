"""The rank's side of the protocol as a state machine without I/O: the logic that wrappers/runtime/clock.c follows.

The wrapper calls enter_collective/exit_collective/block/unblock/add_row; the control thread calls ``receive`` (or on_*) for
what the coordinator sent and sends what ``outbox`` holds, in order. In C both run under clock.lock; here a call is atomic.

Invariants
 1. SEQ rises only here, by one, when a collective *starts* (blocking or not), and never falls.
 2. Whenever SEQ >= TARGET on a row after a start in phase RUN, that SEQ has been put into the outbox (Raise, or Rows for a
    new row), behind the STATE that says where the rank is. So the coordinator's SEQ is exact for every row it believes to be
    at target, and a rank that looks as if it were at target and outside is so.
 3. A rank stops only at the entry of a collective: in INTENT always, in RUN if no row is below target and nobody needs it, in
    FROZEN always (and there every other MPI call stops at its entry too, see ``stopped``). Never at an exit: a peer may need
    a message that is sent before the next collective.
 4. Every coordinator message is answered: INTENT by ROWS, FREEZE by FROZEN or NOTFROZEN, the others by a STATE whose
    ``applied`` counts them. RESUME and ABORT end the epoch and are not answered.
 5. The state is set by the program's thread only, and IN_COLLECTIVE on the fast path too (C: plain stores before the phase is
    read). So a rank that was inside a collective at the request says so behind its ROWS; were it taken for running, a peer
    that waits for ANY would rely on it for ever.
 6. Nothing is put into the outbox in phase NONE (except Done) and nothing but the answer to a FREEZE in phase FROZEN: what a
    frozen rank does (it may compute up to its next MPI call) is reported after the THAW.
 7. ``version`` rises as messages.py (invariant 2) says; FREEZE is accepted only on the current version.
"""

from __future__ import annotations

from ._state import WORLD, ClockRow, Mode, Phase, Row, State, Verdict, ggid
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
    Rows,
    StateReport,
    Target,
    Targets,
    Thaw,
    ToRank,
    Withdraw,
)


class RankClock:
    """Clock of one rank. ``world``: members of MPI_COMM_WORLD; its row exists from the start with SEQ 0 (Init counts 1)."""

    __slots__ = (
        "rank", "rows", "phase", "epoch", "version", "applied", "needed", "state", "cid", "mode", "peers", "below", "outbox",
    )  # fmt: skip

    def __init__(self, rank: int, world: tuple[int, ...], *, world_ggid: int | None = None) -> None:
        self.rank = rank
        group = ggid(world) if world_ggid is None else world_ggid
        self.rows: dict[int, ClockRow] = {WORLD: ClockRow(WORLD, group, world, name="MPI_COMM_WORLD")}
        self.phase = Phase.NONE
        self.epoch = 0
        self.version = 0
        self.applied = 0
        self.needed = False  # between ADVANCE and WITHDRAW
        self.state = State.RUNNING
        self.cid = 0
        self.mode = Mode.ALL
        self.peers: tuple[int, ...] = ()
        self.below = 0  # rows with SEQ < TARGET
        self.outbox: list[FromRank] = []

    # ---- what the wrapper calls

    @property
    def stopped(self) -> bool:
        """Every MPI call stops at its entry, and blocked calls leave the lower half."""
        return self.phase is Phase.FROZEN

    def enter_collective(self, cid: int, *, blocking: bool = True) -> Verdict:
        """Entry of a collective on ``cid``. PARK: nothing counted; sleep, and call again when woken."""
        if not self._may_go():
            self._become(State.PARKED, cid)
            return Verdict.PARK
        row = self.rows[cid]
        row.seq += 1
        # The state goes first: between the two messages the rank must not look as if it were at target and outside.
        self._become(State.IN_COLLECTIVE if blocking else State.RUNNING, cid if blocking else 0)
        if self.phase is Phase.RUN and row.seq >= row.target:
            if row.seq == row.target:
                self.below -= 1
            row.target = row.seq
            self.version += 1
            self.outbox.append(Raise(self.epoch, self.version, cid, row.seq))
        return Verdict.GO

    def exit_collective(self) -> None:
        """The blocking collective is complete. A communicator it made is added (add_row) before this call."""
        self._become(State.RUNNING)

    def block(self, peers: tuple[int, ...], mode: Mode = Mode.ALL, cid: int = 0) -> None:
        """A blocking point-to-point call, or a poll that keeps failing, waits for ``peers`` (empty: all members of ``cid``).

        ``peers`` empty and ``cid`` 0: the rank waits, but only for nonblocking collectives, which need no help but the targets;
        it must not be taken for running. Only meaningful while a checkpoint is pending. To spare the coordinator, call it only
        when the wait has lasted (C: 1 ms).
        """
        if self.phase is not Phase.NONE:
            self._become(State.BLOCKED_P2P, cid, mode, peers)

    def unblock(self) -> None:
        if self.state is State.BLOCKED_P2P:
            self._become(State.RUNNING)

    def add_row(self, cid: int, members: tuple[int, ...], *, handle: int = 1, name: str = "", group: int | None = None) -> None:
        """A new communicator: after the return of its constructor, or (``handle`` 0) at the entry of Comm_create_group.

        The second call for a cid, after Comm_create_group, only sets handle and name.
        """
        if cid in self.rows:
            self.rows[cid].handle, self.rows[cid].name = handle, name
            return
        self.rows[cid] = row = ClockRow(cid, ggid(members) if group is None else group, members, handle=handle, name=name)
        if self.phase is not Phase.NONE:
            self.version += 1
            self.outbox.append(Rows(self.epoch, self.version, (_report(row),)))

    def remove_row(self, cid: int) -> None:
        """After a Comm_free that synchronized: no member may drop its row before every member has entered the call."""
        row = self.rows.pop(cid)
        self.below -= row.seq < row.target

    def finish(self) -> None:
        """MPI_Finalize was entered (its collective on WORLD went), or the program ends without it."""
        self.state = State.FINISHED
        self.outbox.append(Done())

    # ---- what the control thread calls

    def receive(self, msg: ToRank) -> None:
        """Apply one message of the coordinator. What belongs to another epoch is dropped (a leftover of an aborted one)."""
        if isinstance(msg, Intent):
            self.on_intent(msg.epoch)
        elif msg.epoch != self.epoch or self.phase is Phase.NONE:
            return
        elif isinstance(msg, Targets):
            self.on_targets(msg.rows)
        elif isinstance(msg, Target):
            self.on_target(msg.cid, msg.seq)
        elif isinstance(msg, Advance):
            self.on_advance()
        elif isinstance(msg, Withdraw):
            self.on_withdraw()
        elif isinstance(msg, Freeze):
            self.on_freeze(msg.version)
        elif isinstance(msg, Thaw):
            self.on_thaw()
        elif isinstance(msg, (Resume, Abort)):
            self.on_resume()

    def on_intent(self, epoch: int) -> None:
        """Report all rows; then the state, unless it's RUNNING, which is assumed of a rank that says nothing."""
        self.phase, self.epoch, self.applied, self.needed, self.below = Phase.INTENT, epoch, 1, False, 0
        for row in self.rows.values():
            row.target = row.seq
        self.version += 1
        self.outbox.append(Rows(epoch, self.version, tuple(map(_report, self.rows.values()))))
        if self.state is not State.RUNNING:
            self._report_state()

    def on_targets(self, rows: tuple[tuple[int, int], ...]) -> None:
        self.phase = Phase.RUN
        for cid, seq in rows:
            self._raise_target(cid, seq)
        self._acknowledge()

    def on_target(self, cid: int, seq: int) -> None:
        """A row that's unknown here was freed: every member is at its last SEQ."""
        self._raise_target(cid, seq)
        self._acknowledge()

    def on_advance(self) -> None:
        self.needed = True
        self._acknowledge()

    def on_withdraw(self) -> None:
        self.needed = False
        self._acknowledge()

    def on_freeze(self, version: int) -> None:
        """Stop. The answer waits until no thread is in the lower half (C: short calls end, blocked loops leave)."""
        self.applied += 1
        idle = not self.below and not self.needed and self.state is not State.IN_COLLECTIVE
        if self.phase is Phase.RUN and idle and version == self.version:
            self.phase = Phase.FROZEN
            self.outbox.append(Frozen(self.epoch, version))
        else:
            self.outbox.append(NotFrozen(self.epoch, self.version))

    def on_thaw(self) -> None:
        if self.phase is Phase.FROZEN:
            self.phase = Phase.RUN
        self._acknowledge()

    def on_resume(self) -> None:
        """Published, or aborted: back to the fast path. Parked and stopped threads wake, go on and set their state.

        A state BLOCKED_P2P that is left over is replaced or cleared by the loop itself; PARKED by the entry.
        """
        self.phase, self.needed, self.below = Phase.NONE, False, 0

    # ---- inside

    def _may_go(self) -> bool:
        return self.phase is Phase.NONE or (self.phase is Phase.RUN and (self.below > 0 or self.needed))

    def _raise_target(self, cid: int, seq: int) -> None:
        row = self.rows.get(cid)
        if row is not None and seq > row.target:
            self.below += row.seq >= row.target
            row.target = seq

    def _acknowledge(self) -> None:
        """Count the message and say so. A parked thread that may go now is woken, and reports by itself."""
        self.applied += 1
        self.version += 1
        self._report_state()

    def _become(self, state: State, cid: int = 0, mode: Mode = Mode.ALL, peers: tuple[int, ...] = ()) -> None:
        if (state, cid, mode, peers) == (self.state, self.cid, self.mode, self.peers):
            return
        if State.IN_COLLECTIVE in (state, self.state):
            self.version += self.phase is not Phase.NONE
        self.state, self.cid, self.mode, self.peers = state, cid, mode, peers
        if self.phase in (Phase.INTENT, Phase.RUN):
            self._report_state()

    def _report_state(self) -> None:
        self.outbox.append(StateReport(self.epoch, self.version, self.state, self.cid, self.mode, self.peers, self.applied))


def _report(row: ClockRow) -> Row:
    return Row(row.cid, row.ggid, row.seq, row.members, row.handle, row.name)
