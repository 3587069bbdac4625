"""The rank's side of the protocol as a state machine without I/O: the logic that wrappers/collective/clock.c follows.

The wrapper calls enter_collective/exit_collective/block/unblock/add_row, each for one of the rank's threads; the
control thread calls ``receive`` (or on_*) for what the coordinator sent and sends what ``outbox`` holds, in order. In C
both run under clock.lock; here a call is atomic.

Invariants
 1. SEQ rises only here, by one, when a collective *starts* (blocking or not). It falls only if this call then
    fails on its arguments, before it has communicated: for MPI such a call was not made, so no call of other members
    matches it.
 2. Whenever SEQ >= TARGET on a row after a start in phase RUN, that SEQ has been put into the outbox (Raise, or Rows
    for a new row), behind the STATE that says where the rank is. So the coordinator's SEQ is exact for every row it
    believes to be at target, and a rank that looks as if it were at target and outside is so.
 3. A thread stops only at the entry of a collective: in INTENT always, in FROZEN always (and there every other MPI call
    stops at its entry too, see ``stopped``), in RUN if nobody needs the rank, its row isn't below target, and for each
    row that is, another thread is parked at that very row: that one will go. (With one thread: if no row is below
    target.) More would be too many: a row below target may wait for this thread's going on, in a way that only the
    program knows. Less would let the threads of a rank leapfrog for ever: each would pass its own target because of the
    other's. Never at an exit: a peer may need a message that is sent before the next collective.
 4. Every coordinator message is answered: INTENT by ROWS, FREEZE by FROZEN or NOTFROZEN, the others by a STATE whose
    ``applied`` counts them. RESUME and ABORT end the epoch and are not answered. So does an INTENT while one is
    pending: what this rank or another has reported was retracted (messages.py, Retract), and all begin again.
 5. A thread's state is set by itself only, and IN_COLLECTIVE on the fast path too (C: plain stores before the phase is
    read). So a rank that was inside a collective at the request says so behind its ROWS; were it taken for running, a
    peer that waits for ANY would rely on it for ever.
 6. Nothing is put into the outbox in phase NONE (except Done) and nothing but the answer to a FREEZE in phase FROZEN:
    what a frozen rank does (it may compute up to its next MPI call) is reported after the THAW.
 7. ``version`` rises as messages.py (invariant 2) says; FREEZE is accepted only on the current version.
 8. ``wake`` rises whenever a parked thread may have become free to go: with every message, and when a thread that
    others rely on (invariant 3) goes while a row is still below target.
"""

from __future__ import annotations

from ._state import WORLD, ClockRow, Mode, Phase, Row, State, Thread, Verdict, ggid
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


ROWS_MAX = 256  # rows in one message (C: by the length of the line)
RUNNING = Thread(State.RUNNING)
DISABLED = Thread(State.DISABLED)


