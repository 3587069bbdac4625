"""Random correct programs, random schedules, requests at random moments. The checkpoint always converges at a safe
state, and the program ends as it does without checkpoints. The simulator has no time-outs: a program that hangs raises
Deadlock, and one that never ends raises Livelock.
"""

from __future__ import annotations

import random

import pytest
from clock_programs import build, results
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rounds import rounds

from manapy.clock.model.model import Deadlock, Livelock, Simulator, Violation
from manapy.clock.model.programs import (
    ANY,
    AwaitFlag,
    Coll,
    Compute,
    Disable,
    Drop,
    Enable,
    Fail,
    Flush,
    Free,
    Icoll,
    Lock,
    Op,
    Parallel,
    Program,
    Recv,
    Send,
    SetFlag,
    Split,
    Unlock,
    Wait,
)

PAIRS = [Split("world", "a", (0, 1))], [Split("world", "b", (2, 3))]
# Rank 0 is inside a collective of {0,1}. Rank 1 needs a message that rank 2 sends after a collective of {2,3}.
HOLE: list[list[Op]] = [
    [*PAIRS[0], Coll("a")],
    [*PAIRS[0], Recv(2), Coll("a")],
    [*PAIRS[1], Coll("b"), Send(1, 5)],
    [*PAIRS[1], Compute(20), Coll("b")],
]
CROSSED: list[list[Op]] = [
    [Split("world", c, (0, 1)) for c in "ab"] + [Icoll("x", x), Compute(9), Icoll("y", y), Wait(("x", "y"))]
    for x, y in ("ab", "ba")
]


def check(program: Program, seed: int, moments: list[int], **options: object) -> Simulator:
    """Run with and without checkpoints (moments: per mille of the undisturbed run's steps). Both must end alike."""
    plain = Simulator(program, seed=seed)
    expected = results(plain.run(), len(program))
    requests = sorted(m * plain.steps // 1000 for m in moments)
    promises = (0.0, 0.1)[seed % 2]
    run = Simulator(program, seed=seed + 1, requests=requests, promises=promises, **options)  # type: ignore[arg-type]
    assert results(run.run(), len(program)) == expected
    for c in run.checkpoints:
        assert c.converged or c.reason == "the job is finishing"
    return run


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rng=st.randoms(use_true_random=False),
    size=st.integers(2, 6),
    events=st.integers(1, 25),
    seed=st.integers(0, 2**32),
    moments=st.lists(st.integers(0, 1000), min_size=1, max_size=3),
    patience=st.sampled_from((0, 1, 5)),
    lazy=st.booleans(),
    wire=st.booleans(),
    threads=st.integers(1, 3),
)
def test_any_program_any_moment(
    rng: random.Random,
    size: int,
    events: int,
    seed: int,
    moments: list[int],
    patience: int,
    lazy: bool,
    wire: bool,
    threads: int,
) -> None:
    check(build(rng, size, events, threads), seed, moments, patience=patience, lazy=lazy, wire=wire)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("block", range(rounds(2, 6)))
def test_many_programs(block: int, threads: int) -> None:
    """The same without hypothesis, which is slower than the simulator. It also checks that every mechanism is used."""
    total = {"converged": 0, "drained": 0, "raises": 0, "advances": 0, "withdraws": 0, "refrozen": 0, "retracts": 0}
    for seed in range(block * 150, block * 150 + 150):
        rng = random.Random(seed)
        program = build(rng, rng.randint(2, 7), rng.randint(1, 30), threads)
        moments = [rng.randrange(1001) for _ in range(3)]
        run = check(program, seed, moments, patience=rng.choice((0, 1, 5)), lazy=rng.random() < 0.5)
        for c in run.checkpoints:
            total["converged"] += c.converged
            total["drained"] += c.drained
            total["refrozen"] += max(0, c.counters.freezes - 1)
            for key in ("raises", "advances", "withdraws", "retracts"):
                total[key] += getattr(c.counters, key)
    assert total["converged"] > 180 and all(total.values()), total


