"""The experiments of `manapy bench trace`, shortened; the rules that are compared; and which verdicts count as
right."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from manapy.bench.jobs import JOBS
from manapy.bench.shared import report
from manapy.bench.shared.samples import MANAPY, Row
from manapy.bench.trace import comparators, diagnosis
from manapy.trace.model.schedule import parse
from manapy.trace.model.verdict import Phase
from manapy.bench.trace.simulate import Fault, Kind, Model, simulate, snapshot

MODEL = Model(parse("tp=2,pp=4,dp=2,micro=8"), iterations=6, layers=2)


def setting(path: Path, scale: float = 0.01) -> Any:
    return SimpleNamespace(scale=scale, seed=4711, pictures=path, progress=lambda fraction, text: None)


def value(rows: list[Row], name: str, method: str = MANAPY) -> float:
    (row,) = [row for row in rows if row.name == name]
    return row.samples[method][0]


def test_scores() -> None:
    score = diagnosis.Score()
    for truth, found in ((True, True), (True, False), (False, True), (False, False), (True, True)):
        score.add(truth, found, rank=True)
    assert (score.true_positive, score.false_negative, score.false_positive, score.true_negative) == (2, 1, 1, 1)
    assert score.precision == score.recall == score.f1 == pytest.approx(2 / 3) and score.right == {"rank": 2}


@pytest.mark.parametrize("name", ["hangs", "slowdowns"])
def test_methods_side_by_side(name: str, tmp_path: Path) -> None:
    rows = getattr(diagnosis, name)(setting(tmp_path))
    rules = comparators.HANGS if name == "hangs" else comparators.SLOWDOWNS
    assert report.columns(rows) == ["", *(sorted({MANAPY, *rules}, key=[MANAPY, *rules].index)), "goal"]
    assert value(rows, "F1") == value(rows, "rank right") == value(rows, "place right") == 100
    assert not list(tmp_path.iterdir())  # nothing is kept, because nothing went wrong
    counted = sum(value(rows, f"{what} {sign}") for what in ("true", "false") for sign in ("positive", "negative"))
    assert counted == 2 * len(diagnosis.HANGS)


@pytest.mark.parametrize("name", ["locations", "thresholds", "analysis", "alarms"])
def test_the_other_experiments_run(name: str, tmp_path: Path) -> None:
    rows = JOBS[name].measure(setting(tmp_path, 0.001 if name == "alarms" else 0.01))
    assert rows and not report.failures(rows) and report.lines(rows)
    if name == "alarms":
        assert value(rows, "false alarms") == 0


def test_runs_depend_on_the_seed_only(tmp_path: Path) -> None:
    first, again = (list(diagnosis._runs(setting(tmp_path), 2, 1)) for _ in range(2))
    assert [one.fault for one in first] == [one.fault for one in again] and first[2].fault is None
    assert [one.performance for one in first] == [one.performance for one in again] and first[2].performance == 1


def hung(kind: Kind, phase: Phase) -> Any:
    run = simulate(MODEL, [Fault(kind, 9, 3, 2, phase, True)], 1)
    assert run.trace is not None
    return run.trace


def test_rules_for_hangs() -> None:
    spin, link, collective = (
        hung(Kind.SPIN, Phase.BACKWARD),
        hung(Kind.DROP, Phase.TRANSFER),
        hung(Kind.DROP, Phase.BACKWARD),
    )
    assert (comparators.jit(spin), comparators.c4(spin)) == (9, None)
    assert (comparators.jit(link), comparators.c4(link)) == (None, 9)
    assert (comparators.jit(collective), comparators.c4(collective)) == (None, 8)
    assert comparators.megascale_hang(spin) is None
    running = simulate(MODEL, (), 1).trace
    assert running is not None
    for share in (0.2, 0.5, 0.8):
        seen = snapshot(
            running, int(running.events["enter"].min() + share * (running.now - running.events["enter"].min()))
        )
        assert comparators.jit(seen) is None and comparators.c4(seen) is None


def test_rules_for_slowdowns() -> None:
    healthy = simulate(MODEL, (), 1, events=False)
    slow = simulate(MODEL, [Fault(Kind.COMPUTE, 9, 5, 2, Phase.BACKWARD, seconds=3.0)], 1, events=False)
    history = comparators.History.of(MODEL.schedule, healthy.timings[1:4])
    for name, rule in comparators.SLOWDOWNS.items():
        assert rule(history, slow.timings[5], float(slow.lengths[5])) == 9, name
        assert rule(history, healthy.timings[5], float(healthy.lengths[5])) is None, name