class RankClock:
    """Clock of one rank. ``world``: members of MPI_COMM_WORLD; its row exists from the start with SEQ 0 (Init counts
    1).

    ``threads``: by number, those that aren't RUNNING.
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
        self.phase = Phase.NONE
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

    # ---- what the wrapper calls

    @property
    def stopped(self) -> bool:
        """Every MPI call stops at its entry, and blocked calls leave the lower half."""
        return self.phase is Phase.FROZEN

    def state(self, thread: int = 0) -> State:
        """What one thread does."""
        return self.threads.get(thread, RUNNING).state

    @property
    def inside(self) -> bool:
        """Is a thread inside a blocking collective?"""
        return any(t.state is State.IN_COLLECTIVE for t in self.threads.values())

    def enter_collective(self, cid: int, *, blocking: bool = True, thread: int = 0) -> Verdict:
        """Entry of a collective on ``cid``. PARK: nothing counted; sleep, and call again when woken."""
        if not self._may_go(cid, thread):
            self._become(thread, Thread(State.PARKED, cid))
            return Verdict.PARK
        row = self.rows[cid]
        row.seq += 1
        # The state goes first: between the two messages the rank must not look as if it were at target and outside.
        self._become(thread, Thread(State.IN_COLLECTIVE, cid) if blocking else RUNNING)
        if self.phase is Phase.RUN:
            if row.seq >= row.target:
                self.below -= row.seq == row.target
                row.target = row.seq
                self.version += 1
                self.outbox.append(Raise(self.epoch, self.version, cid, row.seq))
            self.wake += self.below > 0
        return Verdict.GO

    def promise(self, cid: int) -> None:
        """C only: the control thread reports while a call has been counted by the inline code and is about to be taken
        back, until it is decided whether it may be made. What was read is promised: SEQ in the report, and the row's
        TARGET here. Also in INTENT."""
        row = self.rows[cid]
        if row.seq >= row.target and self.phase in (Phase.INTENT, Phase.RUN):
            row.target = row.seq + 1
            self.below += 1
            self.version += 1
            self.outbox.append(Raise(self.epoch, self.version, cid, row.target))

    def fail_collective(self, *, thread: int = 0) -> None:
        """The collective that the thread is inside failed before it communicated. exit_collective follows.

        The call may be in ROWS, or a RAISE, or others' targets; and the row's TARGET may be its own or theirs. So all
        is asked again.
        """
        row = self.rows[self.threads[thread].cid]
        self.below += row.seq == row.target and self.phase is not Phase.NONE
        row.seq -= 1
        if self.phase is not Phase.NONE:
            self.version += 1
            self.outbox.append(Retract(self.epoch, self.version))

    def exit_collective(self, *, thread: int = 0) -> None:
        """The blocking collective is complete. A communicator it made is added (add_row) before this call."""
        self._become(thread, RUNNING)

    def block(self, peers: tuple[int, ...], mode: Mode = Mode.ALL, cid: int = 0, *, thread: int = 0) -> None:
        """A blocking point-to-point call, or a poll that keeps failing, waits for ``peers`` (empty: all members of
        ``cid``).

        ``peers`` empty and ``cid`` 0: it waits, but only for nonblocking collectives, which need no help but the
        targets; the rank must not be taken for running. Only meaningful while a checkpoint is pending. To spare the
        coordinator, call it only when the wait has lasted (C: 1 ms).
        """
        if self.phase is not Phase.NONE:
            self._become(thread, Thread(State.BLOCKED_P2P, cid, mode, peers))

    def unblock(self, *, thread: int = 0) -> None:
        if self.state(thread) is State.BLOCKED_P2P:
            self._become(thread, RUNNING)

    def enter_lower(self) -> None:
        """A thread enters the lower half for a call that counts nowhere, waits for nobody's program and can't be left
        before its end (MPI_Win_flush). Not in phase FROZEN."""
        self.lower += 1

    def leave_lower(self) -> None:
        """Such a call ends; if a FREEZE waits for it, that is answered now."""
        self.lower -= 1
        if self.freezing and not self.lower:
            self._answer_freeze()

    def disable(self) -> bool:
        """A thread forbids checkpoints. False: too late, the rank is frozen; call again when woken.

        Else the rank is needed, like one below target, until enable(): it isn't frozen, and who holds it up goes on.
        """
        if self.stopped:
            return False
        self._disable(1)
        return True

    def enable(self) -> None:
        """The thread allows them again."""
        self._disable(-1)

    def _disable(self, change: int) -> None:
        before = self.disabled
        self.disabled += change
        if self.phase in (Phase.INTENT, Phase.RUN) and (before == 0 or self.disabled == 0):
            self.version += 1
            self._report_state()

    def add_row(
        self, cid: int, members: tuple[int, ...], *, handle: int = 1, name: str = "", group: int | None = None
    ) -> None:
        """A new communicator: after the return of its constructor, or (``handle`` 0) at the entry of Comm_create_group.

        The second call for a cid, after Comm_create_group, only sets handle and name.
        """
        if cid in self.rows:
            self.rows[cid].handle, self.rows[cid].name = handle, name
            return
        self.rows[cid] = row = ClockRow(
            cid, ggid(members) if group is None else group, members, handle=handle, name=name
        )
        if self.phase is not Phase.NONE:
            self.version += 1
            self.outbox.append(Rows(self.epoch, self.version, (_report(row),)))

    def remove_row(self, cid: int) -> None:
        """All members have freed the communicator, and have agreed on that in a collective: none may drop its row
        before, as others may not yet have started what this rank has.
        """
        row = self.rows.pop(cid)
        self.below -= row.seq < row.target

    def finish(self) -> None:
        """MPI_Finalize was entered (its collective on WORLD went), or the program ends without it."""
        self.threads = {0: Thread(State.FINISHED)}
        self.outbox.append(Done())

    # ---- what the control thread calls

    def receive(self, msg: ToRank) -> None:
        """Apply one message of the coordinator. What belongs to another epoch is dropped (a leftover of an aborted
        one)."""
        self.wake += 1
        if isinstance(msg, Intent):
            self.on_intent(msg.epoch)
        elif msg.epoch != self.epoch or self.phase is Phase.NONE:
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
        """Report all rows; then the threads, unless all are RUNNING, which is assumed of a rank that says nothing. What
        is left unsaid of an epoch that was begun again is in them."""
        self.outbox = [m for m in self.outbox if isinstance(m, Done)]
        self.phase, self.epoch, self.applied, self.needed, self.below, self.freezing = (
            Phase.INTENT,
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
            self.phase = Phase.RUN
            self._acknowledge()

    def on_target(self, cid: int, seq: int) -> None:
        """A row that's unknown here was freed by all: every member is at its last SEQ."""
        self._raise_target(cid, seq)
        self._acknowledge()

    def on_advance(self) -> None:
        self.needed = True
        self._acknowledge()

    def on_withdraw(self) -> None:
        self.needed = False
        self._acknowledge()

    def on_freeze(self, version: int) -> None:
        """Stop. The answer waits until no thread is in the lower half (C: short calls end, blocked loops leave). What
        others need of this rank's library for that it goes on getting until all are frozen."""
        self.applied += 1
        idle = not self.below and not self.needed and not self.inside and not self.disabled
        if self.phase is Phase.RUN and idle and version == self.version:
            self.phase = Phase.FROZEN
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
        if self.phase is Phase.FROZEN:
            self.phase = Phase.RUN
        self.freezing = False
        self._acknowledge()

    def on_resume(self) -> None:
        """Published, or aborted: back to the fast path. Parked and stopped threads wake, go on and set their state.

        A state BLOCKED_P2P that is left over is replaced or cleared by the loop itself; PARKED by the entry.
        """
        self.phase, self.needed, self.below, self.freezing = Phase.NONE, False, 0, False

    # ---- inside

    def _may_go(self, cid: int, thread: int) -> bool:
        if self.phase is not Phase.RUN:
            return self.phase is Phase.NONE
        if self.needed or not self.below:
            return self.needed
        if not self.threads:  # the usual case: no other thread is anywhere
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
        """Count the message and say so. A parked thread that may go now is woken, and reports by itself."""
        self.applied += 1
        self.version += 1
        self._report_state()

    def _become(self, thread: int, new: Thread) -> None:
        old = self.threads.get(thread, RUNNING)
        if new == old:
            return
        if State.IN_COLLECTIVE in (new.state, old.state):
            self.version += self.phase is not Phase.NONE
        if new is RUNNING:
            del self.threads[thread]
        else:
            self.threads[thread] = new
        if self.phase in (Phase.INTENT, Phase.RUN):
            self._report_state()

    def _report_state(self) -> None:
        threads = tuple(self.threads[k] for k in sorted(self.threads)) + (DISABLED,) * (self.disabled > 0)
        self.outbox.append(StateReport(self.epoch, self.version, self.applied, threads))


def _report(row: ClockRow) -> Row:
    return Row(row.cid, row.ggid, row.seq, row.members, row.handle, row.name)