def test_program_without_requests_sends_nothing() -> None:
    run = Simulator(HOLE)
    run.run()
    assert run.controller.counters.sent == 0


@pytest.mark.parametrize("program", [HOLE, CROSSED], ids=["hole", "crossed"])
def test_named_programs_at_every_moment(program: Program) -> None:
    for seed in range(3):
        steps = Simulator(program, seed=seed)
        steps.run()
        for moment in range(0, steps.steps + 1, 2):
            run = Simulator(program, seed=seed, requests=(moment,))
            run.run()
            assert len(run.checkpoints) == 1


def test_chain_of_messages() -> None:
    """Rank 1 is below target. It heads a chain of Recvs whose last rank sends after a collective."""
    n = 30
    chain: list[list[Op]] = [
        [Split("world", "a", (0, 1)), Coll("a")],
        [Split("world", "a", (0, 1)), Recv(2), Coll("a")],
    ]
    chain += [[Split("world", "b", tuple(range(2, n))), Recv(r + 1), Send(r - 1, r)] for r in range(2, n - 2)]
    last = tuple(range(2, n))
    chain += [
        [Split("world", "b", last), Split("b", "c", (n - 2, n - 1)), Coll("c"), Send(n - 3, 1)],
        [Split("world", "b", last), Split("b", "c", (n - 2, n - 1)), Compute(3), Coll("c")],
    ]
    for r in range(2, n - 2):
        chain[r].insert(1, Split("b", "d", tuple(range(2, n - 2))))
    advances = 0
    for seed in range(40):
        run = check(chain, seed, [300 + 15 * seed], patience=0)
        advances += sum(c.counters.advances for c in run.checkpoints)
    assert advances


def test_wildcard_server() -> None:
    """Every rank asks the server, which receives from any source. Polls fail, and a collective ends each round."""
    rounds, n = 4, 5
    server: list[Op] = []
    clients: list[list[Op]] = [[] for _ in range(n - 1)]
    for k in range(rounds):
        for _ in clients:
            server += [Recv(ANY, tag=k)]
        server += [Send(r, 100 * k + r, tag=50 + k) for r in range(1, n)]
        for r, ops in enumerate(clients, 1):
            ops += [Compute(3 * r), Send(0, k, tag=k), Recv(0, tag=50 + k, req="q"), Wait(("q",), poll=True)]
        server.append(Coll())
        for ops in clients:
            ops.append(Coll())
    for seed in range(40):
        check([server, *clients], seed, [25 * seed, 500], patience=0)


# ---- the tests can fail: parts of the protocol are removed


def test_without_transitive_advance_the_hole_deadlocks() -> None:
    stuck = 0
    for seed in range(120):
        try:
            Simulator(HOLE, seed=seed, requests=(seed % 60,), broken="not transitive").run()
        except Deadlock as exc:
            stuck += "rank 1 is below target and waits for rank 2" in str(exc)
    assert stuck


def test_keyed_by_group_crossed_ibarriers_are_taken_for_safe() -> None:
    """The paper's clock has one SEQ for congruent communicators. The drain would test the two barriers for ever."""
    seen = 0
    for seed in range(120):
        try:
            Simulator(CROSSED, seed=seed, requests=(seed % 60,), broken="by group").run()
        except Violation as exc:
            seen += "was started only by" in str(exc)
    assert seen


def test_dependency_outside_mpi_needs_the_stall_timeout() -> None:
    """Rank 1, below target, polls a file that rank 2 writes after a collective. MPI can't know of that."""
    program: list[list[Op]] = [
        [*PAIRS[0], Coll("a")],
        [*PAIRS[0], AwaitFlag("f"), Coll("a")],
        [*PAIRS[1], Coll("b"), SetFlag("f")],
        [*PAIRS[1], Compute(20), Coll("b")],
    ]
    stalls = 0
    for seed in range(120):
        run = Simulator(program, seed=seed, requests=(seed % 60,), stall=True)
        run.run()
        stalls += sum(c.counters.stalls for c in run.checkpoints)
    assert stalls


