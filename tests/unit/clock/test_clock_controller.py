"""The controller, driven by hand: its messages to the user, and what ends an epoch."""

from __future__ import annotations

import pytest

from manapy.clock import WORLD, ClockPhase, Controller, Decision, RankClock, Row, Stage, State, Thread, from_wire, ggid
from manapy.clock.messages import (
    Abort,
    Advance,
    Done,
    Freeze,
    Frozen,
    Intent,
    Raise,
    Retract,
    Rows,
    StateReport,
    Target,
    Targets,
    Thaw,
    Withdraw,
)
from manapy.clock.model.vectors import SCENARIOS, Scenario


def test_begin() -> None:
    c = Controller(2)
    assert c.begin(5) == [(0, Intent(5)), (1, Intent(5))]
    with pytest.raises(ValueError, match="pending"):
        c.begin(6)
    with pytest.raises(ValueError, match="not converged"):
        c.resume()
    assert [type(m) for _, m in c.abort("disk full")] == [Abort, Abort]
    assert c.failure == "disk full" and c.abort("again") == []
    with pytest.raises(ValueError, match="not greater"):
        c.begin(5)


def test_names_the_computing_rank() -> None:
    s = Scenario(3)
    rows = s.comm(1, 2)
    for r in (1, 2):
        s.clocks[r].rows[rows].name = "rows"
    s.enter(1, rows)
    s.request()
    assert s.controller.status() == [f"rank {r} has not answered the request" for r in range(3)]
    s.settle()
    assert s.controller.status() == [
        "rank 2 has computed below target; rank 1 waits for it on communicator 'rows'",
        "rank 1 is inside a collective on communicator 'rows'",
    ]
    assert s.controller.laggards() == [(2, rows, [1])]


def test_names_who_is_asked() -> None:
    s = Scenario(4)
    a, b = s.comm(0, 1), s.comm(2, 3)
    s.enter(0, a)
    s.request()
    s.settle()
    s.enter(2, b, Decision.PARK)
    s.block(1, 2)
    s.settle()
    assert "rank 2 (parked) is asked to go on; rank 1 waits for a message of it" in s.controller.status()
    assert any("rank 1 is below target and waits for rank 2; rank 0 waits" in line for line in s.controller.status())


def test_target_raised_behind_the_freeze() -> None:
    """All ranks answer FROZEN, but one has sent a RAISE before. Another rank is now below target, so this is no safe
    state."""
    c = Controller(2)
    c.begin(1)
    for r in range(2):
        c.on_message(r, Rows(1, 1, (Row(WORLD, ggid((0, 1)), 3, (0, 1)),)))
    for r in range(2):
        out = c.on_message(r, StateReport(1, 2, 2))
    assert [type(m) for _, m in out] == [Freeze, Freeze]
    assert c.on_message(0, Frozen(1, 2)) == []
    assert c.on_message(1, Raise(1, 2, WORLD, 4)) == [(0, Target(1, WORLD, 4))]
    assert c.on_message(1, Frozen(1, 2)) == [(0, Thaw(1)), (1, Thaw(1))]
    assert not c.converged and c.laggards() == [(0, WORLD, [1])]


def test_promised_call_before_the_targets() -> None:
    """A RAISE may come before all ROWS have come (RankClock.promise). It then counts as that rank's SEQ, and no rank
    stays below target for ever."""
    c = Controller(2)
    c.begin(1)
    rows = [Rows(1, 1, (Row(WORLD, ggid((0, 1)), seq, (0, 1)),)) for seq in (3, 4)]
    assert c.on_message(0, rows[0]) == c.on_message(0, Raise(1, 2, WORLD, 4)) == []
    assert c.on_message(1, rows[1]) == [(r, Targets(1, ())) for r in range(2)]
    assert not c.laggards()
    parked = (Thread(State.PARKED, WORLD),)
    assert c.on_message(0, StateReport(1, 3, 2, parked)) == []
    assert c.on_message(1, StateReport(1, 3, 2, parked)) == [(r, Freeze(1, 3)) for r in range(2)]


def test_retracted_call_begins_anew() -> None:
    """This holds in every stage: the reports of the old epoch no longer count."""
    c = Controller(2)
    c.begin(1)
    for epoch in (1, 2):
        for r in range(2):
            c.on_message(r, Rows(epoch, 1, (Row(WORLD, ggid((0, 1)), 3 + (epoch == 1), (0, 1)),)))
        assert c.on_message(0, Retract(epoch, 2)) == [(r, Intent(epoch + 1)) for r in range(2)]
        assert c.on_message(1, StateReport(epoch, 1, 2)) == [] and c.epoch == epoch + 1 and c.stage is Stage.INTENT
    assert c.counters.retracts == 2 and c.counters.sent == 3 * 2 + 2 * 2


