"""The protocol with one part removed, to test the tests: for each mutant, some program must detect the missing part.
Values of `broken`:

    by group       one SEQ for congruent communicators (the clock of "A Topological Sort Approach", section 4)
    not transitive a needed rank that is blocked asks nobody
    one state      a rank reports only one thread, as if it had no others
    any row        a rank below target lets all its threads enter
    deaf           frozen ranks make no progress for others
    flush inside   a flush is reported as a collective that isn't counted
    early drop     the row of a communicator, or of a persistent collective, is removed when it is freed
    counted error  a collective that fails on its arguments stays counted
    silent error   it is taken back, but the coordinator isn't told
    unrooted       a rank that forbids checkpoints at its target isn't needed
Wrong ranks and coordinators are defined here; wrong uses of a rank's clock are in the steps concerned (machine.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from .._state import ClockPhase, State
from ..controller import Controller
from ..messages import StateReport
from ..rank import RankClock


def clock(broken: str) -> type[RankClock]:
    """A rank's side."""
    return {"one state": _OneState, "any row": _AnyRow}.get(broken, RankClock)


def controller(broken: str, size: int) -> Controller:
    """The coordinator's side, for ``size`` ranks."""
    return _Unrooted(size) if broken == "unrooted" else Controller(size, transitive=broken != "not transitive")


class _OneState(RankClock):
    """One thread stands for all: one inside a collective before a parked one before a blocked one."""

    __slots__ = ()

    def _report_state(self) -> None:
        order = (State.IN_COLLECTIVE, State.PARKED, State.BLOCKED_P2P, State.FINISHED)
        first = sorted(self.threads.values(), key=lambda t: order.index(t.state))[:1]
        self.outbox.append(StateReport(self.epoch, self.version, self.applied, tuple(first)))


class _AnyRow(RankClock):
    """If the rank is below target on any row, all threads enter."""

    __slots__ = ()

    def _may_go(self, cid: int, thread: int) -> bool:
        return self.phase is ClockPhase.NONE or (self.phase is ClockPhase.RUN and (self.below > 0 or self.needed))


class _Unrooted(Controller):
    """A rank that forbids checkpoints is waited for, but ranks that block it are not asked to continue."""

    def _on_state(self, ranks: Sequence[int], msg: StateReport) -> None:
        super()._on_state(ranks, msg)
        for rank in ranks:
            self._needs.set_root(rank, self.ranks[rank].below > 0)
