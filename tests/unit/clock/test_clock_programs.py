"""Random correct programs, random schedules, requests at random moments: the checkpoint always converges, at a safe state, and
the program ends as it does without. The simulator has no time-outs: what hangs is a Deadlock, what runs away a Livelock.
"""

from __future__ import annotations

import random

import pytest
from clock_programs import build, results
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manapy.clock.model import Deadlock, Simulator, Violation
from manapy.clock.programs import (
    ANY,
    AwaitFlag,
    Coll,
    Compute,
    Icoll,
    Op,
    Program,
    Recv,
    Send,
    SetFlag,
    Split,
    Wait,
)

PAIRS = [Split("world", "a", (0, 1))], [Split("world", "b", (2, 3))]
# Rank 0 is inside a collective of {0,1}; rank 1 needs a message that rank 2 sends behind a collective of {2,3}.
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
    """Run with and without checkpoints (moments: per mille of the undisturbed run's steps); both must end alike."""
    plain = Simulator(program, seed=seed)
    expected = results(plain.run(), len(program))
    requests = sorted(m * plain.steps // 1000 for m in moments)
    run = Simulator(program, seed=seed + 1, requests=requests, **options)  # type: ignore[arg-type]
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
    rng: random.Random, size: int, events: int, seed: int, moments: list[int], patience: int, lazy: bool, wire: bool, threads: int
) -> None:
    check(build(rng, size, events, threads), seed, moments, patience=patience, lazy=lazy, wire=wire)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("block", range(6))
def test_many_programs(block: int, threads: int) -> None:
    """The same without hypothesis, which is slower than the simulator; sees that every mechanism is at work."""
    total = {"converged": 0, "drained": 0, "raises": 0, "advances": 0, "withdraws": 0, "refrozen": 0}
    for seed in range(block * 150, block * 150 + 150):
        rng = random.Random(seed)
        program = build(rng, rng.randint(2, 7), rng.randint(1, 30), threads)
        moments = [rng.randrange(1001) for _ in range(3)]
        run = check(program, seed, moments, patience=rng.choice((0, 1, 5)), lazy=rng.random() < 0.5)
        for c in run.checkpoints:
            total["converged"] += c.converged
            total["drained"] += c.drained
            total["refrozen"] += max(0, c.counters.freezes - 1)
            for key in ("raises", "advances", "withdraws"):
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
    """Rank 1 is below target and the head of a chain of Recvs whose end sends behind a collective."""
    n = 30
    chain: list[list[Op]] = [[Split("world", "a", (0, 1)), Coll("a")], [Split("world", "a", (0, 1)), Recv(2), Coll("a")]]
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
    """Every rank asks the server, which receives from any; polls fail; a collective ends each round."""
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


# ---- the tests can fail: the protocol with a part taken out


def test_without_transitive_advance_the_hole_deadlocks() -> None:
    stuck = 0
    for seed in range(120):
        try:
            Simulator(HOLE, seed=seed, requests=(seed % 60,), broken="not transitive").run()
        except Deadlock as exc:
            stuck += "rank 1 is below target and waits for rank 2" in str(exc)
    assert stuck


def test_keyed_by_group_crossed_ibarriers_are_taken_for_safe() -> None:
    """The paper's clock: one SEQ for congruent communicators. The drain would test the two barriers for ever."""
    seen = 0
    for seed in range(120):
        try:
            Simulator(CROSSED, seed=seed, requests=(seed % 60,), broken="by group").run()
        except Violation as exc:
            seen += "was started only by" in str(exc)
    assert seen


def test_dependency_outside_mpi_needs_the_stall_timeout() -> None:
    """Rank 1, below target, polls a file that rank 2 writes behind a collective: nothing MPI can know."""
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
    """Messages of a checkpoint of a loop of world collectives: a small number for each rank, few rounds."""
    for n in (10, 1000):
        run = Simulator([[Coll()] * 4 for _ in range(n)], seed=3, requests=(2 * n,), patience=0)
        run.run()
        (c,) = run.checkpoints
        assert c.converged and c.counters.freezes == 1 and c.rounds <= 6
        assert c.counters.sent + c.counters.received <= 16 * n