def test_cost_is_linear_in_the_ranks() -> None:
    """The messages of a checkpoint of a loop of world collectives: a small number for each rank, and few rounds."""
    for n in (10, 1000):
        run = Simulator([[Coll()] * 4 for _ in range(n)], seed=3, requests=(2 * n,), patience=0)
        run.run()
        (c,) = run.checkpoints
        assert c.converged and c.counters.freezes == 1 and c.rounds <= 6
        assert c.counters.sent + c.counters.received <= 16 * n


# ---- several threads


def threaded(*bodies: list[Op]) -> Op:
    return Parallel(tuple(bodies))


# The HOLE above, but the rank that must proceed has another thread inside a collective with rank 1, which waits for it.
HOLE_IN_THREADS: list[list[Op]] = [
    [
        Split("world", "a", (0, 1)),
        Split("world", "b", (0,)),
        threaded([Coll("a")], [Compute(3), Coll("b"), Coll("b"), Send(1, 5)]),
    ],
    [Split("world", "a", (0, 1)), Split("world", "b", (1,)), Recv(0), Coll("a")],
]
# Rank 0's second thread waits for a message of rank 2, which is stopped. Its first thread is inside a collective with
# rank 1. Rank 1 is inside another collective and waits for the second thread.
HOLE_BEHIND_INSIDE: list[list[Op]] = [
    [Split("world", "a", (0, 1)), Split("world", "b", (0, 1)), threaded([Coll("b")], [Recv(2), Coll("a")])],
    [Split("world", "a", (0, 1)), Split("world", "b", (0, 1)), Coll("a"), Coll("b")],
    [Split("world", "a", (2,)), Split("world", "b", (2,)), Compute(3), Coll("b"), Coll("b"), Send(0, 1)],
]


def loops(ranks: int, threads: int, rounds: int) -> Program:
    """Each thread has its own communicator and makes barriers on it."""
    made = [Split("world", f"c{k}", tuple(range(ranks))) for k in range(threads)]
    return [[*made, threaded(*([Coll(f"c{k}")] * rounds for k in range(threads)))] for r in range(ranks)]


@pytest.mark.parametrize("program", [HOLE_IN_THREADS, HOLE_BEHIND_INSIDE], ids=["parked", "blocked"])
def test_threads_at_every_moment(program: Program) -> None:
    advances = 0
    for seed in range(20):
        steps = Simulator(program, seed=seed)
        steps.run()
        for moment in range(0, steps.steps + 1, 3):
            run = Simulator(program, seed=seed, requests=(moment,), patience=0)
            run.run()
            advances += run.checkpoints[0].counters.advances
    assert advances


def test_a_thread_waits_for_another_outside_mpi() -> None:
    """Rank 0's first thread comes to the collective in which rank 1 is, after its second thread has passed another one.
    No stall is needed."""
    program: Program = [
        [Split("world", "b", (0, 2)), threaded([AwaitFlag("f"), Coll()], [Coll("b"), Coll("b"), SetFlag("f")])],
        [Split("world", "b", (1,)), Coll()],
        [Split("world", "b", (0, 2)), Compute(9), Coll("b"), Coll("b"), Coll()],
    ]
    for seed in range(60):
        check(program, seed, [5 * seed, 300])


@pytest.mark.slow
def test_threads_do_not_leapfrog() -> None:
    """Threads run loops of barriers. Few pass their target because another thread of their rank is below its own."""
    raises = {"": 0, "any row": 0}
    for broken in raises:
        for seed in range(rounds(2, 8)):
            run = Simulator(loops(60, 3, 40), seed=seed, requests=(1800,), patience=0, broken=broken)
            run.run()
            assert run.checkpoints[0].converged
            raises[broken] += run.checkpoints[0].counters.raises
    assert raises[""] < raises["any row"] / 3, raises


