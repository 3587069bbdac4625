"""The results made from runs of manapy and of other libraries: a training that differs from that of one process is
noticed, and everything is drawn. Real runs are in tests/integration/bench/test_bench_fcdp.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from manapy.bench.fcdp import peer_runs, peers
from manapy.bench.shared import peer_plots, plots, report
from manapy.bench.shared.commands import BenchError
from manapy.bench.shared.samples import Row, Rows


def test_losses_must_be_those_of_one_process() -> None:
    peers.check([5.0, 4.9], [5.0, 4.90001, 4.8])
    for losses in ([5.0, 4.91], [5.0, float("nan")]):
        with pytest.raises(BenchError, match=r"^its loss in step 2 is (4\.91|nan)0*, in one process 4\.900000$"):
            peers.check(losses, [5.0, 4.9])


def test_the_error_of_a_library_is_told_in_one_line() -> None:
    """The messages that its other ranks print later are left out."""
    errors = (
        "[rank1]: Traceback (most recent call last):\n  File ...\nRuntimeError: Connection closed by peer\n"
        "Traceback\nValueError: second\n"
    )
    assert peer_runs.cause(errors) == "RuntimeError: Connection closed by peer"
    assert peer_runs.cause("env: 'no': No such file or directory\n") == "env: 'no': No such file or directory"


def rows() -> list[Row]:
    """The rows of two rounds: the other library takes 2 and 4 times as long."""
    found = Rows("fcdp-fsdp2")
    for number, ratio in enumerate((2.0, 4.0)):
        for name, factor in (("fcdp", 1.0), ("FSDP2", ratio)):
            found.add("full: a step at full speed", "s", name, number, 0.5 * factor)
            found.add("full: a step at 100 Mb/s", "s", name, number, 5 * factor)
            found.add("full: sent by a node in a step", "W", name, number, factor)
    return found.all()


def test_ratios_are_of_one_round_and_have_a_range() -> None:
    its = peers.ratios({"fcdp": {0: 1.0, 1: 2.0}, "FSDP2": {0: 2.0, 1: 8.0, 2: 9.0}, "failed": {}})
    assert its == {"FSDP2": {0: 2.0, 1: 4.0}}
    row = Row("fcdp-fsdp2", "full: times fcdp's at 100 Mb/s", "×", samples=its)
    (cells,) = report.lines([row, *rows()])[:1]
    assert "3.000 × (2.00 to 4.00)" in cells


def test_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    places = [
        (job, f"{kind}, {label}")
        for job, label in (("fcdp-nodes", "2 nodes"), ("fcdp-batches", "batch 4"))
        for kind in ("full", "LoRA")
    ]
    throughput = [
        Row(job, f"{place}: sentences a second at 100 Mb/s", "/s", samples={"fcdp": {0: 3.0}, "FSDP2": {0: 1.0}})
        for job, place in places
    ]
    plots.draw([*rows(), *throughput], tmp_path, "title")
    assert {path.stem for path in tmp_path.iterdir()} == set(peer_plots.FIGURES)
