"""The rank's side of the protocol as a state machine without I/O: the logic that wrappers/clock/clock.c follows.

The wrapper calls enter_collective, exit_collective, block, unblock and add_row, each for one of the rank's threads. The
control thread calls ``receive`` (or on_*) for each message of the coordinator, and sends the messages in ``outbox``, in
order. In C both run under clock.lock; here a call is atomic.

Invariants
 1. SEQ rises only here, by one, when a collective *starts* (blocking or not). It falls only if this call then fails on
    its arguments, before it has communicated: for MPI such a call was not made, so no call of other members matches it.
 2. Whenever SEQ >= TARGET on a row after a start in phase RUN, that SEQ has been put into the outbox (Raise, or Rows
    for a new row), after the STATE that says where the rank is. So the coordinator's SEQ is exact for every row that it
    believes to be at target, and a rank that looks as if it were at target and outside really is.
 3. A thread stops only at the entry of a collective, never at an exit: a peer may need a message that is sent before
    the next collective. In INTENT and FROZEN it always stops (in FROZEN every other MPI call also stops at its entry,
    see ``stopped``). In RUN it stops if the rank isn't needed, its row isn't below target, and each row that is below
    target has another thread parked at its entry, which will enter it. (With one thread: if no row is below target.) A
    stricter rule would stop too many threads: a row below target may wait for this thread to continue, in a way that
    only the program knows. A weaker rule would let the threads of a rank overtake each other for ever: each would pass
    its own target because of the other's.
 4. Every coordinator message is answered: INTENT by ROWS, FREEZE by FROZEN or NOTFROZEN, the others by a STATE whose
    ``applied`` counts them. RESUME and ABORT end the epoch and are not answered. An INTENT while an epoch is pending
    also ends it: something that this rank or another has reported was retracted (messages.py, Retract), and everything
    starts again.
 5. Only the thread itself sets its state, and IN_COLLECTIVE on the fast path, too (C: plain stores before the phase is
    read). So a rank that was inside a collective at the request reports this after its ROWS. If it were taken for
    running, a peer that waits for ANY would rely on it for ever.
 6. Nothing is put into the outbox in phase NONE (except Done), and in phase FROZEN only the answer to a FREEZE. What a
    frozen rank does (it may compute up to its next MPI call) is reported after the THAW.
 7. ``version`` rises as messages.py (invariant 2) says; FREEZE is accepted only for the current version.
 8. ``wake`` rises whenever a parked thread may have become free to enter: with every message, and when a thread that
    others rely on (invariant 3) enters while a row is still below target.
"""

from __future__ import annotations

from ._state import WORLD, ClockPhase, ClockRow, Decision, Mode, Row, State, Thread, ggid
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

ROWS_MAX = 256  # rows in one message (C: limited by the length of the line)
RUNNING = Thread(State.RUNNING)
DISABLED = Thread(State.DISABLED)


