"""`manapy bench`: the folder of results. What it measures is in tests/integration/bench."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from manapy import bench, cli
from manapy.bench.shared import commands, machine, plots, tools
from manapy.bench.shared.samples import CLOCK, Row
from manapy.cli.measure import bench as command


@pytest.fixture(autouse=True)
def nothing_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is compiled, and a measurement is one number and a picture."""

    def measure(name: str, setting: commands.Setting, left_out: dict[str, str]) -> list[Row]:
        (setting.pictures / f"{name}.png").touch()
        return [Row(name, "one", "ns", samples={CLOCK: {0: 1.0}})]

    facts = dict.fromkeys(("cpu", "memory", "kernel", "file system", "mpi", "manapy", "load before"), "some")
    nothing: Any = None
    for where, name, value in (
        (tools, "find", lambda: nothing),
        (tools, "compile_programs", lambda found, work: nothing),
        (machine, "facts", lambda found, place: facts),
        (bench, "Guest", lambda found, work: type("Guest", (), {"close": lambda self: None})()),
        (bench, "measure", measure),
        (plots, "available", lambda: False),
    ):
        monkeypatch.setattr(where, name, value)
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    monkeypatch.setenv("MANAPY_CONFIG", "off")
    monkeypatch.chdir(tmp_path)
    yield


def test_results_of_another_run_are_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--only", "calls", "--out", "out"]) == 0
    first = (tmp_path / "out/result.json").read_text()
    assert json.loads(first)["rows"]
    capsys.readouterr()
    assert cli.main(["bench", "--only", "p2p", "--out", "out"]) == 1
    assert capsys.readouterr().err == "manapy: out has the results of another run: name another folder with --out\n"
    assert (tmp_path / "out/result.json").read_text() == first


def test_only_what_this_run_has_written_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/figure5.png").touch()
    assert cli.main(["bench", "--only", "calls", "--out", "out"]) == 0
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("written: ")]
    assert said == "written: out/calls.png, out/result.json"


def test_two_runs_of_a_day_have_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for moment in ("20261130-101112", "20261130-101113"):
        monkeypatch.setattr(command.time, "strftime", lambda form, moment=moment: moment)
        assert cli.main(["bench", "--only", "calls"]) == 0
    assert len(list(tmp_path.glob("manapy-bench-20261130-10111*/result.json"))) == 2
