"""`manapy bench fcdp` runs and has every row, and what doesn't depend on the machine's mood is right. Never its times."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs import manapy
from manapy.bench import FCDP_JOBS
from manapy.fcdp.strategy import STRATEGIES

Samples = dict[str, list[float]]


def bench(tmp_path: Path, *arguments: str) -> tuple[dict[tuple[str, str], Samples], dict[str, Any]]:
    """Rows by job and name, and all that was written."""
    done = manapy("bench", "fcdp", "--quick", *arguments, "--out", tmp_path / "out", timeout=290, cwd=tmp_path, env={"CC": "/no/such/compiler"})  # it needs none
    written = json.loads((tmp_path / "out" / "result.json").read_text())
    if not written["rows"] and written["left out"]:
        pytest.skip(str(written["left out"]))
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]  # it cleans up
    return {(row["job"], row["name"]): row["samples"] for row in written["rows"]}, written


@pytest.fixture
def no_nodes_left() -> Iterator[None]:
    yield
    if os.geteuid() == 0:
        left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        assert "manapy-bench" not in left


def test_quick_run(tmp_path: Path, no_nodes_left: None) -> None:
    rows, written = bench(tmp_path)
    assert {job for job, _ in rows} | set(written["left out"]) == set(FCDP_JOBS)
    for model in ("full", "LoRA"):
        for k in (1, 2):
            for count in ("interfaces", "engine's counters"):
                differences = rows["fcdp-bytes", f"{model}, k={k}: {count} beside the closed form, at most"]
                assert set(differences) == set(STRATEGIES) and max(value for (value,) in differences.values()) <= 5
    assert rows["fcdp-bytes", "full, k=2: a step, in W"]["fcdp"][0] <= 1.02
    if "fcdp-fsdp2" not in written["left out"]:
        sent = rows["fcdp-fsdp2", "full: sent by a node in a step"]
        assert sent["fcdp"][0] <= 1.03 and 2.95 <= sent["FSDP2"][0] <= 3.2  # with headers, of a small model
        assert rows["fcdp-fsdp2", "full: times fcdp's at 100 Mb/s"]["FSDP2"][0] > 0
