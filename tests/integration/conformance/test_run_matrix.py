"""tools/matrix on two cells: one is right, and one whose program gives another result than natively is not."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "conformance"))

from launchers import DEBIAN_MPICH, OPEN_MPI_4  # noqa: E402
from matrix import __main__ as tool  # noqa: E402
from matrix import cells  # noqa: E402


def test_two_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    DEBIAN_MPICH.skip_if_missing()
    OPEN_MPI_4.skip_if_missing()
    monkeypatch.setenv("MANAPY_TRACE_ROOT", str(tmp_path))
    file, table = tmp_path / "cells.json", tmp_path / "table.md"
    arguments = ["--results", str(tmp_path / "runs"), "--json", str(file), "--markdown", str(table)]
    arguments += ["--only", "C for MPICH:mpich:mpich4", "--only", "C for MPICH:mpich:openmpi4"]
    native = cells.native

    def wrong(*given: object) -> cells.Result:
        result = native(*given)  # type: ignore[arg-type]
        return dataclasses.replace(result, texts={**result.texts, "sum": "0"})

    assert tool.main(arguments) == 0
    assert [one["cause"] for one in json.loads(file.read_text())] == ["", ""]
    assert "| C for MPICH | 2 of 2 |" in table.read_text() and "2 of 2" in capsys.readouterr().out
    monkeypatch.setattr(tool, "native", wrong)
    assert tool.main(arguments[:-2]) == 1
    assert "C for MPICH, MPICH 5.0 to MPICH 4.0: natively and here: sum: " in capsys.readouterr().out