class RankClock:
    """Clock of one rank. ``world``: members of MPI_COMM_WORLD; its row exists from the start with SEQ 0 (Init counts as
    1).

    ``threads``: the threads that aren't RUNNING, by number.
    """

    __slots__ = (
        "rank",
        "rows",
        "phase",
        "epoch",
        "version",
        "applied",
        "needed",
        "threads",
        "below",
        "wake",
        "lower",
        "disabled",
        "freezing",
        "outbox",
    )

    def __init__(self, rank: int, world: tuple[int, ...], *, world_ggid: int | None = None) -> None:
        self.rank = rank
        group = ggid(world) if world_ggid is None else world_ggid
        self.rows: dict[int, ClockRow] = {WORLD: ClockRow(WORLD, group, world, name="MPI_COMM_WORLD")}
        self.phase = ClockPhase.NONE
        self.epoch = 0
        self.version = 0
        self.applied = 0
        self.needed = False  # between ADVANCE and WITHDRAW
        self.threads: dict[int, Thread] = {}
        self.below = 0  # rows with SEQ < TARGET
        self.wake = 0
        self.lower = 0  # threads in enter_lower()
        self.disabled = 0  # threads between disable() and enable()
        self.freezing = False  # FREEZE isn't answered yet
        self.outbox: list[FromRank] = []

    # ---- called by the wrapper

    @property
    def stopped(self) -> bool:
        """Every MPI call stops at its entry, and blocked calls leave the lower half."""
        return self.phase is ClockPhase.FROZEN

    def state(self, thread: int = 0) -> State:
        """The state of one thread."""
        return self.threads.get(thread, RUNNING).state

    @property
    def inside(self) -> bool:
        """Is a thread inside a blocking collective?"""
        return any(t.state is State.IN_COLLECTIVE for t in self.threads.values())

    def enter_collective(self, cid: int, *, blocking: bool = True, thread: int = 0) -> Decision:
        """Entry of a collective on ``cid``. PARK: nothing was counted; the caller must sleep, and call again when
        woken."""
        if not self._may_go(cid, thread):
            self._become(thread, Thread(State.PARKED, cid))
            return Decision.PARK
        row = self.rows[cid]
        row.seq += 1
        # The state comes first: between the two messages the rank must not look as if it were at target and outside.
        self._become(thread, Thread(State.IN_COLLECTIVE, cid) if blocking else RUNNING)
        if self.phase is ClockPhase.RUN:
            if row.seq >= row.target:
                self.below -= row.seq == row.target
                row.target = row.seq
                self.version += 1
                self.outbox.append(Raise(self.epoch, self.version, cid, row.seq))
            self.wake += self.below > 0
        return Decision.GO

    def promise(self, cid: int) -> None:
        """C only: the control thread reports while the inline code has counted a call that it is about to take back,
        until it is decided whether the call may be made. The value that was read is promised: as SEQ in the report, and
        as the row's TARGET here. Also in INTENT."""
        row = self.rows[cid]
        if row.seq >= row.target and self.phase in (ClockPhase.INTENT, ClockPhase.RUN):
            row.target = row.seq + 1
            self.below += 1
            self.version += 1
            self.outbox.append(Raise(self.epoch, self.version, cid, row.target))

    def fail_collective(self, *, thread: int = 0) -> None:
        """The collective that the thread is inside has failed before it communicated. exit_collective follows.

        The call may be in ROWS, in a RAISE, or in other ranks' targets, and the row's TARGET may come from this rank or
        from others. So the coordinator must ask everything again.
        """
        row = self.rows[self.threads[thread].cid]
        self.below += row.seq == row.target and self.phase is not ClockPhase.NONE
        row.seq -= 1
        if self.phase is not ClockPhase.NONE:
            self.version += 1
            self.outbox.append(Retract(self.epoch, self.version))

    def exit_collective(self, *, thread: int = 0) -> None:
        """The blocking collective is complete. If it made a communicator, this is added (add_row) before this call."""
        self._become(thread, RUNNING)

    def block(self, peers: tuple[int, ...], mode: Mode = Mode.ALL, cid: int = 0, *, thread: int = 0) -> None:
        """A blocking point-to-point call, or a poll that keeps failing, waits for ``peers`` (empty: all members of
        ``cid``).

        ``peers`` empty and ``cid`` 0: it waits, but only for nonblocking collectives. These need no help except the
        targets, but the rank must not be taken for running. Only meaningful while a checkpoint is pending. To reduce
        messages to the coordinator, call it only when the wait has lasted for some time (C: 1 ms).
        """
        if self.phase is not ClockPhase.NONE:
            self._become(thread, Thread(State.BLOCKED_P2P, cid, mode, peers))

    def unblock(self, *, thread: int = 0) -> None:
        if self.state(thread) is State.BLOCKED_P2P:
            self._become(thread, RUNNING)

    def enter_lower(self) -> None:
        """A thread enters the lower half for a call that counts on no row, waits for no other rank's program, and can't
        be left before its end (MPI_Win_flush). Not in phase FROZEN."""
        self.lower += 1

    def leave_lower(self) -> None:
        """Such a call ends. If a FREEZE waits for it, the FREEZE is answered now."""
        self.lower -= 1
        if self.freezing and not self.lower:
            self._answer_freeze()

    def disable(self) -> bool:
        """A thread forbids checkpoints. False: too late, the rank is frozen; call again when woken.

        Otherwise the rank is needed, like a rank below target, until enable(): it isn't frozen, and ranks that block it
        continue.
        """
        if self.stopped:
            return False
        self._disable(1)
        return True

    def enable(self) -> None:
        """The thread allows checkpoints again."""
        self._disable(-1)

    def _disable(self, change: int) -> None:
        before = self.disabled
        self.disabled += change
        if self.phase in (ClockPhase.INTENT, ClockPhase.RUN) and (before == 0 or self.disabled == 0):
            self.version += 1
            self._report_state()

    def add_row(
        self, cid: int, members: tuple[int, ...], *, handle: int = 1, name: str = "", group: int | None = None
    ) -> None:
        """Adds a new communicator: after the return of its constructor, or (``handle`` 0) at the entry of
        Comm_create_group.

        The second call for a cid, after Comm_create_group, only sets handle and name.
        """
        if cid in self.rows:
            self.rows[cid].handle, self.rows[cid].name = handle, name
            return
        self.rows[cid] = row = ClockRow(
            cid, ggid(members) if group is None else group, members, handle=handle, name=name
        )
        if self.phase is not ClockPhase.NONE:
            self.version += 1
            self.outbox.append(Rows(self.epoch, self.version, (_report(row),)))

    def remove_row(self, cid: int) -> None:
        """All members have freed the communicator, and have agreed on that in a collective. Before that no member may
        drop its row, because others may not yet have started what this rank has started.
        """
        row = self.rows.pop(cid)
        self.below -= row.seq < row.target

    def finish(self) -> None:
        """MPI_Finalize was entered (its collective on WORLD was allowed), or the program ends without it."""
        self.threads = {0: Thread(State.FINISHED)}
        self.outbox.append(Done())

    # ---- called by the control thread

    def receive(self, msg: ToRank) -> None:
        """Apply one message of the coordinator. Messages of another epoch are dropped (they are left over from an
        aborted one)."""
        self.wake += 1
        if isinstance(msg, Intent):
            self.on_intent(msg.epoch)
        elif msg.epoch != self.epoch or self.phase is ClockPhase.NONE:
            return
        elif isinstance(msg, Targets):
            self.on_targets(msg.rows, more=msg.more)
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
        """Report all rows, and then the threads, unless all are RUNNING (the default for a rank that reports nothing).
        The reports include what was not yet sent in an epoch that was started again."""
        self.outbox = [m for m in self.outbox if isinstance(m, Done)]
        self.phase, self.epoch, self.applied, self.needed, self.below, self.freezing = (
            ClockPhase.INTENT,
            epoch,
            1,
            False,
            0,
            False,
        )
        for row in self.rows.values():
            row.target = row.seq
        self.version += 1
        rows = tuple(map(_report, self.rows.values()))
        for i in range(0, len(rows) or 1, ROWS_MAX):
            self.outbox.append(Rows(epoch, self.version, rows[i : i + ROWS_MAX], i + ROWS_MAX < len(rows)))
        if self.threads or self.disabled:
            self._report_state()

    def on_targets(self, rows: tuple[tuple[int, int], ...], *, more: bool = False) -> None:
        for cid, seq in rows:
            self._raise_target(cid, seq)
        if not more:
            self.phase = ClockPhase.RUN
            self._acknowledge()

    def on_target(self, cid: int, seq: int) -> None:
        """A row that is unknown here was freed by all members: every member is at its last SEQ."""
        self._raise_target(cid, seq)
        self._acknowledge()

    def on_advance(self) -> None:
        self.needed = True
        self._acknowledge()

    def on_withdraw(self) -> None:
        self.needed = False
        self._acknowledge()

    def on_freeze(self, version: int) -> None:
        """Freeze. The answer waits until no thread is in the lower half (C: short calls end, blocked loops leave).
        Until all ranks are frozen, this rank's library continues to provide the progress that others need."""
        self.applied += 1
        idle = not self.below and not self.needed and not self.inside and not self.disabled
        if self.phase is ClockPhase.RUN and idle and version == self.version:
            self.phase = ClockPhase.FROZEN
            self.freezing = True
            if not self.lower:
                self._answer_freeze()
        else:
            self.outbox.append(NotFrozen(self.epoch, self.version))

    def _answer_freeze(self) -> None:
        self.freezing = False
        self.outbox.append(Frozen(self.epoch, self.version))

    def on_thaw(self) -> None:
        if self.freezing:
            self.outbox.append(NotFrozen(self.epoch, self.version))
        if self.phase is ClockPhase.FROZEN:
            self.phase = ClockPhase.RUN
        self.freezing = False
        self._acknowledge()

    def on_resume(self) -> None:
        """Published or aborted: return to the fast path. Parked and stopped threads wake, continue and set their state.

        A remaining state BLOCKED_P2P is replaced or cleared by the loop itself; a remaining PARKED by the entry.
        """
        self.phase, self.needed, self.below, self.freezing = ClockPhase.NONE, False, 0, False

    # ---- inside

    def _may_go(self, cid: int, thread: int) -> bool:
        if self.phase is not ClockPhase.RUN:
            return self.phase is ClockPhase.NONE
        if self.needed or not self.below:
            return self.needed
        if not self.threads:  # the usual case: no other thread has a state
            return True
        parked = {t.cid for k, t in self.threads.items() if k != thread and t.state is State.PARKED}
        low = (c for c, row in self.rows.items() if row.seq < row.target)
        return any(c == cid or c not in parked for c in low)

    def _raise_target(self, cid: int, seq: int) -> None:
        row = self.rows.get(cid)
        if row is not None and seq > row.target:
            self.below += row.seq >= row.target
            row.target = seq

    def _acknowledge(self) -> None:
        """Count the message and report this. A parked thread that may now enter is woken, and reports by itself."""
        self.applied += 1
        self.version += 1
        self._report_state()

    def _become(self, thread: int, new: Thread) -> None:
        old = self.threads.get(thread, RUNNING)
        if new == old:
            return
        if State.IN_COLLECTIVE in (new.state, old.state):
            self.version += self.phase is not ClockPhase.NONE
        if new is RUNNING:
            del self.threads[thread]
        else:
            self.threads[thread] = new
        if self.phase in (ClockPhase.INTENT, ClockPhase.RUN):
            self._report_state()

    def _report_state(self) -> None:
        threads = tuple(self.threads[k] for k in sorted(self.threads)) + (DISABLED,) * (self.disabled > 0)
        self.outbox.append(StateReport(self.epoch, self.version, self.applied, threads))


def _report(row: ClockRow) -> Row:
    return Row(row.cid, row.ggid, row.seq, row.members, row.handle, row.name)
