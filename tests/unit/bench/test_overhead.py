"""The cost of recorders: rows made from invented runs. The real runs are in tests/integration/bench/test_bench.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from manapy.bench.shared import plots, report
from manapy.bench.shared.commands import BenchError
from manapy.bench.shared.samples import NATIVE, RECORDED, UNTRACED, Row
from manapy.bench.trace import overhead

MS = {NATIVE: 100.0, RECORDED: 100.1, "cc": 102.0, UNTRACED: 101.9}


def loop(path: Path, **outputs: str) -> list[Row]:
    """The rows of three rounds. outputs: what a variant prints instead."""

    def variant(name: str, ranks: int, program: list[Any], **env: str) -> str:
        words = [str(word) for word in program]
        log = next((word.partition("=")[2] for word in words if word.startswith("TEXTLOG=")), None)
        if log is not None:
            for rank in range(ranks):
                with Path(f"{log}.{rank}").open("a") as stream:
                    stream.write("a line\n" * 60)
        took = 200.0 if any(word.endswith("recorders.py") for word in words) else 104.0 if log else MS[name]
        assert env == {"OPENBLAS_NUM_THREADS": "1"}
        if name in outputs:
            return outputs[name]
        return (
            "".join(
                f"iteration {i} took {took * (9 if i < overhead.WARM else 1) / 1e3:.6f} s at 1.5\n" for i in range(6)
            )
            + "weights ab12\n"
        )

    tools = SimpleNamespace(python=Path("python"), sources=Path("osu_bench"))
    setting: Any = SimpleNamespace(
        work=path, tools=tools, scale=0.02, rounds=3, variant=variant, progress=lambda fraction, text: None
    )
    return overhead._Loop(setting, "pp=2,micro=8", path / "textlog.so").rows((0, 1))


def test_ratios_have_the_digits_of_the_aim(tmp_path: Path) -> None:
    rows = loop(tmp_path)
    assert not report.failures(rows)
    assert report.columns(rows)[1:4] == ["native", "recorded", "recorded − native (min to max)"]
    cells = {line[0].partition(": ")[2]: line for line in report.lines(rows)}
    assert cells["manapy trace run"][4:] == ["1.0010 (1.0010 to 1.0010)", overhead.GOAL]
    assert cells["what records cost under manapy-launch"][4:] == ["1.0010 (1.0010 to 1.0010)", overhead.GOAL]
    assert cells["what records cost under manapy-launch"][1] == "101.90 ms (--no-trace)"
    assert cells[overhead.NAMES[overhead.PROFILER]][4].startswith("2.0000")
    assert cells["MPI calls of a rank in an iteration"][2] == "10"


def test_a_recorder_that_changes_the_result_has_failed(tmp_path: Path) -> None:
    rows = loop(tmp_path, recorded="iteration 0 took 1.0 s at 1.5\n" * 4 + "weights cd34\n")
    failed = {row.name for row in rows if row.failures}
    assert f"pp=2,micro=8: {overhead.NAMES[RECORDED]}" in failed
    assert all("other weights" in line for line in report.failures(rows))


def test_a_run_without_iterations(tmp_path: Path) -> None:
    one = overhead._Loop(SimpleNamespace(work=tmp_path), "pp=2", tmp_path)  # type: ignore[arg-type]
    with pytest.raises(BenchError, match="no iterations"):
        list(one.read("weights ab12\n"))


@pytest.mark.skipif(not plots.available(), reason="matplotlib is not installed")
def test_picture(tmp_path: Path) -> None:
    plots.draw(loop(tmp_path), tmp_path, "here")
    assert (tmp_path / "figure9-recorders.png").stat().st_size > 5000