# ---- the tests can fail: parts of the protocol are removed


def fails(program: Program, broken: str, kind: type[Exception], text: str, seeds: int = 120) -> int:
    """The number of runs that end in this way."""
    found = 0
    for seed in range(seeds):
        try:
            Simulator(program, seed=seed, requests=(seed % 60,), broken=broken).run()
        except kind as exc:
            found += text in str(exc)
    return found


def test_one_state_for_all_threads_deadlocks() -> None:
    assert fails(HOLE_IN_THREADS, "one state", Deadlock, "rank 1 is below target and waits for rank 0")
    assert fails(HOLE_BEHIND_INSIDE, "one state", Deadlock, "is below target")
    assert not fails(HOLE_IN_THREADS, "", Exception, "") and not fails(HOLE_BEHIND_INSIDE, "", Exception, "")


HELD_BACK: list[list[Op]] = [
    [Split("world", "b", (0,)), Disable(), Recv(1), Enable(), Coll()],
    [Split("world", "b", (1, 2)), *[Coll("b")] * 5, Send(0, 7), Coll()],
    [Split("world", "b", (1, 2)), *[Coll("b")] * 5, Coll()],
]


def test_who_forbids_checkpoints_is_not_held_back() -> None:
    """Rank 0 is at its target and has disabled checkpoints. It waits for a message that rank 1 sends after
    collectives."""
    assert fails(HELD_BACK, "unrooted", Deadlock, "waiting for rank 0: checkpoints are disabled by the program")
    assert not fails(HELD_BACK, "", Exception, "")


def test_no_checkpoint_while_one_forbids_it() -> None:
    """The simulator checks this in every safe state. Here the checkpoint is requested in the region, which ends with
    the program."""
    run = Simulator(
        [[Disable(), Compute(200), Coll(), Enable(), Compute(50)], [Coll(), Compute(50)]], seed=1, requests=(20,)
    )
    run.run(until_checkpoint=True)
    assert run.checkpoints[0].converged and run.steps > 200


def test_frozen_ranks_must_make_progress_for_others() -> None:
    program: list[list[Op]] = [[Flush(1)] * 20, [Flush(0)] * 20]
    assert fails(program, "deaf", Livelock, "FROZEN", seeds=5)
    assert not fails(program, "", Exception, "")


def test_row_of_a_persistent_collective_outlives_its_request() -> None:
    """Rank 0's part of the operation is complete before rank 1 has started its own. Request_free is local."""
    name: list[Op] = [Split("world", "p", (0, 1))]
    program: list[list[Op]] = [
        [*name, Icoll("x", "p", loose=True), Wait(("x",)), Drop("p", "world"), Compute(30)],
        [*name, Compute(20), Icoll("x", "p"), Wait(("x",)), Drop("p", "world"), Compute(5)],
    ]
    assert fails(program, "early drop", Violation, "was started only by")
    assert not fails(program, "", Exception, "")


def test_row_of_a_communicator_outlives_its_free() -> None:
    """Comm_free is local. Rank 0 has completed a collective and frees the communicator before rank 1 has started it.
    Rank 2 frees only after rank 1 has done so."""
    program: list[list[Op]] = [
        [Split("world", "c", (0, 1, 2)), Coll("c", loose=True), Free("c"), Compute(30)],
        [Split("world", "c", (0, 1, 2)), Compute(20), Coll("c", loose=True), Free("c"), Send(2, 0), Compute(5)],
        [Split("world", "c", (0, 1, 2)), Coll("c"), Recv(1, 0), Free("c"), Compute(5)],
    ]
    assert fails(program, "early drop", Violation, "was started only by")
    assert not fails(program, "", Exception, "")


