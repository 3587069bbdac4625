"""Verdicts on jobs that are stuck, and on jobs that only look stuck."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds import rounds
from traces import SECOND, SPIN, STEP, Builder, Model, Step, allreduce, barrier, compute, recv, send, ssend

from manapy.trace.hang import network
from manapy.trace.hang.hang import verdicts
from manapy.trace.hang.timeouts import Memory
from manapy.trace.host.runqueue import Delays
from manapy.trace.model import windows
from manapy.trace.model.events import ANY, OPEN, PROC_NULL, STARTS, Communicator, Flag, Op, Refusal, Trace
from manapy.trace.model.verdict import Cause, State, Verdict


def hung(programs: list[list[Step]], **more: object) -> list[Verdict]:
    """Return the verdicts on a model that must hang."""
    model = Model(programs, **more)  # type: ignore[arg-type]
    assert not model.run()
    return verdicts(model.trace())


def only(found: list[Verdict]) -> Verdict:
    """Return the only verdict."""
    assert len(found) == 1, [v.sentence for v in found]
    return found[0]


def process(trace: Trace, rank: int, state: str, share: float = 0.0) -> Trace:
    trace.ranks[rank] = replace(trace.ranks[rank], process=state, cpu_share=share)
    return trace


ROUND = [compute(10 * STEP), allreduce()]


def test_a_job_that_ends_is_healthy() -> None:
    model = Model([ROUND * 4, ROUND * 4])
    assert model.run()
    assert only(verdicts(model.trace())).state is State.HEALTHY


def test_nothing_recorded_says_nothing() -> None:
    job = Builder(2)
    for generation, says in ((0, "no rank has called MPI, "), (1, "no rank has called MPI since the restart, ")):
        job.ranks[0] = replace(job.ranks[0], generation=generation)
        found = only(verdicts(job.trace(0)))
        assert found.state is State.UNKNOWN and found.sentence.startswith(says), found
    del job.ranks[1]
    found = only(verdicts(job.trace(0)))
    assert found.state is State.UNKNOWN and found.sentence == "nothing was recorded"


def test_a_rank_that_spins_is_named_and_its_victims_are_not() -> None:
    found = only(hung([ROUND * 8, ROUND * 5 + [SPIN], ROUND * 8, ROUND * 8], hosts=2))
    assert (found.state, found.cause, found.rank, found.detail) == (State.LATE, Cause.COMPUTE, 1, "spinning")
    assert (
        "rank 1 (node0) is late" in found.sentence
        and "has not called MPI_Allreduce" in found.sentence
        and "busy in user code" in found.sentence
    )
    assert found.confidence > 0.9


def test_victims_of_victims_lead_to_the_culprit() -> None:
    found = only(hung([[ssend(1)], [recv(2), recv(0)], [recv(3), ssend(1)], [SPIN]]))
    assert (found.rank, found.peer, found.call) == (3, 2, "MPI_Send to rank 2, tag 0")


def test_several_at_once() -> None:
    halves = [(0, 1), (2, 3)]
    programs = [[allreduce(1 + r // 2)] * (3 if r % 2 else 6) + [SPIN] * (r % 2) for r in range(4)]
    assert {v.rank for v in hung(programs, comms=halves)} == {1, 3}


def test_no_verdict_before_the_expected_time_and_one_after_it() -> None:
    loop = [compute(400 * STEP), allreduce()]
    model = Model([loop * 9, loop * 8 + [SPIN]])
    model.run()
    for later, state in (
        (300 * STEP, State.HEALTHY),
        (500 * STEP, State.LATE),
    ):  # times count from the victim's arrival, 400 ms after the other rank's last call
        assert only(verdicts(model.trace(later))).state is state


def test_what_it_does_now_and_then_is_expected() -> None:
    rounds = [*[compute(STEP), allreduce()] * 10, compute(2 * SECOND), allreduce()] * 3
    model = Model([rounds + [allreduce()], rounds + [SPIN]])
    model.run()
    assert only(verdicts(model.trace(3 * SECOND))).state is State.HEALTHY
    assert only(verdicts(model.trace(5 * SECOND))).rank == 1


def test_a_cycle_of_receives_is_a_deadlock_and_nobody_is_guilty_alone() -> None:
    found = only(hung([[recv(1), send(1)], [recv(2), send(0)], [recv(0), send(1)], [recv(0)]]))
    assert (found.cause, found.rank, found.detail) == (Cause.DEADLOCK, None, "0 -> 1 -> 2 -> 0")
    assert "1 more rank waits behind these" in found.evidence


def test_two_deadlocks() -> None:
    found = hung([[recv(1)], [recv(0)], [ssend(3)], [ssend(2)]])
    assert [(v.cause, v.detail) for v in found] == [(Cause.DEADLOCK, "0 -> 1 -> 0"), (Cause.DEADLOCK, "2 -> 3 -> 2")]


def test_a_knot_between_a_message_and_a_collective() -> None:
    found = only(hung([[ssend(1), barrier()], [barrier(), recv(0)], [barrier()]]))
    assert found.cause is Cause.DEADLOCK and "MPI_Barrier" in found.sentence and "MPI_Ssend to rank 1" in found.sentence


def test_the_receive_that_was_left_out_this_time_is_found_by_habit() -> None:
    def loop(rank: int, rounds: int) -> list[Step]:
        return [ssend(1, 5), allreduce()] * rounds if rank == 0 else [recv(0, 5), allreduce()] * rounds

    found = only(hung([loop(0, 30), [*loop(1, 20), allreduce(), *loop(1, 9)]]))
    assert (found.cause, found.rank, found.peer, found.call) == (Cause.MISSING, 1, 0, "MPI_Recv from rank 0, tag 5")


def test_a_left_out_receive_and_then_a_spin() -> None:
    cycle = [recv(0, 5), compute(STEP), send(0, 6), allreduce()]
    other = [ssend(1, 5), recv(1, 6), allreduce()]
    found = only(hung([other * 20, [*cycle * 12, send(0, 6), SPIN]]))
    assert (found.cause, found.rank, found.call, found.detail) == (
        Cause.MISSING,
        1,
        "MPI_Recv from rank 0, tag 5",
        "spinning",
    )


def test_different_collectives_at_one_place() -> None:
    found = only(hung([[allreduce()], [allreduce()], [barrier()], [allreduce()]]))
    assert (found.cause, found.rank) == (Cause.MISMATCH, 2)
    assert "called MPI_Barrier" in found.sentence and "others called MPI_Allreduce" in found.sentence


def test_of_two_that_disagree_none_is_guilty_alone() -> None:
    found = only(hung([[allreduce()], [barrier()]]))
    assert (found.cause, found.rank) == (Cause.MISMATCH, None)
    assert found.sentence.startswith("rank 1 and rank 0 don't agree: rank 1 called MPI_Barrier"), found.sentence
    found = only(hung([[allreduce()], [barrier()], [allreduce()], [barrier()]]))
    assert found.sentence.startswith("ranks 1, 3 and ranks 0, 2 don't agree: "), found.sentence


def test_of_two_that_have_both_left_out_a_call_none_is_guilty_alone() -> None:
    """Both have left out an Allreduce, together and long ago. This does not show which rank is wrong now."""
    both = [allreduce(), barrier()] * 6 + [barrier()] + [allreduce(), barrier()] * 2
    found = only(hung([[*both, allreduce()], [*both, barrier()]]))
    assert (found.cause, found.rank) == (Cause.MISMATCH, None), found.sentence


def test_different_roots() -> None:
    job = Builder(3)
    for rank, root in enumerate((0, 0, 1)):
        job.call(rank, Op.BCAST, SECOND, peer=root)
    found = only(verdicts(job.trace(9 * SECOND)))
    assert (found.cause, found.rank) == (Cause.MISMATCH, 2)


def test_tags_that_do_not_agree() -> None:
    found = only(hung([[recv(1, 5), send(1, 1)], [send(0, 6), recv(0, 1)]]))
    assert found.cause is Cause.MISMATCH and "tag 5" in found.sentence and "tag 6" in found.sentence


def test_a_rank_that_has_ended() -> None:
    model = Model([ROUND * 3, ROUND * 2])
    model.run()
    model.builder.ranks[1] = replace(model.builder.ranks[1], ended=True, process="dead")
    model.builder.call(1, Op.FINALIZE, 100 * STEP, 101 * STEP, comm=-1)
    found = only(verdicts(model.trace()))
    assert (found.cause, found.rank) == (Cause.MISSING, 1) and "has finalized MPI" in found.sentence


def test_a_rank_that_went_on_to_finalize() -> None:
    model = Model([ROUND * 3, ROUND * 2, ROUND * 3])
    model.run()
    model.builder.call(1, Op.FINALIZE, 40 * STEP, context=9)
    found = only(verdicts(model.trace()))
    assert (found.cause, found.rank) == (Cause.MISSING, 1) and "went on to MPI_Finalize" in found.sentence


@pytest.mark.parametrize(
    ("state", "cause"), [("dead", Cause.DEAD), ("Z", Cause.DEAD), ("T", Cause.STOPPED), ("t", Cause.STOPPED)]
)
def test_processes_that_are_gone_or_stopped_whatever_call_they_are_in(state: str, cause: Cause) -> None:
    model = Model([ROUND * 3, [*ROUND * 2, compute(5 * STEP), recv(0)], ROUND * 3])
    model.run()
    found = only(verdicts(process(model.trace(), 1, state)))
    assert (found.cause, found.rank) == (cause, 1)


def test_a_process_stopped_in_a_collective_that_all_have_entered() -> None:
    job = Builder(3)
    for rank in range(3):
        job.call(rank, Op.ALLREDUCE, rank * STEP)
    found = only(verdicts(process(job.trace(60 * SECOND), 1, "T")))
    assert (found.cause, found.rank) == (Cause.STOPPED, 1)


def test_who_does_not_start_a_persistent_collective() -> None:
    job = Builder(3)
    for rank in range(3):
        job.call(rank, Op.ALLREDUCE, 0, 1, request=9, flags=Flag.PERSISTENT)
        for i in range(1, 6 if rank == 1 else 7):
            job.call(rank, Op.START, i * STEP, i * STEP + 1, request=9, flags=Op.ALLREDUCE << STARTS, context=1, tag=i)
            job.call(rank, Op.WAIT, i * STEP + 2, OPEN if i == 6 else i * STEP + 9, request=9)
    found = only(verdicts(job.trace(60 * SECOND)))
    assert (found.cause, found.rank) == (Cause.COMPUTE, 1)
    assert (
        "has not called MPI_Start of MPI_Allreduce_init on MPI_COMM_WORLD's group (call 1 there, start 6)"
        in found.sentence
    )


def test_a_waitall_that_waits_for_somebody_says_nothing_of_its_transfers() -> None:
    job = Builder(3)
    for peer in (1, 2):
        job.call(0, Op.RECV, STEP, STEP + 1, peer=peer, tag=3, request=peer, flags=Flag.NONBLOCKING)
    for peer in (1, 2):
        job.call(0, Op.WAITALL, 2 * STEP, OPEN, request=peer, flags=Flag.MORE if peer == 1 else 0)
    job.call(1, Op.BARRIER, 0, 1)
    job.call(2, Op.SEND, STEP, 2 * STEP, peer=0, tag=3)
    assert only(verdicts(job.trace(60 * SECOND))).rank == 1


def locked(job: Builder, rank: int, target: int, at: int, *, held: bool, window: int = 0, how: int = 1) -> None:
    job.call(rank, Op.WIN_LOCK, at, at + 1 if held else OPEN, peer=target, comm=window, tag=how)


def test_a_lock_waits_for_who_has_it() -> None:
    job = Builder(3)
    locked(job, 1, 0, STEP, held=True)
    locked(job, 0, 0, 2 * STEP, held=False)
    locked(job, 2, 0, 3 * STEP, held=False)
    found = only(verdicts(job.trace(60 * SECOND)))
    assert (found.cause, found.rank) == (
        Cause.COMPUTE,
        1,
    ) and "has not called MPI_Win_unlock of rank 0" in found.sentence
    job.call(1, Op.WIN_UNLOCK, 4 * STEP, 5 * STEP, peer=0)
    assert only(verdicts(job.trace(SECOND))).state is State.HEALTHY


@pytest.mark.parametrize(
    ("held", "asked", "waits"),
    [
        (1, 1, True),
        (1, windows.SHARED, True),
        (windows.SHARED, 1, True),
        (windows.SHARED, windows.SHARED, False),
        (windows.UNCHECKED, 1, False),
        (1, windows.UNCHECKED, False),
    ],
)
def test_a_lock_waits_only_for_locks_that_exclude_it(held: int, asked: int, waits: bool) -> None:
    """The rank that has the lock waits for the one that asks. Two shared locks are held at the same time."""
    job = Builder(3)
    window = job.comm(0, 1, 2)
    job.ranks[2] = replace(job.ranks[2], doing="computes")  # its library makes no progress, so the lock takes longer
    for rank in range(3):
        job.call(rank, Op.BARRIER, 0, STEP)
    locked(job, 0, 2, 2 * STEP, held=True, window=window, how=held)
    job.call(0, Op.RECV, 4 * STEP, peer=1, tag=1)
    locked(job, 1, 2, 4 * STEP, held=False, window=window, how=asked)
    found = verdicts(job.trace(60 * SECOND))
    assert (
        (State.HUNG, Cause.DEADLOCK) == (found[0].state, found[0].cause)
        if waits
        else (State.HUNG not in {v.state for v in found})
    ), [v.sentence for v in found]


def test_locks_taken_crosswise_are_a_knot() -> None:
    job = Builder(3)
    windows = job.comm(0, 1, 2), job.comm(0, 1, 2)
    for rank in range(2):
        locked(job, rank, 2, STEP, held=True, window=windows[rank])
        locked(job, rank, 2, 2 * STEP, held=False, window=windows[1 - rank])
    job.call(2, Op.BARRIER, 0, OPEN)
    found = only(verdicts(job.trace(60 * SECOND)))
    assert found.cause is Cause.DEADLOCK and "deadlock of ranks 0, 1" in found.sentence


@pytest.mark.parametrize(("inside", "polls"), [(False, False), (True, False), (False, True)])
def test_a_flush_waits_for_a_target_outside_mpi_only(inside: bool, polls: bool) -> None:
    job = Builder(2)
    job.call(0, Op.WIN_FLUSH, STEP, OPEN, peer=1)
    job.call(1, Op.RECV, 0, OPEN if inside else STEP, peer=0, tag=1)
    if not inside:
        job.call(0, Op.SEND, 0, STEP, peer=1, tag=1)
        job.rows[0, 0].reverse()
    if polls:
        job.ranks[1].polled_ns = 60 * SECOND
    found = only(verdicts(job.trace(60 * SECOND)))
    assert (
        found.rank == 1 and "in which MPI_Win_flush of rank 1 on the window of ranks 0, 1 could go on" in found.sentence
    ) is not (inside or polls)


ACCESS, EXPOSURE = (Op.WIN_START, Op.WIN_COMPLETE), (Op.WIN_POST, Op.WIN_WAIT)


def epochs(lost: bool) -> Builder:
    """Return a job in which rank 0 has accessed the memory of ranks 1 and 2 once, and begins again. lost: only the last
    two records of rank 1 are left."""
    job = Builder(3)
    for i, op in enumerate(ACCESS):
        for target in (1, 2):
            job.call(
                0, op, (2 * i + 2) * STEP, (2 * i + 3) * STEP, peer=target, context=1, flags=Flag.MORE * (target == 1)
            )
    for target in (1, 2):
        for i, op in enumerate(EXPOSURE):
            job.call(target, op, (4 * i + 1) * STEP, (4 * i + 1) * STEP + 1, peer=0, context=1)
        job.call(target, Op.PROBE, 6 * STEP, 6 * STEP + 1, peer=0)
        job.call(target, Op.PROBE, 7 * STEP, 7 * STEP + 1, peer=0)
    if lost:
        job.lose(1, 2)
    return job


def begin(job: Builder, op: Op) -> None:
    for target in (1, 2):
        job.call(0, op, 8 * STEP, OPEN, peer=target, context=2, flags=Flag.MORE * (target == 1))


@pytest.mark.parametrize("op", ACCESS)
def test_an_access_waits_for_the_targets_that_have_not_posted(op: Op) -> None:
    job = epochs(lost=False)
    begin(job, op)
    job.call(2, Op.WIN_POST, 8 * STEP, 9 * STEP, peer=0, context=2)
    job.call(2, Op.WIN_WAIT, 10 * STEP, OPEN, peer=0, context=2)
    found = only(verdicts(job.trace(60 * SECOND)))
    assert (found.cause, found.rank, found.peer) == (
        Cause.COMPUTE,
        1,
        0,
    ) and "it has not called MPI_Win_post for rank 0 on the window of ranks 0, 1, 2" in found.sentence


@pytest.mark.parametrize("posted", [False, True])
def test_whether_a_rank_whose_records_are_lost_has_posted_is_known_from_the_number_of_its_next_post_only(
    posted: bool,
) -> None:
    job = epochs(lost=True)
    if posted:
        job.call(1, Op.WIN_POST, 7 * STEP + 2, 7 * STEP + 3, peer=0, context=1)
    begin(job, Op.WIN_START)
    job.call(2, Op.WIN_POST, 8 * STEP, 9 * STEP, peer=0, context=2)
    job.call(2, Op.WIN_WAIT, 10 * STEP, OPEN, peer=0, context=2)
    found = only(verdicts(job.trace(60 * SECOND)))
    assert (found.state, found.rank) == ((State.LATE, 1) if posted else (State.UNKNOWN, None))


@pytest.mark.parametrize("started", [False, True])
def test_an_exposure_waits_for_the_origin_to_complete(started: bool) -> None:
    job = epochs(lost=False)
    if started:
        job.call(0, Op.WIN_START, 8 * STEP, 9 * STEP, peer=1, context=2)
    job.call(1, Op.WIN_POST, 8 * STEP, 8 * STEP + 1, peer=0, context=2)
    job.call(1, Op.WIN_WAIT, 9 * STEP, OPEN, peer=0, context=2)
    found = only(verdicts(job.trace(60 * SECOND)))
    call = "MPI_Win_complete for rank 1 on the window"
    assert (found.cause, found.rank) == (
        Cause.COMPUTE,
        0,
    ) and f"has not called {call if started else f'MPI_Win_start and {call}'}" in found.sentence


def test_accesses_crosswise_before_any_post_are_a_knot() -> None:
    job = Builder(2)
    for rank in range(2):
        job.call(rank, Op.WIN_START, STEP, OPEN, peer=1 - rank, context=1)
    found = only(verdicts(job.trace(60 * SECOND)))
    assert found.cause is Cause.DEADLOCK and "MPI_Win_start with rank" in found.sentence


def test_asleep_or_starved() -> None:
    model = Model([ROUND * 8, ROUND * 5 + [SPIN]])
    model.run()
    assert "asleep" in only(verdicts(process(model.trace(), 1, "S"))).sentence
    found = only(verdicts(process(model.trace(), 1, "R", 0.02)))
    assert found.detail == "starved" and "2%" in found.sentence


def test_waiting_for_a_processor_is_not_held_against_a_rank() -> None:
    """0.6 s outside MPI is too long, unless the rank had no processor for most of that time. A rank that never gets a
    processor is stuck."""
    model = Model([ROUND * 8, ROUND * 5 + [SPIN]])
    model.run()
    trace = model.trace()
    last = int(trace.events["exit"][trace.events["rank"] == 1].max())

    def judged(after: int, waited: int) -> Verdict:
        moments = np.array([0, last, last + after])
        return only(verdicts(replace(trace, now=last + after), delays=Delays({1: (moments, np.array([0, 0, waited]))})))

    assert judged(600 * STEP, 0).cause is Cause.COMPUTE
    assert judged(600 * STEP, 400 * STEP).state is State.HEALTHY
    assert judged(1200 * STEP, 400 * STEP).cause is Cause.COMPUTE
    found = judged(10 * SECOND, 10 * SECOND - 100 * STEP)
    assert (found.state, found.cause, found.rank) == (State.LATE, Cause.STARVED, 1)


def test_a_transfer_between_ranks_without_a_processor_is_not_the_networks_fault() -> None:
    job = Builder(2)
    for rank in range(2):
        for i in range(5):
            job.call(rank, Op.ALLREDUCE, i * SECOND, i * SECOND + STEP)
        job.call(rank, Op.ALLREDUCE, 5 * SECOND + rank)
    trace = job.trace(6 * SECOND)
    moments = np.array([0, 5 * SECOND, 6 * SECOND])
    assert only(verdicts(trace, delays=Delays({1: (moments, np.array([0, 0, 800 * STEP]))}))).state is State.HEALTHY
    assert only(verdicts(trace, delays=Delays({1: (moments, np.array([0, 0, 100 * STEP]))}))).cause is Cause.NETWORK


@pytest.mark.parametrize(("before", "cause"), [(PROC_NULL, Cause.MISMATCH), (1, Cause.MISSING)])
def test_a_send_to_no_rank_where_another_rank_waits_for_it(before: int, cause: Cause) -> None:
    """If the rank has used this tag for the waiting rank before, then MPI_PROC_NULL was meant for somebody else."""
    job = Builder(2)
    job.call(0, Op.SEND, STEP, 2 * STEP, peer=before, tag=7)
    job.call(0, Op.SEND, 3 * STEP, 4 * STEP, peer=PROC_NULL, tag=7)
    job.call(0, Op.FINALIZE, 5 * STEP)
    if before == 1:
        job.call(1, Op.RECV, STEP, 2 * STEP, peer=0, tag=7)
    job.call(1, Op.RECV, 3 * STEP, peer=0, tag=7)
    found = only(verdicts(job.trace(60 * SECOND)))
    assert (found.state, found.cause, found.rank) == (State.HUNG, cause, 0)
    assert ("it made MPI_Send to no rank, tag 7" in found.sentence) == (cause is Cause.MISMATCH)


def test_a_large_message_may_take_longer() -> None:
    """At 50 MB/s, 1 GB takes 20 s."""
    job = Builder(2)
    job.call(0, Op.SSEND, STEP, peer=1, tag=1, bytes=10**9)
    job.call(1, Op.RECV, STEP, peer=0, tag=1, bytes=10**9)
    assert only(verdicts(job.trace(19 * SECOND))).state is State.HEALTHY
    found = only(verdicts(job.trace(22 * SECOND)))
    assert (found.state, found.cause) == (State.LATE, Cause.NETWORK)


def test_a_fence_that_all_have_entered_may_move_anything() -> None:
    """The operations on a window are not recorded. Only work requests that do not complete are a proof."""
    job = Builder(2, hosts=2)
    window = job.comm(0, 1)
    for rank in range(2):
        job.call(rank, Op.WIN_FENCE, STEP, comm=window, context=1)
    found = only(verdicts(job.trace(60 * SECOND)))
    assert found.state is State.UNKNOWN and "how much the operations on the window move" in found.sentence
    found = only(verdicts(job.trace(60 * SECOND), probe=network.by_command("exit 1")))
    assert (found.state, found.cause) == (State.HUNG, Cause.NETWORK)


def test_all_have_entered_and_it_does_not_end_is_the_network() -> None:
    job = Builder(4, hosts=2)
    for rank in range(4):
        for i in range(5):
            job.call(rank, Op.ALLREDUCE, i * SECOND, i * SECOND + STEP)
        job.call(rank, Op.ALLREDUCE, 5 * SECOND + rank)
    assert only(verdicts(job.trace(5 * SECOND + 400 * STEP))).state is State.HEALTHY
    found = only(verdicts(job.trace(6 * SECOND)))
    assert found.cause is Cause.NETWORK and "all 4 ranks have entered" in found.sentence
    assert found.state is State.LATE  # only its duration shows the fault


@pytest.mark.parametrize(
    ("command", "state", "cause", "says"),
    [
        (
            "test $MANAPY_FROM-$MANAPY_TO = node0-node1; exit 1",
            State.HUNG,
            Cause.NETWORK,
            "a probe from node0 to node1 did not come back",
        ),
        ("test $MANAPY_FROM-$MANAPY_TO = node0-node1", State.LATE, Cause.NONE, "a probe from node0 to node1 came back"),
        ("no-such-command", State.LATE, Cause.NETWORK, ""),
    ],
)
def test_a_network_under_suspicion_is_probed(command: str, state: State, cause: Cause, says: str) -> None:
    job = Builder(4, hosts=2)
    for rank in range(4):
        job.call(rank, Op.BARRIER, SECOND + rank)
    found = only(verdicts(job.trace(20 * SECOND), probe=network.by_command(command)))
    assert found.state is state and found.cause is cause
    assert [text for text in found.evidence if "probe" in text] == ([says] if says else [])
    assert ("probes find the network working" in found.sentence) == (cause is Cause.NONE)


def test_a_probe_is_made_between_hosts_only_and_its_answer_holds_for_a_while(tmp_path: Path) -> None:
    job = Builder(4, hosts=2)
    for rank in range(2):  # of one host
        job.call(rank, Op.SEND if rank else Op.RECV, SECOND, peer=1 - rank, tag=1)
    ask = network.by_command(f"echo >> {tmp_path}/asked")
    assert (
        only(verdicts(job.trace(20 * SECOND), probe=ask)).cause is Cause.NETWORK and not (tmp_path / "asked").exists()
    )
    assert ask("node0", "node1") and ask("node0", "node1") and (tmp_path / "asked").read_text() == "\n"


def queue_pair(job: Builder, rank: int, second: float, pair: int, peer: int, left: int, posted: int = 90) -> None:
    at = round(second * SECOND)
    job.call(rank, Op.RDMA_QP, at, at, thread=1, comm=pair, peer=peer, request=posted, context=posted - left)


def stalled_over_rdma(collective: bool) -> Builder:
    """Ranks 0 and 1 are in a transfer from second 2 on. Their queue pairs are 71 and 81."""
    job = Builder(3)
    for rank in range(3):
        job.call(rank, Op.BARRIER, STEP, 2 * STEP)
    if collective:
        both = job.comm(0, 1)
        for rank in range(2):
            job.call(rank, Op.BARRIER, 2 * SECOND + rank, comm=both)
    else:
        job.call(0, Op.SSEND, 2 * SECOND, peer=1, tag=0)
        job.call(1, Op.RECV, 2 * SECOND + 1, peer=0, tag=0)
    queue_pair(job, 1, 1.0, 81, 71, 0)
    return job


@pytest.mark.parametrize("collective", [True, False])
def test_work_requests_in_flight_are_evidence(collective: bool) -> None:
    job = stalled_over_rdma(collective)
    queue_pair(job, 0, 2.1, 71, 81, 26)
    found = only(verdicts(job.trace(20 * SECOND)))
    assert found.state is State.HUNG and found.cause is Cause.NETWORK
    assert any("queue pair 71: 26 work requests" in e for e in found.evidence)


@pytest.mark.parametrize(
    "records",
    [
        [(2.1, 72, 91, 26)],  # to another rank
        [(1.0, 71, 81, 26)],  # of an earlier transfer
        [(0.1, 71, 81, 26), (1.0, 71, 81, 0), (2.1, 71, 81, 26)],  # so many stayed in flight before
    ],
)
@pytest.mark.parametrize("collective", [True, False])
def test_work_requests_of_something_else_are_no_evidence(
    collective: bool, records: list[tuple[float, int, int, int]]
) -> None:
    job = stalled_over_rdma(collective)
    queue_pair(job, 2, 1.0, 91, 72, 0)
    for record in records:
        queue_pair(job, 0, *record)
    (found,) = (verdict for verdict in verdicts(job.trace(20 * SECOND)) if verdict.cause is Cause.NETWORK)
    assert found.state is State.LATE and not any("work requests" in e for e in found.evidence)


def test_a_message_whose_receive_is_posted_but_whose_sender_computes() -> None:
    job = Builder(2)
    job.call(0, Op.SEND, SECOND, SECOND + STEP, peer=1, tag=0, request=1, flags=Flag.NONBLOCKING)
    job.call(1, Op.RECV, SECOND, peer=0, tag=0)
    found = only(verdicts(job.trace(30 * SECOND)))
    assert (found.cause, found.rank) == (Cause.COMPUTE, 0) and "has posted" in found.sentence


def test_waitall_needs_all_and_waitany_one() -> None:
    def job(op: Op) -> Builder:
        job = Builder(3)
        for peer in (1, 2):
            job.call(0, Op.RECV, STEP, 2 * STEP, peer=peer, tag=0, request=peer, flags=Flag.NONBLOCKING)
        for peer in (1, 2):
            job.call(0, op, 3 * STEP, request=peer, flags=Flag.MORE if peer == 1 else 0)
        job.call(1, Op.RECV, 3 * STEP, peer=0, tag=0)  # waits for rank 0
        job.call(2, Op.SEND, STEP, 2 * STEP, peer=1, tag=9)  # rank 2 is outside MPI afterwards
        job.ranks[2] = replace(job.ranks[2], process="S", cpu_share=0.0)
        return job

    assert [v.cause for v in verdicts(job(Op.WAITALL).trace(60 * SECOND))] == [Cause.DEADLOCK, Cause.COMPUTE]
    found = only(verdicts(job(Op.WAITANY).trace(60 * SECOND)))
    assert (found.cause, found.rank) == (Cause.COMPUTE, 2)


def test_a_receive_from_anybody_waits_for_anybody() -> None:
    job = Builder(3)
    job.call(0, Op.RECV, STEP, peer=ANY, tag=0, flags=Flag.WILDCARD)
    job.call(1, Op.RECV, STEP, peer=0, tag=0)
    job.call(2, Op.RECV, STEP, peer=1, tag=0)
    assert only(verdicts(job.trace(60 * SECOND))).cause is Cause.DEADLOCK
    job.call(2, Op.SEND, STEP, 2 * STEP, peer=0, tag=0)  # the message is on its way: rank 0 can go on
    job.rows[2, 0].reverse()
    assert all(v.cause is not Cause.DEADLOCK for v in verdicts(job.trace(60 * SECOND)))


def test_a_rank_that_polls_waits() -> None:
    job = Builder(2)
    job.call(0, Op.RECV, STEP, 2 * STEP, peer=1, tag=0, request=4, flags=Flag.NONBLOCKING)
    job.call(1, Op.RECV, STEP, peer=0, tag=0)
    now = 60 * SECOND
    job.ranks[0] = replace(job.ranks[0], polls=10**6, polled_ns=now - STEP, polled_request=4)
    found = only(verdicts(job.trace(now)))
    assert found.cause is Cause.DEADLOCK and found.confidence < 0.9
    # the polling thread may do other work
    assert found.state is State.LATE and "perhaps a deadlock of ranks 0, 1" in found.sentence
    assert "what rank 0 does between two tests" in found.action
    assert any("has polled for 60.0 s: it is in MPI_Test" in text for text in found.evidence), found.evidence


@pytest.mark.parametrize("last", [Op.INIT, Op.BARRIER, Op.RECV])
@pytest.mark.parametrize("ended", [False, True])
def test_the_last_call_of_a_rank_that_probes_is_not_what_it_waits_for(last: Op, ended: bool) -> None:
    """Rank 1 calls MPI_Iprobe again and again. Both ranks have returned from the call before."""
    job, now = Builder(2), 60 * SECOND
    message = {"peer": 0, "tag": 7} if last == Op.RECV else {}
    job.call(0, Op.SEND if message else last, STEP, 2 * STEP, **(message | {"peer": 1} if message else {}))
    job.call(1, last, STEP, 2 * STEP, **message)
    if ended:
        job.call(0, Op.FINALIZE, 3 * STEP, 4 * STEP)
    job.ranks[0] = replace(job.ranks[0], ended=ended)
    job.ranks[1] = replace(job.ranks[1], polls=10**6, polled_ns=now - STEP)
    found = only(verdicts(job.trace(now)))
    assert found.rank == 0 and not found.call and "called anything that rank 1 polls for" in found.sentence, found


def test_a_call_whose_end_is_not_recorded_is_late_by_time_alone() -> None:
    """A generalized request, and MPI_Comm_accept, which is recorded like MPI_Comm_create."""
    for op, comm in ((Op.WAIT, 0), (Op.COMM_CREATE, 1)):
        job = Builder(2)
        job.comm(0)
        for rank in range(2):
            job.call(rank, Op.BARRIER, 0, STEP)
        job.call(0, op, 2 * STEP, comm=comm)
        alone = only(verdicts(job.trace(60 * SECOND)))
        assert alone.state is State.UNKNOWN and "is not recorded" in alone.sentence, alone
        job.call(1, Op.BARRIER, 2 * STEP)
        found = only(verdicts(job.trace(60 * SECOND)))
        assert (found.state, found.cause, found.rank) == (State.LATE, Cause.NONE, 0)
        assert found.sentence.startswith("rank 0 (node0) is late: it has been in MPI_"), found.sentence


def test_communicators_of_the_same_ranks_have_different_names() -> None:
    job = Builder(2)
    job.comms += [Communicator(cid, 9, np.arange(2, dtype=np.int32)) for cid in (21, 22)]
    for rank in range(2):
        job.call(rank, Op.ALLREDUCE, STEP, comm=1 + rank)
    found = only(verdicts(job.trace(60 * SECOND)))
    for which in (1, 2):
        assert f"MPI_Allreduce on communicator {which} of 2 on MPI_COMM_WORLD's group (call 1 " in found.sentence


def test_a_fresh_knot_may_be_an_artefact_of_looking() -> None:
    model = Model([[recv(1)], [recv(0)]])
    model.run()
    assert only(verdicts(model.trace(100 * STEP))).state is State.HEALTHY


def test_parked_for_a_checkpoint_is_not_stuck() -> None:
    model = Model([[recv(1)], [recv(0)]])
    model.run()
    assert only(verdicts(model.trace(), parked=frozenset({0}))).state is State.HEALTHY


def test_nobody_is_accused_across_a_gap() -> None:
    job = Builder(2)
    job.call(0, Op.RECV, SECOND, peer=1, tag=0)
    for i in range(20):
        job.call(1, Op.SEND, SECOND + i * STEP, SECOND + (i + 1) * STEP, peer=1, tag=3)
    job.lose(1, 10)
    found = only(verdicts(job.trace(60 * SECOND)))
    assert found.state is State.UNKNOWN and "records of that time are lost" in found.sentence


def test_a_collective_that_somebody_has_passed_is_not_missing_there() -> None:
    job = Builder(2)
    for i in range(4):
        job.call(1, Op.BARRIER, i * SECOND, i * SECOND + STEP)
    job.call(0, Op.BARRIER, 0)
    job.lose(1, 2)
    assert all(v.rank != 1 for v in verdicts(job.trace(60 * SECOND)))


def test_of_a_rank_without_a_trace_nothing_is_said() -> None:
    job = Builder(2)
    job.call(0, Op.RECV, SECOND, peer=1, tag=0)
    del job.ranks[1]
    assert only(verdicts(job.trace(60 * SECOND))).state is State.UNKNOWN


def test_uncertain_clocks_delay_a_verdict() -> None:
    model = Model([ROUND * 8, ROUND * 5 + [SPIN]], hosts=2)
    model.run()
    model.builder.ranks[1] = replace(model.builder.ranks[1], uncertainty_ns=10 * SECOND)
    assert only(verdicts(model.trace(5 * SECOND))).state is State.HEALTHY
    assert only(verdicts(model.trace(30 * SECOND))).rank == 1


def test_thousands_of_ranks() -> None:
    size = 2048
    job = Builder(size)
    for rank in range(size):
        for i in range(4):
            job.call(rank, Op.BARRIER, i * SECOND, i * SECOND + STEP)
        if rank != 1234:
            job.call(rank, Op.BARRIER, 4 * SECOND)
    assert only(verdicts(job.trace(60 * SECOND))).rank == 1234


# ---- random programs with one injected fault


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[list[Step]], int, str]:
    """Draw programs of some ranks that end, with a fault in one of them: (programs, culprit, fault)."""
    size = draw(st.integers(2, 5))
    body: list[list[Step]] = [[] for _ in range(size)]
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(("collective", "message", "compute")))
        if kind == "collective":
            step = draw(st.sampled_from((barrier(), allreduce())))
            for program in body:
                program.append(step)
        elif kind == "message":
            a, b = draw(st.permutations(range(size)))[:2]
            tag = draw(st.integers(0, 2))
            body[a].append(draw(st.sampled_from((send, ssend)))(b, tag))
            body[b].append(recv(a, tag))
        else:
            body[draw(st.integers(0, size - 1))].append(compute(draw(st.integers(1, 40)) * STEP))
    for program in body:
        program.append(barrier())
    whole = [program * 6 for program in body]
    culprit = draw(st.integers(0, size - 1))
    at = draw(st.integers(0, len(whole[culprit]) - 1))
    fault = draw(st.sampled_from(("spin", "stop", "end")))
    del whole[culprit][at:]
    if fault != "end":
        whole[culprit].append(SPIN)
    return whole, culprit, fault


@settings(max_examples=rounds(60, 150), deadline=None)
@given(programs())
def test_the_injected_culprit_is_named_and_nobody_else(case: tuple[list[list[Step]], int, str]) -> None:
    programs, culprit, fault = case
    model = Model(programs)
    assert not model.run()
    trace = model.trace()
    if fault == "stop":
        process(trace, culprit, "T")
    if fault == "end":
        trace.ranks[culprit] = replace(trace.ranks[culprit], ended=True, process="dead")
    if not len(trace.events):
        return
    found = only(verdicts(trace))
    # a spinning rank is proven guilty only if it is in a knot
    proven = fault != "spin" or found.cause is Cause.MISSING and "went on to" in found.sentence
    assert (found.state, found.rank) == (State.HUNG if proven else State.LATE, culprit), found.sentence
    assert (
        found.cause
        in {"spin": (Cause.COMPUTE, Cause.MISSING), "stop": (Cause.STOPPED,), "end": (Cause.MISSING,)}[fault]
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 5), st.integers(4, 12), st.floats(0, 1))
def test_healthy_at_every_moment(size: int, rounds: int, moment: float) -> None:
    """A run that ends is never called hung, at whatever moment it is looked at."""
    model = Model(
        [
            [step for i in range(rounds) for step in (compute((1 + (rank * 7 + i) % 5) * 100 * STEP), allreduce())]
            for rank in range(size)
        ]
    )
    assert model.run()
    trace = model.trace(0)
    now = int(moment * trace.now)
    seen = trace.events[trace.events["enter"] <= now].copy()
    seen["exit"][seen["exit"] > now] = OPEN
    assert all(v.state is not State.HUNG for v in verdicts(replace(trace, events=seen, now=now)))


# ---- pauses (MPI_Pcontrol)


def waiting(job: Builder, how: str) -> None:
    """Let rank 0 wait for something that only rank 1 could end."""
    if how == "collective":
        job.call(0, Op.BARRIER, 3 * SECOND)
    elif how == "message":
        job.call(0, Op.RECV, 3 * SECOND, peer=1, tag=5)
    elif how == "wildcard":
        job.call(0, Op.RECV, 3 * SECOND, peer=ANY, tag=5)
    elif how == "end":
        job.call(0, Op.FINALIZE, 3 * SECOND, context=9)
    elif how == "lock":
        job.call(1, Op.WIN_LOCK, SECOND // 2, SECOND // 2 + 1, peer=0)
        job.call(0, Op.WIN_LOCK, 3 * SECOND, peer=0)
    elif how == "flush":
        job.call(0, Op.WIN_FLUSH, 3 * SECOND, peer=1)
    elif how == "transfer":  # rank 1 may have completed its receive during the pause
        job.call(1, Op.RECV, SECOND // 2, SECOND // 2 + 1, peer=0, tag=6, request=7, flags=Flag.NONBLOCKING)
        job.call(0, Op.SSEND, 3 * SECOND, peer=1, tag=6)
    else:
        job.ranks[0].polled_ns = 59 * SECOND


@pytest.mark.parametrize("how", ["collective", "message", "wildcard", "end", "lock", "flush", "transfer", "polling"])
def test_nobody_is_accused_of_what_was_not_recorded(how: str) -> None:
    """Without the pause, the rank is accused at once."""
    for paused in (True, False):
        job = Builder(2)
        for rank in range(2):
            job.call(rank, Op.BARRIER, 0, STEP)
        waiting(job, how)
        if paused:
            job.pause(1, SECOND)
        found = only(verdicts(job.trace(60 * SECOND)))
        assert (found.state is State.UNKNOWN) == paused and found.state is not State.HEALTHY, found.sentence
        assert ("rank 1, whose recording is paused (MPI_Pcontrol)" in found.sentence) == paused and (
            found.rank == 1
        ) != paused


def test_after_a_pause_a_rank_is_judged_by_the_time_since() -> None:
    for since, state in ((55, State.HEALTHY), (3, State.LATE)):
        job = Builder(2)
        for rank in range(2):
            for i in range(9):
                job.call(rank, Op.BARRIER, i * STEP, i * STEP + 1)
        job.pause(1, SECOND, since * SECOND)
        job.call(0, Op.RECV, 56 * SECOND, peer=1, tag=5)
        found = only(verdicts(job.trace(57 * SECOND)))
        assert found.state is state, found.sentence
    assert found.rank == 1 and any(
        "went on 54.0 s ago (MPI_Pcontrol), and it has made no call since" in line for line in found.evidence
    )


def test_what_a_completion_waits_for_may_have_been_begun_in_a_pause() -> None:
    job = Builder(3)
    job.pause(0, STEP, SECOND)
    job.call(0, Op.WAIT, 2 * SECOND, request=99)
    job.call(1, Op.RECV, 2 * SECOND, peer=0, tag=1)
    job.call(2, Op.BARRIER, 0, 1, comm=job.comm(2))
    found = only(verdicts(job.trace(60 * SECOND)))
    assert found.state is State.UNKNOWN and "begun while its recording was paused" in found.sentence


def test_pauses_of_those_that_go_on_are_said() -> None:
    job = Builder(3)
    for rank in range(3):
        job.call(rank, Op.BARRIER, 0, STEP)
    job.pause(1, SECOND)
    found = only(verdicts(job.trace(2 * SECOND)))
    assert (
        found.state is State.HEALTHY
        and "the recording of rank 1 is paused (MPI_Pcontrol): what it does isn't known" in found.evidence
    )
    for rank in (0, 2):
        job.pause(rank, SECOND)
    found = only(verdicts(job.trace(2 * SECOND)))
    assert (
        found.state is State.UNKNOWN
        and found.sentence == "the recording of all ranks is paused (MPI_Pcontrol): what they do isn't known"
    )


# ---- expectations


def phases(rounds: int, every: int, long: int) -> list[Step]:
    """Return steps. Every `every`-th one takes longer."""
    return [step for i in range(1, rounds + 1) for step in (compute(long if i % every == 0 else STEP), allreduce())]


def test_a_rare_phase_is_remembered_for_longer_than_a_thousand_rounds() -> None:
    rare = phases(2 * 1500, 1500, 20 * SECOND)
    model = Model([[*rare, *phases(1500, 9999, 0), allreduce()], [*rare, *phases(1500, 9999, 0), SPIN]])
    model.run()
    assert only(verdicts(model.trace(30 * SECOND))).state is State.HEALTHY
    assert only(verdicts(model.trace(50 * SECOND))).state is State.LATE


def test_a_watch_remembers_it_when_the_ring_has_gone_round() -> None:
    memory = Memory()

    def look(rounds: int, more: list[Step], later: int, lose: int = 0) -> State:
        model = Model([[*phases(rounds, 9999, 0), allreduce(), *ROUND], [*phases(rounds, 9999, 0), *more]])
        model.run()
        if lose:
            for rank in range(2):
                model.builder.lose(rank, lose)
        return only(verdicts(model.trace(later), memory=memory)).state

    assert look(20, [SPIN], 20 * SECOND) is State.LATE
    assert look(20, [compute(21 * SECOND), allreduce(), *ROUND], STEP) is State.HEALTHY  # it has made progress
    assert look(1000, [SPIN], 30 * SECOND, lose=500) is State.HEALTHY
    assert look(1000, [SPIN], 50 * SECOND, lose=500) is State.LATE


# ---- misuse


def finalized(job: Builder, rank: int, at: int) -> None:
    job.call(rank, Op.FINALIZE, at, context=9)


def test_wrong_tags_of_ranks_that_went_on_to_finalize() -> None:
    job = Builder(2)
    job.call(0, Op.SEND, STEP, 2 * STEP, peer=1, tag=0)
    finalized(job, 0, 3 * STEP)
    job.call(1, Op.RECV, STEP, peer=0, tag=1)
    found = only(verdicts(job.trace(60 * SECOND)))
    assert (
        found.cause is Cause.MISMATCH
        and found.sentence.startswith("rank 1 and rank 0 don't agree")
        and found.action.startswith("compare tags")
    )
    job.ranks[0] = replace(job.ranks[0], ended=True)
    job.rows[0, 0][-1]["exit"] = 4 * STEP
    assert only(verdicts(job.trace(60 * SECOND))).sentence == found.sentence


def test_a_receive_from_the_wrong_source() -> None:
    job = Builder(3)
    job.call(0, Op.RECV, STEP, peer=1, tag=7)
    job.call(1, Op.RECV, STEP, peer=0, tag=3)
    job.call(2, Op.SEND, STEP, 2 * STEP, peer=0, tag=7)
    finalized(job, 2, 3 * STEP)
    found = verdicts(job.trace(60 * SECOND))[0]
    assert (
        found.cause is Cause.MISMATCH
        and (
            "rank 0 waits in MPI_Recv from rank 1, tag 7, and rank 2 made MPI_Send to rank 0, tag 7, which nobody "
            "receives"
        )
        in found.sentence
    )
    assert found.action.startswith("compare sources")


def test_a_source_that_has_ended_is_missed_whoever_else_has_sent() -> None:
    """Rank 0 receives from each rank in turn. The message of rank 2 has come already; that of rank 1 never comes."""
    job = Builder(3)
    job.call(0, Op.RECV, STEP, peer=1, tag=7)
    job.call(2, Op.SEND, STEP, 2 * STEP, peer=0, tag=7)
    job.call(2, Op.BARRIER, 3 * STEP, context=0)
    finalized(job, 1, STEP)
    job.ranks[1] = replace(job.ranks[1], ended=True, process="dead")
    found = verdicts(job.trace(60 * SECOND))[0]
    assert (found.cause, found.rank) == (Cause.MISSING, 1), found.sentence


def test_a_message_that_nobody_receives_keeps_finalize() -> None:
    job = Builder(2)
    job.call(0, Op.SEND, STEP, 2 * STEP, peer=1, tag=4)
    finalized(job, 0, 3 * STEP)
    finalized(job, 1, 3 * STEP)
    found = only(verdicts(job.trace(60 * SECOND)))
    assert (found.state, found.cause, found.rank, found.peer, found.call) == (
        State.HUNG,
        Cause.MISSING,
        1,
        0,
        "MPI_Recv from rank 0, tag 4",
    )


def test_the_call_that_failed_is_named_when_the_job_is_over() -> None:
    job = Builder(2)
    job.call(0, Op.RECV, STEP, peer=1, tag=4)
    job.call(1, Op.SEND, STEP, 2 * STEP, peer=0, tag=-5, flags=Flag.FAILED)
    for rank in range(2):
        job.ranks[rank] = replace(job.ranks[rank], process="dead")
    found = only(verdicts(job.trace(SECOND)))
    assert (found.cause, found.rank) == (
        Cause.DEAD,
        1,
    ) and "has ended the job: its MPI_Send to rank 0" in found.sentence


def test_a_refused_call_has_ended_the_job_whoever_died_first() -> None:
    job = Builder(3)
    job.call(0, Op.SEND, STEP, 2 * STEP, peer=1, tag=4, flags=Flag.FAILED)
    job.call(1, Op.RECV, STEP, peer=0, tag=4)
    job.ranks[0] = replace(job.ranks[0], refused=Refusal("MPI_Send", 2, 2 * STEP))
    job.ranks[2] = replace(job.ranks[2], refused=Refusal("MPI_Type_vector", 12, 3 * STEP))
    first = only(over(job, 1))
    assert (first.state, first.cause, first.rank) == (State.HUNG, Cause.DEAD, 0)
    assert first.sentence == (
        "rank 0 (node0) has ended the job: its MPI_Send to rank 1, tag 4 failed with MPI_ERR_COUNT"
    )
    assert first.evidence == (
        "rank 2 (node0): its MPI_Type_vector failed with MPI_ERR_ARG, too",
        "rank 1 waited in MPI_Recv from rank 0, tag 4 at the end",
    )


@pytest.mark.parametrize(("ended", "when"), [(False, "before MPI_Init"), (True, "after MPI_Finalize")])
def test_a_call_outside_init_and_finalize_is_named_also_if_there_is_no_other(ended: bool, when: str) -> None:
    job = Builder(2)
    job.ranks[1] = replace(job.ranks[1], refused=Refusal("MPI_Comm_rank", 0, STEP), ended=ended)
    found = only(over(job, 0))
    assert found.sentence == f"rank 1 (node0) has ended the job: its MPI_Comm_rank came {when}"


@pytest.mark.parametrize("state", ["R", "dead"])
def test_only_a_refused_call_is_recorded_and_the_job_lives(state: str) -> None:
    job = Builder(2)
    job.ranks[1] = replace(job.ranks[1], refused=Refusal("MPI_Comm_rank", 0, STEP), process=state)
    found = only(verdicts(job.trace(60 * SECOND)))
    assert (found.state, found.cause) == (State.UNKNOWN, Cause.NONE)
    assert found.sentence == "rank 1 (node0): its MPI_Comm_rank came before MPI_Init; the job has not ended yet"


def test_a_dead_rank_whose_call_was_refused_while_others_go_on() -> None:
    job = Builder(2)
    job.call(0, Op.BARRIER, STEP)
    job.ranks[1] = replace(job.ranks[1], refused=Refusal("MPI_Comm_size", 99, STEP), process="dead")
    found = only(verdicts(job.trace(60 * SECOND)))
    assert (found.cause, found.rank) == (Cause.DEAD, 1)
    assert "; its MPI_Comm_size failed with error class 99; 1 rank waits for it" in found.sentence


def over(job: Builder, died: int) -> list[Verdict]:
    """Return the verdicts after all processes have ended. Rank `died` was seen to die first."""
    for rank in job.ranks:
        process(trace := job.trace(60 * SECOND), rank, "dead")
    return verdicts(trace, died=died)


def test_a_job_that_was_stuck_and_then_killed_was_stuck() -> None:
    job = Builder(2)
    for rank in range(2):
        job.call(rank, Op.RECV, STEP, peer=1 - rank, tag=1)
    assert only(over(job, 1)).cause is Cause.DEADLOCK


def test_who_is_seen_to_die_first_may_be_the_victim_of_one_that_has_left() -> None:
    """Rank 0 has called exit or MPI_Abort, and mpirun ends the other ranks."""
    job = Builder(2)
    for rank in range(2):
        job.call(rank, Op.BARRIER, STEP, 2 * STEP)
    job.call(1, Op.BARRIER, 3 * STEP)
    found = only(over(job, 1))
    assert (found.state, found.rank) == (State.UNKNOWN, None) and "rank 1 (node0) was the first" in found.sentence
    assert found.evidence[0].startswith("at the end, rank 0 (node0) was outside MPI and had not finalized")
    assert found.evidence[1] == "rank 1 was in MPI_Barrier on MPI_COMM_WORLD's group (call 2 there) at the end"
    found = only(over(job, 0))
    assert (found.state, found.rank) == (State.HUNG, 0) and found.confidence < 0.9
    assert found.sentence.startswith("rank 0 (node0) was the first that was seen to die")
    assert "1 rank waits for it" in found.sentence


def test_a_call_that_failed_and_another_rank_that_died_first_are_both_said() -> None:
    job = Builder(2)
    job.call(0, Op.SEND, STEP, 2 * STEP, peer=1, tag=1, flags=Flag.FAILED)
    job.call(1, Op.BARRIER, STEP)
    assert only(over(job, 0)).sentence.startswith("rank 0 (node0) has ended the job")
    found = only(over(job, 1))
    assert found.rank == 1 and found.alternatives[0].startswith("rank 0 (node0) has ended the job")


def test_of_a_rank_that_polls_it_is_not_said_to_be_in_a_call_that_has_returned() -> None:
    """It may find other work, or end by itself what it tests for. So no rank is called deadlocked."""
    job = Builder(2)
    for rank in range(2):
        job.call(rank, Op.ALLREDUCE, 0, STEP)
    job.call(0, Op.BARRIER, 2 * STEP)
    now = 60 * SECOND
    job.ranks[1] = replace(job.ranks[1], polls=10**6, polled_ns=now - STEP)
    found = only(verdicts(job.trace(now)))
    assert found.state is State.LATE and found.confidence < 0.9
    assert (
        "rank 1 is in MPI_Test or MPI_Iprobe, again and again since its MPI_Allreduce on MPI_COMM_WORLD's group "
        "(call 1 there) has returned" in found.sentence
    )
    assert found.sentence.startswith("perhaps a deadlock of ranks 0, 1: ")


def test_a_rank_that_waits_for_itself() -> None:
    job = Builder(2)
    job.call(0, Op.RECV, STEP, peer=0, tag=4)
    job.call(1, Op.BARRIER, STEP)
    found = verdicts(job.trace(60 * SECOND))[0]
    assert found.sentence.startswith("rank 0 waits for itself: rank 0 waits in MPI_Recv from rank 0, tag 4"), (
        found.sentence
    )


# ---- collectives in which a rank needs only some of the others


PARTIAL = [Op.NEIGHBOR, Op.SCAN, Op.EXSCAN, Op.GATHER, Op.REDUCE, Op.BCAST, Op.SCATTER]


def partly(op: Op, late: int | None) -> Builder:
    """Return a job in which rank 1 is in a collective, rank 2 waits for rank 1, and the late rank has not come. In
    a neighbourhood collective rank 2 may be no neighbour; in the others it need not have come either."""
    job = Builder(4)
    root = {"peer": 0} if op not in (Op.NEIGHBOR, Op.SCAN, Op.EXSCAN) else {}
    for rank in range(4):
        job.call(rank, Op.BARRIER, 0, STEP)
        if rank in (0, 1, 3) and rank != late:
            job.call(rank, op, 2 * STEP, **root)
    job.call(2, Op.RECV, 2 * STEP, peer=1, tag=1)
    if late is not None:
        job.ranks[late] = replace(job.ranks[late], doing="computes")
    return job


@pytest.mark.parametrize("op", PARTIAL)
def test_a_rank_that_only_some_of_a_collective_need_makes_no_deadlock(op: Op) -> None:
    late = 3 if op in (Op.BCAST, Op.SCATTER) else 0
    found = only(verdicts(partly(op, late).trace(30 * SECOND)))
    assert (found.state, found.cause, found.rank) == (State.LATE, Cause.COMPUTE, late), found.sentence


@pytest.mark.parametrize("op", PARTIAL)
def test_a_collective_whose_missing_ranks_all_wait_for_it_is_a_deadlock(op: Op) -> None:
    found = only(verdicts(partly(op, None).trace(30 * SECOND)))
    assert (found.state, found.cause) == (State.HUNG, Cause.DEADLOCK) and "ranks 1, 2" in found.sentence, found.sentence


@pytest.mark.parametrize("op", [Op.BCAST, Op.SCATTER, Op.GATHER, Op.REDUCE])
def test_the_groups_of_an_inter_communicator_name_the_root_differently(op: Op) -> None:
    """The root's group passes MPI_ROOT and MPI_PROC_NULL, the other group the root's rank (MPI 4.1, section 6.2.3)."""
    job = Builder(4)
    job.comms.append(Communicator(9, 9, np.arange(4, dtype=np.int32), remote=2))
    both = len(job.comms) - 1
    job.call(0, op, STEP, comm=both)
    job.call(1, op, STEP, 2 * STEP, comm=both, peer=PROC_NULL)
    job.call(2, op, STEP, comm=both, peer=0)
    job.call(3, Op.SEND, STEP, 2 * STEP, peer=3, tag=1)
    job.ranks[3] = replace(job.ranks[3], doing="computes")
    found = only(verdicts(job.trace(30 * SECOND)))
    assert (found.state, found.rank) == (State.LATE, 3), found.sentence


@pytest.mark.parametrize("computing", [{3}, {2, 3}])
def test_the_last_worker_of_a_master_is_late(computing: set[int]) -> None:
    """The master takes results of any worker. While several compute, it is unknown for which one it waits."""
    job = Builder(4)
    for rank in range(4):
        job.call(rank, Op.BARRIER, 0, STEP)
    job.call(0, Op.RECV, 2 * STEP, peer=ANY, tag=1)
    for rank in (1, 2, 3):
        if rank in computing:
            job.ranks[rank] = replace(job.ranks[rank], doing="computes")
        else:
            job.call(rank, Op.RECV, 2 * STEP, peer=0, tag=2)
    found = only(verdicts(job.trace(30 * SECOND)))
    if len(computing) == 1:
        assert (found.state, found.cause, found.rank) == (State.LATE, Cause.COMPUTE, 3), found.sentence
    else:
        assert found.state is State.HEALTHY, found.sentence


def test_a_waitany_with_more_requests_than_records_is_no_part_of_a_deadlock() -> None:
    """What it waits for may be one of the requests that were not recorded."""
    for cut in (Flag.CUT, 0):
        job = Builder(3)
        for rank in range(2):
            job.call(rank, Op.RECV, STEP, 2 * STEP, peer=1 - rank, tag=0, request=1, flags=Flag.NONBLOCKING)
            job.call(rank, Op.WAITANY, 3 * STEP, request=1, flags=cut)
        job.call(2, Op.SEND, STEP, 2 * STEP, peer=2, tag=9)
        found = {(v.state, v.cause) for v in verdicts(job.trace(60 * SECOND))}
        assert ((State.HUNG, Cause.DEADLOCK) in found) is (not cut), found


# ---- threads


def test_threads_of_clients_and_servers_are_told_apart_by_their_tags() -> None:
    """The newest send to the other rank came from the client, but its replies come from the server, which computes."""
    job = Builder(2)
    tags = ((1, 2, 3, 4), (3, 4, 1, 2))
    for rank, (ask, told, asked, tell) in enumerate(tags):
        job.ranks[rank] = replace(job.ranks[rank], threads={0: 11, 1: 12}, doing="computes")
        for at in (0, SECOND):
            job.call(rank, Op.SEND, at, at + STEP, peer=1 - rank, tag=ask)
            job.call(rank, Op.RECV, at + STEP, at + 5 * STEP if not at else OPEN, peer=1 - rank, tag=told)
            job.call(rank, Op.RECV, at, at + 2 * STEP, peer=1 - rank, tag=asked, thread=1)
            if not at:
                job.call(rank, Op.SEND, at + 4 * STEP, at + 5 * STEP, peer=1 - rank, tag=tell, thread=1)
    found = verdicts(job.trace(60 * SECOND))
    assert {(v.state, v.rank) for v in found} == {(State.LATE, 0), (State.LATE, 1)}, [v.sentence for v in found]


@pytest.mark.parametrize("doing", ["", "computes", None])
def test_a_deadlock_of_ranks_whose_other_threads_work_is_not_sure(doing: str | None) -> None:
    """Any thread of a task runtime may make any call, also with the same tag."""
    job = Builder(2)
    for rank in range(2):
        job.ranks[rank] = replace(
            job.ranks[rank], threads={0: 11, 1: 12}, process="S", cpu_share=0.0, doing=doing, still_s=50.0
        )
        job.call(rank, Op.RECV, 0, STEP, peer=1 - rank, tag=1)
        job.call(rank, Op.SEND, 0, STEP, peer=1 - rank, tag=1)
        job.call(rank, Op.RECV, 2 * STEP, peer=1 - rank, tag=1)
        job.call(rank, Op.BARRIER, STEP, 2 * STEP, thread=1)
    found = only(verdicts(job.trace(60 * SECOND)))
    assert (found.state, found.cause) == (State.HUNG if doing == "" else State.LATE, Cause.DEADLOCK), found.sentence
    assert (found.confidence >= 0.9) is (doing == "")


def threads(blocked: bool) -> Builder:
    """Return a job in which rank 1 has two threads, each with its own communicator. Its second thread goes on. The
    other ranks wait for its first thread in an Allreduce."""
    job = Builder(3)
    other = job.comm(1)
    job.ranks[1] = replace(job.ranks[1], threads={0: 11, 1: 12}, process="S", doing="")
    for rank in range(3):
        for i in range(5):
            job.call(rank, Op.ALLREDUCE, i * SECOND, i * SECOND + STEP)
    for rank in (0, 2):
        job.call(rank, Op.ALLREDUCE, 5 * SECOND)
    if blocked:
        job.call(1, Op.RECV, 5 * SECOND, peer=0, tag=5)
    for i in range(300):
        job.call(1, Op.BARRIER, i * SECOND // 10, i * SECOND // 10 + STEP, thread=1, comm=other)
    return job


def test_a_thread_that_others_wait_for_is_hung_though_another_one_goes_on() -> None:
    found = only(verdicts(threads(blocked=False).trace(30 * SECOND)))
    assert (found.state, found.cause, found.rank) == (
        State.HUNG,
        Cause.COMPUTE,
        1,
    ) and "never called MPI_Allreduce" in found.sentence
    found = only(verdicts(threads(blocked=True).trace(30 * SECOND)))
    assert (found.state, found.cause) == (State.HUNG, Cause.DEADLOCK) and "deadlock of ranks 0, 1" in found.sentence


def test_a_thread_that_waits_busily_in_a_call_is_not_what_the_rank_does() -> None:
    """The process runs because that thread runs. Outside MPI it does nothing."""
    job = threads(blocked=False)
    job.ranks[1] = replace(job.ranks[1], process="R", cpu_share=0.2)
    found = only(verdicts(job.trace(30 * SECOND)))
    assert (found.state, found.detail) == (State.HUNG, "asleep") and "asleep outside MPI" in found.sentence


def test_a_server_thread_in_a_receive_does_not_make_a_deadlock_of_a_thread_that_computes() -> None:
    job = Builder(2)
    job.ranks[1] = replace(job.ranks[1], threads={0: 11, 1: 12})
    server = job.comm(0, 1)
    for i in range(5):
        for rank in range(2):
            job.call(rank, Op.BARRIER, i * 10 * SECOND, i * 10 * SECOND + STEP)
    job.call(1, Op.RECV, STEP, thread=1, peer=0, tag=1, comm=server)
    job.call(0, Op.BARRIER, 50 * SECOND)
    assert only(verdicts(job.trace(52 * SECOND))).state is State.HEALTHY  # it usually computes for 10 s
    found = only(verdicts(job.trace(99 * SECOND)))
    assert (found.state, found.cause, found.rank) == (State.LATE, Cause.COMPUTE, 1)


def test_a_window_that_one_rank_frees_is_not_said_to_be_created() -> None:
    job = Builder(2)
    window = job.comm(0, 1)
    for rank in range(2):
        job.call(rank, Op.WIN_CREATE, 0, STEP)
        job.call(rank, Op.WIN_FENCE, STEP, 2 * STEP, comm=window, context=1)
    job.call(0, Op.WIN_FENCE, 3 * STEP, comm=window, context=2)
    job.call(1, Op.WIN_CREATE, 3 * STEP, comm=window, context=2)
    found = only(verdicts(job.trace(60 * SECOND)))
    assert (
        found.cause is Cause.MISMATCH
        and "MPI_Win_free on the window of ranks 0, 1" in found.sentence
        and "MPI_Win_create" not in found.sentence
    )


def test_two_ranks_of_which_one_thread_waits_and_the_other_one_never_makes_its_call() -> None:
    """An example is a barrier of threads that is never left."""
    job = Builder(2)
    for rank in range(2):
        job.ranks[rank] = replace(job.ranks[rank], threads={0: 11, 1: 12}, process="S", doing="")
        job.call(rank, Op.RECV, STEP, peer=1 - rank, tag=1)
        job.call(rank, Op.SEND, STEP, 2 * STEP, thread=1, peer=rank, tag=3)
    found = verdicts(job.trace(60 * SECOND))
    assert {(v.state, v.cause, v.rank) for v in found} == {(State.HUNG, Cause.COMPUTE, rank) for rank in range(2)}, [
        v.sentence for v in found
    ]
    behind = "it may wait for its thread 0 (a barrier of threads, a lock), which has been in MPI_Recv from rank"
    assert sorted(v.alternatives[0][: len(behind) + 2] for v in found) == [f"{behind} 0", f"{behind} 1"]


def test_a_rank_with_a_busy_thread_in_a_call_may_seem_to_have_had_no_processor() -> None:
    """Its other thread is outside MPI. It isn't known whether that thread has waited for a processor, nor whether any
    thread is stuck. The activity of the process shows it."""
    job = Builder(2)
    job.ranks[1] = replace(job.ranks[1], threads={0: 11, 1: 12}, doing=None, cpu_share=0.01)
    job.call(0, Op.RECV, STEP, peer=1, tag=1)
    job.call(1, Op.RECV, STEP, 2 * STEP, peer=0, tag=2)
    job.call(1, Op.RECV, STEP, thread=1, peer=0, tag=3, comm=job.comm(0, 1))
    trace = job.trace(20 * SECOND)
    moments = np.array([0, trace.now])
    delays = Delays({1: (moments, moments * 8 // 10)})
    found = only(verdicts(trace, delays=delays))
    assert (found.state, found.rank, found.peer) == (State.UNKNOWN, None, 1), found.sentence
    assert found.sentence.startswith("it is unknown whether rank 1 (node0) is stuck: rank 0 has waited 20.0 s for it (")
    trace.ranks[1] = replace(trace.ranks[1], doing="")
    found = only(verdicts(trace, delays=delays))
    assert (found.state, found.cause, found.rank) == (State.HUNG, Cause.COMPUTE, 1), found.sentence


def test_a_transfer_between_ranks_without_a_processor_can_not_be_told() -> None:
    job = Builder(2)
    job.call(0, Op.SEND, STEP, peer=1, tag=1)
    job.call(1, Op.RECV, STEP, peer=0, tag=1)
    trace = job.trace(20 * SECOND)
    moments = np.array([0, trace.now])
    found = only(verdicts(trace, delays=Delays({1: (moments, moments * 9 // 10)})))
    assert found.state is State.UNKNOWN and "had perhaps no processor" in found.sentence, found.sentence
    assert only(verdicts(trace)).cause is Cause.NETWORK


def transfer() -> Trace:
    """Return a job with two ranks in the same Allreduce."""
    job = Builder(2)
    for rank in range(2):
        job.call(rank, Op.ALLREDUCE, STEP)
    return job.trace(SECOND)


def test_a_process_that_has_died_in_a_call_is_told_with_it() -> None:
    found = only(verdicts(process(transfer(), 0, "dead")))
    assert (found.cause, found.rank) == (Cause.DEAD, 0)
    assert "; it was in MPI_Allreduce on" in found.sentence, found.sentence


def test_of_a_job_that_is_over_it_is_told_what_its_ranks_were_in() -> None:
    trace = transfer()
    for rank in range(2):
        process(trace, rank, "dead")
    found = only(verdicts(trace))
    assert found.state is State.UNKNOWN
    assert [fact.split(" on ")[0] for fact in found.evidence] == [
        f"rank {rank} (node0) was in MPI_Allreduce" for rank in range(2)
    ]


def test_what_was_posted_before_is_waited_for_and_not_in() -> None:
    job = Builder(2)
    post = job.call(0, Op.RECV, STEP, 2 * STEP, peer=1, tag=4, flags=Flag.NONBLOCKING, request=1)
    job.call(0, Op.WAIT, 3 * STEP, peer=1, tag=4, request=post["request"])
    job.call(1, Op.SEND, STEP, 2 * STEP, peer=0, tag=5)
    job.call(1, Op.FINALIZE, 3 * STEP)
    found = only(verdicts(job.trace(60 * SECOND)))
    assert found.cause is Cause.MISMATCH
    assert "rank 0 waits for its MPI_Irecv from rank 1, tag 4, and rank 1 made MPI_Send" in found.sentence, (
        found.sentence
    )


def test_a_fence_is_on_a_window() -> None:
    job = Builder(2)
    window = job.comm(0, 1)
    job.call(0, Op.WIN_FENCE, STEP, comm=window, context=1)
    job.call(1, Op.BARRIER, STEP)
    found = only(verdicts(job.trace(60 * SECOND)))
    assert "rank 0 waits in MPI_Win_fence on the window of ranks 0, 1 (call 1 there)" in found.sentence, found.sentence


def test_a_rank_in_finalize_stands_for_no_other_thread_of_its_own() -> None:
    """Its other thread, which sent the earlier messages, rests: no thread may call MPI any more."""
    job = Builder(2)
    job.ranks[1] = replace(job.ranks[1], threads={0: 11, 1: 12}, process="S", doing="")
    job.call(1, Op.SEND, STEP, 2 * STEP, thread=1, peer=0, tag=1)
    job.call(0, Op.RECV, STEP, 2 * STEP, peer=1, tag=1)
    job.call(1, Op.FINALIZE, 3 * STEP)
    job.call(0, Op.RECV, 3 * STEP, peer=1, tag=1)
    found = only(verdicts(job.trace(60 * SECOND)))
    assert (found.state, found.cause, found.rank) == (State.HUNG, Cause.MISSING, 1), found.sentence
    assert "never called MPI_Send to rank 0, tag 1, and went on to MPI_Finalize" in found.sentence


@pytest.mark.parametrize("sent", [None, 7])
def test_who_has_gone_on_to_finalize_is_named_though_the_waiting_rank_has_a_thread_outside_mpi(
    sent: int | None,
) -> None:
    job = Builder(2)
    job.ranks[0] = replace(job.ranks[0], threads={0: 11, 1: 12}, process="S", doing="")
    job.call(0, Op.BARRIER, STEP, 2 * STEP, comm=job.comm(0))
    if sent is not None:
        job.call(1, Op.SEND, STEP, 2 * STEP, peer=0, tag=sent)
    job.call(1, Op.FINALIZE, 3 * STEP, comm=-1)
    job.call(0, Op.RECV, 3 * STEP, thread=1, peer=1, tag=1)
    found = only(verdicts(job.trace(60 * SECOND)))
    cause, rank = (Cause.MISMATCH, None) if sent is not None else (Cause.MISSING, 1)
    assert (found.state, found.cause, found.rank) == (State.HUNG, cause, rank), found.sentence


def test_a_receive_that_the_thread_outside_mpi_may_cancel_is_no_proof() -> None:
    job = Builder(2)
    job.ranks[0] = replace(job.ranks[0], threads={0: 11, 1: 12})
    job.call(0, Op.RECV, STEP, 2 * STEP, peer=1, tag=1, flags=Flag.NONBLOCKING, request=1)
    job.call(0, Op.WAIT, 3 * STEP, thread=1, peer=1, tag=1, request=1)
    job.call(1, Op.FINALIZE, 3 * STEP, comm=-1)
    assert [v.state for v in verdicts(job.trace(60 * SECOND))] == [State.LATE]


def test_a_message_with_another_tag_for_a_rank_that_stands_for_another_thread() -> None:
    job = Builder(3)
    both = job.comm(0, 2)
    job.ranks[0] = replace(job.ranks[0], threads={0: 11, 1: 12})
    job.ranks[1] = replace(job.ranks[1], ended=True)
    for rank in (0, 2):
        job.call(rank, Op.BARRIER, 59 * SECOND, 59 * SECOND + STEP, comm=both)
    job.call(2, Op.BARRIER, 59 * SECOND + 2 * STEP, comm=both)
    job.call(0, Op.RECV, 2 * STEP, thread=1, peer=1, tag=1)
    job.call(1, Op.SEND, STEP, 2 * STEP, peer=0, tag=2)
    job.call(1, Op.FINALIZE, 3 * STEP, 4 * STEP, comm=-1)
    found = only(verdicts(job.trace(60 * SECOND)))
    assert found.cause is Cause.MISMATCH and "tag 1, and rank 1 made MPI_Send to rank 0, tag 2" in found.sentence


def test_init_waits_for_ranks_that_have_not_called_it() -> None:
    job = Builder(3)
    for rank in range(2):
        job.call(rank, Op.INIT, STEP, comm=-1)
    found = only(verdicts(job.trace(20 * SECOND)))
    assert (found.state, found.rank, found.call) == (State.LATE, 2, "MPI_Init"), found
    assert "it has not called MPI_Init yet" in found.sentence
    job.ranks[2] = replace(job.ranks[2], first_ns=10 * SECOND)  # earlier calls would not be recorded
    found = only(verdicts(job.trace(20 * SECOND)))
    assert found.state is State.UNKNOWN, found


def test_a_long_init_is_late_and_not_hung() -> None:
    """An overloaded machine may need a long time to start a rank."""
    job = Builder(2)
    job.call(0, Op.INIT, STEP, 2 * STEP, comm=-1)
    job.call(1, Op.INIT, STEP, comm=-1)
    job.call(0, Op.RECV, 2 * STEP, peer=1, tag=1)
    found = only(verdicts(job.trace(20 * SECOND)))
    assert (found.state, found.rank) == (State.LATE, 1) and "MPI_Init for 20.0 s" in found.sentence, found.sentence
