"""The benchmarks run and print every row. Never their figures: a machine for tests has no quiet minute."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[2] / "osu_bench" / "run.py"
NAMES = (
    ["Comm_rank", "Barrier, one rank", "Send to PROC_NULL", "Recv from PROC_NULL", "Sendrecv, self", "Isend+Irecv+Waitall, self", "Barrier"]
    + [f"{call}, {size}" for call in ("Send/Recv, one way", "Bcast", "Allreduce", "Alltoall") for size in ("4 B", "1 KB", "1 MB")]
    + ["/bin/true, 2 ranks", "checkpoint, command to return", "restart (mpirun manapy-restart)", "restart (manapy restart)"]
    + ["checkpoint : dd, both files at once", "checkpoint : dd, one after the other", "image size : data", "restart, images in the page cache"]
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_quick_run_has_every_row(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    done = subprocess.run([sys.executable, str(RUN), "--quick", "--dir", str(tmp_path), "--out", str(out)], capture_output=True, text=True, timeout=590)
    assert done.returncode == 0, done.stderr
    record = json.loads(out.read_text())
    rows = {row["name"].strip(): row for row in record["rows"]}
    assert [name for name in NAMES if name not in rows] == []
    for name, row in rows.items():
        assert len(row["manapy"]) >= 2 and len(row["native"]) in (0, len(row["manapy"])), name
        assert name.split(":")[0].split(",")[0] in done.stdout
    assert {"cpu", "kernel", "file system", "mpi", "commit"} <= record["machine"].keys()
    assert list(tmp_path.iterdir()) == [out]  # it cleans up