def test_rows_that_all_have_freed_go() -> None:
    again: list[Op] = [op for i in range(20) for op in (Split("world", f"c{i}", (0, 1)), Coll(f"c{i}"), Free(f"c{i}"))]
    run = Simulator([[*again, Split("world", "last", (0, 1))]] * 2, seed=1)
    run.run()
    assert all(len(rank.clock.rows) <= 4 for rank in run.machine.ranks)


# ---- wrong calls

# Rank 0's second call of each loop is wrong. The other ranks don't know that.
WRONG: list[list[Op]] = [
    [Split("world", "a", (0, 1, 2)), *[Coll("a"), Fail("a"), Compute(3), Coll()] * 3],
    [Split("world", "a", (0, 1, 2)), *[Coll("a"), Compute(9), Coll()] * 3],
    [Split("world", "a", (0, 1, 2)), *[Coll("a"), Coll()] * 3],
]
# Rank 0 makes wrong calls until it reaches the collective in which rank 1 waits for it.
WRONG_BELOW: list[list[Op]] = [
    [Split("world", "a", (0,)), *[Fail("world"), Fail("a")] * 8, Coll()],
    [Split("world", "a", (1,)), Coll()],
]


@pytest.mark.slow
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("program", [WRONG, WRONG_BELOW], ids=["between", "below"])
def test_wrong_calls_at_every_moment(program: Program, lazy: bool) -> None:
    retracts = 0
    for seed in range(8):
        steps = Simulator(program, seed=seed)
        steps.run()
        for moment in range(0, steps.steps + 1):
            run = Simulator(program, seed=seed, requests=(moment,), lazy=lazy)
            run.run()
            assert run.checkpoints[0].converged or run.checkpoints[0].reason == "the job is finishing"
            retracts += run.checkpoints[0].counters.retracts
    assert retracts


@pytest.mark.slow
def test_a_wrong_call_must_not_stay_counted() -> None:
    """Otherwise the other ranks wait for a collective that no rank makes, until the job finishes or for ever."""
    for broken in ("counted error", "silent error"):
        ended = 0
        for seed in range(120):
            run = Simulator(WRONG, seed=seed, requests=(seed % 60,), broken=broken)
            try:
                run.run()
            except (Deadlock, Violation):
                ended += 1
            else:
                ended += not run.checkpoints[0].converged
        assert ended, broken
    assert not fails(WRONG, "", Exception, "")


# ---- windows


def test_a_tight_loop_of_flushes_does_not_hinder_the_freeze() -> None:
    """Flushes are reported neither at their beginning nor at their end. FREEZE waits for a flush that is in
    progress."""
    messages = {"": 0, "flush inside": 0}
    for broken in messages:
        for seed in range(20):
            run = Simulator([[*[Flush(1)] * 300, Coll()], [Coll()]], seed=seed, requests=(20,), broken=broken)
            run.run()
            assert run.checkpoints[0].converged
            messages[broken] += run.checkpoints[0].counters.received
    assert messages[""] < 20 * 20 < messages["flush inside"], messages


def test_window_locks() -> None:
    """The holder is stopped at a collective. A rank below target waits for its lock, which any member may hold."""
    win: list[Op] = [Split("world", "w", (0, 1, 2)), Split("world", "b", (0, 1)), Coll()]
    win2: list[Op] = [Split("world", "w", (0, 1, 2)), Split("world", "b", (2,)), Coll()]
    program: list[list[Op]] = [
        [*win, Compute(5), Coll("b")],
        [*win, Compute(4), Lock("w", 0), Flush(0), Unlock("w", 0), Coll("b")],
        [*win2, Lock("w", 0), Split("b", "e", (2,)), Coll("e"), Flush(0), Unlock("w", 0)],
    ]
    advances = 0
    for seed in range(200):
        run = check(program, seed, [4 * seed + 100], patience=0)
        advances += run.checkpoints[0].counters.advances
    assert advances
    assert fails(program, "not transitive", Deadlock, "waits for any rank of communicator")
