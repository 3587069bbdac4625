"""The results made from samples of memory and of the network. The trainings are in
tests/integration/bench/test_bench_fcdp.py."""

from __future__ import annotations

from manapy.bench.fcdp import sharded_memory
from manapy.bench.fcdp.sharded_times import traced
from manapy.bench.shared.samples import Rows


def test_a_batch_that_is_too_large_is_a_failure() -> None:
    rows = Rows("fcdp-memory")
    for strategy, batch in (("fcdp", 64), ("zero3", 64), ("hpz", 32), ("mics", 0)):
        rows.add("batch", "", strategy, 0, batch)
    (row,) = rows.all()
    sharded_memory.check(row)
    assert row.failures == {}
    row.samples["zero3"][0], row.samples["hpz"][0] = 32, 128
    sharded_memory.check(row)
    assert row.failures == {"zero3": "32 samples, fcdp takes 64", "hpz": "128 samples, fcdp takes 64"}


def test_zero3_and_fcdp_take_what_the_paper_says() -> None:
    for nodes, paper in sharded_memory.PAPER.items():
        for name, (batch, _) in paper.items():
            assert sharded_memory.largest("fcdp", nodes, name) == sharded_memory.largest("zero3", nodes, name) == batch


def test_rates_by_phase_without_the_first_step() -> None:
    moments = [
        (10.0, "step"),
        (10.0, "forward"),
        (10.2, "backward"),
        (10.4, "step"),
        (10.4, "forward"),
        (10.6, "backward"),
        (10.7, "reduce"),
        (10.8, "end"),
    ]
    samples = [
        (9.9, 0),
        (10.1, 9_000_000),
        (10.3, 9_000_000),
        (10.5, 10_000_000),
        (10.7, 12_000_000),
        (10.8, 12_500_000),
        (10.9, 99_000_000),
    ]
    trace = traced("zero3", samples, moments)
    assert [round(moment, 6) for moment in trace.times] == [0.3, 0.5, 0.7, 0.8] and [
        round(rate) for rate in trace.rates
    ] == [0, 5, 10, 5]
    assert [round(rate) for rate in trace.chosen("forward")] == [5] and [
        round(rate) for rate in trace.chosen("backward")
    ][:1] == [10]
