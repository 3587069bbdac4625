"""Checkpoints of many stubs: what remains of a run in which one number of ranks fails."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from manapy.bench.scale import load
from manapy.bench.shared import report
from manapy.bench.shared.commands import BenchError
from manapy.bench.shared.samples import CLOCK, Rows


@pytest.mark.parametrize("good", [0, 2])
def test_sizes_before_a_failure_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good: int) -> None:
    tried = []

    def measure(setting: Any, rows: Rows, ranks: int, nodes: int) -> None:
        tried.append(ranks)
        if len(tried) > good:
            raise BenchError("the stubs do not connect")
        for what in (load.WHOLE, load.SAFE):
            rows.add(f"{ranks} ranks, {nodes} nodes: {what}", "ms", CLOCK, 0, 1.0)

    monkeypatch.setattr(load, "_measure", measure)
    setting: Any = SimpleNamespace(simulated=10_000, pictures=tmp_path, progress=lambda fraction, text: None)
    rows = load.scale(setting)
    sizes = [ranks for ranks, _ in load.SIZES]
    assert tried == sizes[: good + 1]
    assert [row.name.split()[0] for row in rows if row.samples] == [str(n) for n in sizes[:good] for _ in range(2)]
    (failure,) = report.failures(rows)
    assert "the stubs do not connect" in failure and f"{sizes[good]} ranks" in failure
