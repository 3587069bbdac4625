"""Job arrays: each task has a chain of its own, and a job that continues it is no array."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_slurm import FakeSlurm
from manapy import cli
from manapy.chain import batch

TASK = {"SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_MAX": "100"}
SCRIPT = """#!/bin/bash
#SBATCH --array=1-100
#SBATCH -a 1-100 --time=5   # a comment
#SBATCH --comment='no --array' --arr 1-100
#SBATCH --nodes=1 -A1
true
"""


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeSlurm(tmp_path / "bin", monkeypatch)
    for name, value in TASK.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("plain", [True, False])
def test_task_of_an_array(task: None, tmp_path: Path, plain: bool) -> None:
    """Submitted by plain sbatch, or by `manapy slurm chain`."""
    directory, command = tmp_path / "manapy-chain-17", [str(tmp_path / "job.sh"), "argument"]
    (tmp_path / "job.sh").write_text(SCRIPT)
    options = ["-a", "1-3", "--qos=low", "--array", "4", "-a5", "--account=a", "--array=6"]
    if not plain:
        parent = batch.prepare(directory, SCRIPT, ["argument"], [], options, "chain")
        assert "--array=1-100" in (parent.dir / "batch.sh").read_text(), "the first job is an array"
        assert parent.record["sbatch"] == options and "environment" not in parent.record
    chain = batch.open_in_job(None if plain else directory, command, [], "chain")
    assert chain.dir == directory / "task-2" and chain.record["command"] == [str(chain.dir / "script"), "argument"]
    assert chain.record["environment"] == TASK
    assert chain.record["sbatch"] == ([] if plain else ["--qos=low", "--account=a"])
    assert (chain.dir / "batch.sh").read_text().splitlines()[1:4] == [
        "#SBATCH --time=5",
        "#SBATCH '--comment=no --array'",
        "#SBATCH --nodes=1 -A1",
    ]
    again = batch.open_in_job(None if plain else directory, command, [], "chain")
    assert again.record == chain.record


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("command", ["status", "history"])
def test_the_whole_array(
    task: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, plain: bool
) -> None:
    """A line names the chain of a task."""
    directory = tmp_path / "manapy-chain-17"
    (tmp_path / "job.sh").write_text(SCRIPT)
    if not plain:
        batch.prepare(directory, SCRIPT, [], [], [], "chain")
    batch.open_in_job(None if plain else directory, [str(tmp_path / "job.sh")], [], "chain")
    assert cli.main([command, str(directory)]) == (1 if plain else 0)
    said = capsys.readouterr()
    if plain:
        some = f"no chain, but some are in it: name one, such as {directory}/task-2"
        assert (said.out, said.err) == ("", f"manapy: {directory}: {some}\n")
    else:
        own = f"a job array: each task has a chain of its own, such as {directory}/task-2"
        assert said.out.splitlines()[0] in (f"{directory}: {own}", f"chain {directory}: {own}") and not said.err


def test_job_that_is_no_array(task: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TASK:
        monkeypatch.delenv(name)
    (tmp_path / "job.sh").write_text(SCRIPT)
    assert "environment" not in batch.open_in_job(None, [str(tmp_path / "job.sh")], [], "chain").record
