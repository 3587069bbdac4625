"""The model of two-phase commit, and the counts of both protocols for different numbers of ranks."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from manapy.clock.model import scale
from manapy.clock.model.programs import Coll, Compute, Icoll, Op, Recv, Send, Split
from manapy.clock.model.two_phase import TwoPhase


def program(rng: random.Random, size: int) -> list[list[Op]]:
    """A correct program: one sequence of events, projected on the ranks."""
    comms, ops = {"world": tuple(range(size))}, [[] for _ in range(size)]  # type: ignore[var-annotated]
    for k in range(rng.randint(1, 20)):
        name = rng.choice(list(comms))
        kind = rng.random()
        if kind < 0.5:
            for r in comms[name]:
                ops[r].append(Coll(name))
        elif kind < 0.6:
            part = tuple(sorted(rng.sample(comms[name], rng.randint(1, len(comms[name])))))
            rest = tuple(r for r in comms[name] if r not in part)
            for i, members in enumerate((part, rest)):
                for r in members:
                    ops[r].append(Split(name, f"c{k}.{i}", members))
                if members:
                    comms[f"c{k}.{i}"] = members
        elif kind < 0.8:
            ops[rng.randrange(size)].append(Compute(rng.choice((1, 20))))
        elif len(comms[name]) > 1:
            src, dst = rng.sample(comms[name], 2)
            ops[src].append(Send(dst, k, tag=k, comm=name, sync=False))
            ops[dst].append(Recv(src, tag=k, comm=name))
    return ops


def test_two_phase_commit_finds_a_safe_state() -> None:
    """TwoPhase itself raises an error in a state that isn't safe."""
    gone = 0
    for seed in range(600):
        rng = random.Random(seed)
        ops = program(rng, rng.randint(2, 7))
        plain = TwoPhase(ops, seed=seed)
        plain.run()
        cost = TwoPhase(ops, seed=seed, request=rng.randrange(plain.steps + 1)).run()
        assert 4 * len(ops) <= cost.control <= 8 * len(ops)
        gone += cost.rounds > 2
    assert gone


def test_barriers_cost_messages_when_nothing_happens() -> None:
    cost = TwoPhase(scale.world(32)).run()
    assert cost.control == 0 and cost.barrier_messages == 5 * cost.collectives


def test_two_phase_commit_has_no_nonblocking_collectives() -> None:
    with pytest.raises(TypeError, match="Icoll"):
        TwoPhase([[Icoll("r")]]).run()


def test_counts(tmp_path: Path) -> None:
    """The counts are linear in the ranks, with a bounded number of rounds. In an undisturbed run the clock adds
    nothing, and the barriers add log2."""
    pytest.importorskip("matplotlib")
    rows = scale.measure([16, 64, 256])
    assert {(r.program, r.protocol, r.ranks) for r in rows} == {
        (p, q, n) for p in scale.PROGRAMS for q in ("cc", "2pc") for n in (16, 64, 256)
    }
    for row in rows:
        assert row.control <= 16 * row.ranks and row.rounds <= 6
        assert row.steady == 0 if row.protocol == "cc" else row.steady > 2
    scale.plot(rows, tmp_path / "scale.png")
    assert (tmp_path / "scale.png").stat().st_size > 10_000
