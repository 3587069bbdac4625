"""`manapy bench shift` runs in its own machine and prints its rows. Its figures are not checked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from manapy.core import installation
from vm import VM

MANAPY = Path(sys.executable).parent / "manapy"
ROWS = {
    "ib_write_bw": [
        "before a failure",
        "switch: ends with an error after",
        "switch: on the backup",
        "switch: after the return",
        "switch: no traffic for",
    ],
    "fallback": [
        "1 queue pair: detect: failure to error",
        "1 queue pair: answer",
        "1 queue pair: error to replayed",
        "1 queue pair: error to first completion",
    ],
    "control": [
        "ibv_open_device",
        "ibv_reg_mr, 1 MB",
        "ibv_modify_qp, RTS",
        "ibv_modify_qp, RTS, slowest",
        "ibv_destroy_qp",
        "connected to protected",
    ],
    "storm": ["seed 1: failures", "seed 1: messages checked"],
}


def bench(*arguments: object, cwd: Path, path: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **({"PATH": path} if path else {})}
    return subprocess.run(
        [str(MANAPY), "bench", *map(str, arguments)], cwd=cwd, env=env, capture_output=True, text=True, timeout=600
    )


@pytest.fixture(autouse=True)
def complete() -> None:
    """manapy has its RDMA part."""
    if installation.library("libmanapy_shift.so") is None:
        pytest.skip(
            "manapy was built without libmanapy_shift.so (apt install libibverbs-dev, then install manapy again)"
        )


@pytest.mark.long
def test_quick_run(rdma_machine: VM, tmp_path: Path) -> None:
    rdma_machine.stop()  # one machine at a time
    done = bench("--quick", "--only", ",".join(ROWS), "--storm", 2, "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {
        (row["job"], row["name"]): row for row in json.loads((tmp_path / "out" / "result.json").read_text())["rows"]
    }
    for job, names in ROWS.items():
        for name in names:
            assert rows[job, name]["failures"] == {} and rows[job, name]["samples"], name
            assert name in done.stdout
    assert rows["control", "ibv_create_qp"]["ratio"]["shift"]["median"] > 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "result.json",
        "ib_write_bw.csv",
        "figure8-ib_write_bw.png",
        "figure9-verbs.png",
        "fallback.png",
    }
    assert "switch,shift," in (tmp_path / "out" / "ib_write_bw.csv").read_text()
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]  # it cleans up


def test_no_machine(tmp_path: Path) -> None:
    """Without QEMU or perftest: one line that says what to install."""
    few = tmp_path / "bin"
    few.mkdir()
    for name in ("cc", "as", "ld"):
        (few / name).symlink_to(shutil.which(name) or pytest.skip(f"no {name}"))
    done = bench("--only", "storm", cwd=tmp_path, path=str(few))
    assert (
        done.returncode == 1
        and "storm is left out: no virtual machine: no qemu-system-x86_64" in done.stderr
        and "Traceback" not in done.stderr
    ), done.stderr
