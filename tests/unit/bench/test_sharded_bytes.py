"""The results made from the byte counts of a training: a wrong count is noticed. Real counts are in
tests/integration/bench/test_bench_fcdp.py."""

from __future__ import annotations

from typing import Any

import pytest
from manapy.bench.fcdp import sharded_bytes
from manapy.bench.shared import report
from manapy.bench.shared.samples import Rows
from manapy.fcdp.engine.strategy import STRATEGIES


def record(strategy: str, model: str = "full", micro_batches: int = 2) -> dict[str, Any]:
    """The record of a training that has sent exactly what the closed forms predict."""
    trainable, frozen = (10_000_000, 0) if model == "full" else (200_000, 10_000_000)
    said: dict[str, Any] = {
        "model": model,
        "strategy": strategy,
        "micro_batches": micro_batches,
        "nodes": 2,
        "ranks": 2,
        "trainable": trainable,
        "frozen": frozen,
    }
    expected = sharded_bytes.form(said)
    return said | {part: {"interface": expected[part], "engine": expected[part]} for part in sharded_bytes.PARTS}


def test_the_closed_forms_of_one_training() -> None:
    """Computed by hand: 10 MB over 2 nodes. A gather takes 5 MB, and so does a sum of gradients."""
    mega = {
        strategy: {part: value / 1e6 for part, value in sharded_bytes.form(record(strategy)).items()}
        for strategy in STRATEGIES
    }
    assert mega["zero3"] == {"forward": 10, "backward": 10, "reduce": 10, "step": 30, "first": 30}
    assert mega["fcdp"] == {"forward": 5, "backward": 0, "reduce": 5, "step": 10, "first": 10}
    assert mega["mics"] == {"forward": 0, "backward": 0, "reduce": 10, "step": 10, "first": 10}
    assert sharded_bytes.form(record("fcdp", "lora"))["first"] == 5.2e6


@pytest.mark.parametrize("count", ["interface", "engine"])
@pytest.mark.parametrize("part", sharded_bytes.PARTS)
def test_a_wrong_count_is_a_failure(part: str, count: str) -> None:
    rows = Rows("fcdp-bytes")
    for strategy in STRATEGIES:
        sharded_bytes.add(rows, record(strategy))
    assert report.failures(rows.all()) == []
    wrong = record("zero3", "lora")
    wrong[part][count] += 0.06 * wrong["first" if part == "first" else "step"][count]
    sharded_bytes.add(rows, wrong)
    (line,) = report.failures(rows.all())
    assert (
        line.startswith(f"fcdp-bytes: zero3: {sharded_bytes.PARTS[part]}: {wrong[part][count] / 1e6:.3f} MB")
        and "LoRA, k=2" in line
    )


def test_a_column_for_each_strategy() -> None:
    rows = Rows("fcdp-bytes")
    for strategy in STRATEGIES:
        sharded_bytes.add(rows, record(strategy))
    assert report.columns(rows.all()) == ["", *STRATEGIES, "goal"]
    cells = {line[0]: line[1:] for line in report.lines(rows.all())}
    assert cells["full, k=2: a step, in W"] == [
        "1.000 W",
        "3.000 W",
        "1.500 W",
        "2.000 W",
        "1.000 W",
        "2.000 W",
        "1.500 W",
        "fcdp: ≤ 1.02",
    ]
