"""The rewind (lowerhalf/rdma/requests/rewind*.c) on real queue pairs of Soft-RoCE: after a failure it finds what was
posted."""

from __future__ import annotations

from pathlib import Path

import pytest
from compiling import build_core
from vm import VM
from vm.machine import RAILS

SEED, ROUNDS = 1, 12


@pytest.mark.slow
def test_outstanding_work_is_found(rdma_vm: VM, shared_path: Path, root: Path) -> None:
    """Sends by both interfaces, receives, own and shared receive queues. The path is cut in one direction or in both,
    or the error state is forced."""
    rdma = root / "lowerhalf" / "rdma"
    sources = [Path(__file__).parent / "rewind_real.c", *sorted((rdma / "requests").glob("*.c"))]
    program = build_core(shared_path / "rewind_real", sources, f"-I{rdma}", "-libverbs")
    done = rdma_vm.run([program, "rxa0", "10.0.0.1", "rxb0", "10.0.0.2", RAILS, str(SEED), str(ROUNDS)], timeout=240)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[-1] == "ok", done.stdout + done.stderr
    assert sum(line.startswith("round ") for line in lines) == ROUNDS  # `rails`, which it runs, prints such lines, too
