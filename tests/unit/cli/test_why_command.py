"""`manapy why` and `manapy trace report` on folders of saved trace files, and on what is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from manapy import cli
from manapy.trace import format
from manapy.trace.events import Op
from traces import SECOND, receive, saved

def test_a_deadlock_in_saved_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path / "saved", receive(1), receive(0), end=format.RUNNING)
    assert cli.main(["why", str(folder)]) == 4
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "deadlock of ranks 0, 1: rank 0 waits in MPI_Recv from rank 1, tag 3; rank 1 waits in MPI_Recv from rank 0, tag 3"
    assert any(line.startswith("  cause: deadlock") for line in said) and said[-1].startswith("  next: ")


def test_as_data_with_the_table_of_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = {"op": Op.FINALIZE, "enter": 2 * SECOND, "exit": 2 * SECOND + 1}
    folder = saved(tmp_path / "saved", done, done)
    assert cli.main(["why", str(folder), "--json", "--waits"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["state"] == "healthy" and said["verdicts"][0]["state"] == "healthy"
    assert [(row["rank"], row["call"], row["calls"]) for row in said["waits"] if row["call"] == "MPI_Barrier"] == [(0, "MPI_Barrier", 1), (1, "MPI_Barrier", 1)]


def test_a_rank_whose_file_is_damaged_is_not_accused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path / "saved", receive(1), receive(0), end=format.RUNNING)
    (folder / format.file_name(1)).write_bytes(b"not a trace")
    assert cli.main(["why", str(folder)]) == 1
    said = capsys.readouterr()
    assert "rank 1, of which there is no trace" in said.out and "truncated" in said.err


def test_a_page_of_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path / "saved", receive(1), receive(0), end=format.RUNNING)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["trace", "report", str(folder)]) == 0
    sentence, written = capsys.readouterr().out.splitlines()
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"<b>{sentence}</b>" in page and sentence.startswith("deadlock of ranks 0, 1")
    assert written.startswith("4 records of 2 ranks in report.html (") and "<td>MPI_Recv from rank 0, tag 3</td>" in page
    assert cli.main(["trace", "report", str(folder), "--schedule", "tp=4,pp=2,dp=1,micro=2", "--out", "other.html"]) == 0
    assert "is one of 8 ranks, and the trace is of 2" in (tmp_path / "other.html").read_text(encoding="utf-8")
    assert cli.main(["trace", "report", str(folder), "--out", "nowhere/report.html"]) == 1
    said = capsys.readouterr().err
    assert "nowhere" in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["nowhere"], 1),
        (["."], 1),
        (["broken"], 1),
        ([".", "--run", "true"], 2),
        ([".", "--on-hang", "kill"], 2),
        ([".", "--watch", "--every", "0"], 2),
        ([".", "--schedule", "tp=two"], 2),
        ([".", "--on-hang", "dance"], 2),
    ],
)
def test_one_line_for_what_is_wrong(arguments: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / format.file_name(0)).write_bytes(b"not a trace")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MANAPY_TRACE_ROOT", str(tmp_path / "shm"))
    assert cli.main(["why", *arguments]) == code
    said = capsys.readouterr()
    assert not said.out and said.err and "Traceback" not in said.err
