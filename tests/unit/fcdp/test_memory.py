"""The device's arena, and how much of it strategies need."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manapy.fcdp.engine import budget
from manapy.fcdp.engine.arena import Arena
from manapy.fcdp.engine.strategy import STRATEGIES
from manapy.fcdp.engine.units import Layout, Unit
from manapy.fcdp.errors import BudgetError

UNITS = [
    Unit("small", (("w", (80,)),)),
    Unit("large", (("w", (800,)),)),
    Unit("base", (("w", (400,)),), trainable=False),
]
LAYOUTS = [Layout(unit.size, 2, 4) for unit in UNITS]


def test_arena() -> None:
    arena = Arena(1000)
    one = arena.take(100, "float32", "one")
    assert (one.array.shape, arena.used, arena.utilisation) == ((100,), 400, 0.4)
    with pytest.raises(
        BudgetError, match="two needs 601 bytes of the device, 400 bytes of 1000 bytes are in use: 1 bytes are missing"
    ):
        arena.hold(601, "two")
    two = arena.hold(600, "two")
    one.free()
    one.free()
    assert (arena.used, arena.peak) == (600, 1000)
    two.free()
    assert arena.used == 0


def test_what_stays() -> None:
    """Computed by hand: shards of 10, 100 and 50 elements, slices of 20, 200 and 100; values and gradients; 200 for
    receiving."""
    bytes_of = {name: budget.resident(UNITS, LAYOUTS, strategy) // 4 for name, strategy in STRATEGIES.items()}
    assert bytes_of["fcdp"] == bytes_of["zero3"] == 2 * 110 + 50 + 200
    assert bytes_of["hpz"] == bytes_of["hpz_naive"] == bytes_of["zero3"] + 320
    assert bytes_of["mics"] == 2 * 220 + 100 + 200


def test_what_is_gathered_in_a_narrower_type() -> None:
    """The slice and the unit in use need half the bytes. Values, gradients and the buffer for receiving don't."""
    units = [replace(unit, gathered_as="float16") for unit in UNITS]
    assert budget.resident(units, LAYOUTS, STRATEGIES["hpz"]) == 4 * (2 * 110 + 50 + 200) + 2 * 320
    assert budget.resident(units, LAYOUTS, STRATEGIES["mics"]) == budget.resident(UNITS, LAYOUTS, STRATEGIES["mics"])
    assert [budget.working(units, LAYOUTS, index, 0) for index in (1, 2)] == [2 * 800 + 4 * 800, 2 * 400]


def test_how_far_ahead() -> None:
    """In the backward pass of the large unit: 800 and its gradient, then the small unit ahead, then the frozen one."""
    order = [2, 0, 1]
    units, layouts = [UNITS[i] for i in order], [LAYOUTS[i] for i in order]
    zero3 = STRATEGIES["zero3"]
    stays = budget.resident(units, layouts, zero3)
    for elements, ahead in ((1600, 0), (1679, 0), (1680, 1), (2079, 1), (2080, 2)):
        assert budget.deepest(units, layouts, zero3, stays + 4 * elements, 2) == ahead
    assert budget.deepest(units, layouts, zero3, None, 2) == 2
    assert budget.deepest(UNITS, LAYOUTS, STRATEGIES["fcdp"], None, 2) == 0


def test_too_small_a_budget_names_the_unit() -> None:
    for strategy in STRATEGIES.values():
        needs = budget.resident(UNITS, LAYOUTS, strategy) + 4 * 1600
        budget.check(UNITS, LAYOUTS, strategy, needs)
        with pytest.raises(BudgetError, match="unit 'large' .* 1 bytes are missing"):
            budget.check(UNITS, LAYOUTS, strategy, needs - 1)