def test_lost_and_done() -> None:
    c = Controller(3)
    c.begin(1)
    assert [r for r, _ in c.lost(1)] == [0, 2]
    assert c.failure == "rank 1 is lost" and not c.pending
    c.begin(2)
    assert len(c.on_message(0, Done())) == 3
    assert c.failure == "the job is finishing"
    with pytest.raises(ValueError, match="finishing"):
        c.begin(3)


def test_old_messages_are_dropped() -> None:
    c = Controller(1)
    assert c.on_message(0, Raise(1, 1, WORLD, 3)) == []
    c.begin(2)
    assert c.on_message(0, Raise(1, 1, WORLD, 3)) == [] and c.counters.received == 0


@pytest.mark.parametrize("other", [Row(WORLD, 1, 0, (1, 0)), Row(7, 1, 0, (0,))])
def test_collision(other: Row) -> None:
    c = Controller(2)
    c.begin(1)
    c.on_message(0, Rows(1, 1, (Row(WORLD, 1, 0, (0, 1)),)))
    out = c.on_message(1, Rows(1, 1, (other,)))
    assert {type(m) for _, m in out} == {Abort} and c.failure is not None and c.stage is Stage.IDLE


def test_unknown_row() -> None:
    c = Controller(1)
    c.begin(1)
    assert {type(m) for _, m in c.on_message(0, Raise(1, 1, WORLD, 3))} == {Abort}
    assert c.failure is not None and "not reported" in c.failure


def test_rank_without_mpi() -> None:
    """A program that never loads MPI has no row at all."""
    c = Controller(2)
    c.begin(1)
    for r in range(2):
        out = c.on_message(r, Rows(1, 1, ()))
    for r in range(2):
        out = c.on_message(r, StateReport(1, 2, 2))
    assert {m.kind for _, m in out} == {"FREEZE"}


def test_world_counts_for_ranks_without_row() -> None:
    """Rank 0 is inside MPI_Init, and rank 1 has not loaded MPI yet: rank 1 is waited for."""
    c = Controller(2)
    c.begin(1)
    c.on_message(0, Rows(1, 1, (Row(WORLD, ggid((0, 1)), 1, (0, 1)),)))
    c.on_message(1, Rows(1, 1, ()))
    assert c.laggards() == [(1, WORLD, [0])]


def test_stall_lets_a_parked_rank_take_one_step() -> None:
    s = Scenario(3)
    a = s.comm(0, 1)
    s.enter(0, a)
    s.request()
    s.settle()
    s.enter(2, WORLD, Decision.PARK)
    s.settle()
    out = s.controller.stall()
    assert out == [(2, Advance(1))]
    s._down += out
    s.settle()
    s.enter(2, WORLD)
    s.deliver()
    assert (2, Withdraw(1)) in s._down
    assert s.controller.counters.stalls == 1


def test_pingpong_at_target_does_not_hinder_the_freeze() -> None:
    """Ranks at target block and unblock all the time: FREEZE on the version sent is still accepted."""
    s = Scenario(2)
    s.request()
    s.deliver()
    for _ in range(5):
        s.block(0, 1)
        s.deliver()
        s.unblock(0)
    s.settle()
    assert s.controller.converged and s.controller.counters.freezes == 1


def test_restart_clock_of_a_fresh_rank() -> None:
    clock = RankClock(0, (0, 1))
    assert clock.enter_collective(WORLD) is Decision.GO and clock.outbox == []


def test_lists_of_rows_in_several_messages() -> None:
    """The whole list counts as one message. No rank proceeds before the list is complete."""
    s = Scenario(2)
    comms = [s.comm(0, 1) for _ in range(2500)]
    for cid in comms:
        s.enter(0, cid, blocking=False)
    s.request()
    s.deliver()
    lists = [from_wire(line) for line in s.steps[0][-1]["outbox"]]
    assert [m.more for m in lists] == [True] * (len(lists) - 1) + [False] and len(lists) > 5  # type: ignore[union-attr]
    assert sum(len(m.rows) for m in lists) == 2501  # type: ignore[union-attr]
    targets = [m for r, m in s._down if r == 1]
    assert [m.more for m in targets] == [True, True, False]  # type: ignore[union-attr]
    assert sum(len(m.rows) for m in targets) == 2500  # type: ignore[union-attr]
    s.clocks[1].receive(targets[0])
    assert s.clocks[1].phase is ClockPhase.INTENT
    s.settle()
    for cid in comms:
        s.enter(1, cid, blocking=False)
    s.end()


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_control_messages(name: str) -> None:
    """Each scenario runs to its end, and all messages sent to a rank have been answered."""
    play, size = SCENARIOS[name]
    s = Scenario(size)
    play(s)
    s.settle()
    assert s.controller.counters.sent >= size
