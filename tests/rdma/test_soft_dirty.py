"""Changed pages in the older way of the kernel (--dirty soft-dirty), which the machine's kernel has."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from vm import VM

TESTS = Path(__file__).resolve().parent.parent
JOBS = "integration/moments/test_incremental.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "chosen"), [("unit/lowerhalf/test_watch.py", "soft-dirty"), (JOBS, "any_checkpoint and soft-dirty")]
)
def test_in_the_machine(rdma_vm: VM, file: str, chosen: str) -> None:
    done = rdma_vm.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS / file, "-k", chosen], timeout=300
    )
    last = done.stdout.splitlines()[-1]
    assert done.returncode == 0 and "passed" in last and "skipped" not in last, done.stdout
