"""Which verdicts count as right in the case studies, and what is read from verdicts. The real jobs are in
tests/integration/bench/test_bench.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from manapy.bench.shared import plots
from manapy.bench.shared.commands import BenchError
from manapy.bench.trace import live

VERDICT = {"rank": 2, "cause": "missing call", "phase": "transfer", "iteration": 20, "micro": 3}


def test_right_and_wrong() -> None:
    first, second = live.CASES
    assert first.right(VERDICT) == {"rank": True, "cause": True, "place": True}
    assert first.right({**VERDICT, "micro": 4}) == {"rank": True, "cause": True, "place": False}
    assert second.right(VERDICT) == {"rank": False, "cause": False}  # it has no place, because it is slow everywhere


def test_a_verdict_that_is_being_written_is_none(tmp_path: Path) -> None:
    path = tmp_path / "verdicts"
    assert live._said(path) == []
    path.write_text('1.5 {"rank": 2}\n2.5 {"ra')
    assert live._said(path) == [(1.5, {"rank": 2})]


def test_a_watcher_that_ends_has_failed() -> None:
    with pytest.raises(BenchError, match="a watcher ended with 1 beside a loop"):
        live._observe("a watcher", "a loop", ["false"], 10.0)


@pytest.mark.skipif(not plots.available(), reason="matplotlib is not installed")
def test_what_a_process_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LOOK", 0.3)
    busy = live._observe("busy", "a loop", ["sh", "-c", "while :; do :; done"], 0.9)
    idle = live._observe("idle", "a loop", ["sleep", "100"], 0.9)
    assert max(busy.shares) > 5 > max(idle.shares) and all(0 < memory < 100 for memory in (*busy.memory, *idle.memory))
    assert busy.moments == sorted(busy.moments) and len(busy.moments) == len(busy.shares) == len(busy.memory) >= 3
    live.draw([busy, idle], tmp_path / "used.png")
    assert (tmp_path / "used.png").stat().st_size > 5000
