"""`manapy trace import` of what PyTorch records itself: a job in which one rank keeps the others waiting, and one in
which a rank is slow. tests/unit/trace/convert has recordings of the same program, and files that are damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jobs import BIN, PATIENCE, PROGRAMS
from needed import need

need("torch", "no PyTorch: pip install '.[torch]'")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recordings of both jobs. Loading PyTorch takes most of the time: one process forks all ranks."""
    folder = tmp_path_factory.mktemp("recorded")
    subprocess.run([sys.executable, PROGRAMS / "trace/record_torch.py", folder], timeout=2 * PATIENCE, check=True)
    return folder


def verdict(out: Path, paths: list[Path], *options: str) -> tuple[int, dict[str, Any]]:
    """Import these files, and ask why. Returns the exit code and the first verdict."""
    command = [BIN / "manapy", "trace", "import", *paths, "--out", out, *options]
    subprocess.run(command, timeout=PATIENCE, check=True)
    why = subprocess.run([BIN / "manapy", "why", out, "--json"], timeout=PATIENCE, stdout=subprocess.PIPE)
    return why.returncode, json.loads(why.stdout)["verdicts"][0]


@pytest.mark.parametrize("form", ["", ".json"])
def test_the_rank_that_others_wait_for_in_dumps(recorded: Path, form: str, tmp_path: Path) -> None:
    dumps = [recorded / f"hung-{rank}{form}" for rank in range(4)]
    code, said = verdict(tmp_path / "out", dumps, "--ranks", "4")
    assert code == 3 and said["state"] == "late" and said["rank"] == 2, said
    assert "has not called MPI_Iallreduce on default_pg (call 7 there) yet" in said["sentence"]


def test_the_slow_rank_in_traces_of_the_profiler(recorded: Path, tmp_path: Path) -> None:
    code, said = verdict(tmp_path / "out", [recorded / f"slow-{rank}.json" for rank in range(4)])
    assert code == 3 and said["state"] == "slow" and said["rank"] == 1, said
