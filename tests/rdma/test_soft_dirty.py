"""Changed pages in the older way of the kernel (--dirty soft-dirty), which the machine's kernel has."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from vm import VM

TESTS = Path(__file__).resolve().parent.parent
FILES = ("unit/lowerhalf/test_watch.py", "integration/moments/test_incremental.py")


@pytest.mark.slow
def test_in_the_machine(rdma_vm: VM) -> None:
    """In one run, because Python starts slowly there."""
    chosen = "soft-dirty and (test_watch or any_checkpoint)"
    pytest_there = [sys.executable, "-m", "pytest", "-q", "--assert=plain", "-p", "no:cacheprovider", "-k", chosen]
    done = rdma_vm.run([*pytest_there, *(TESTS / file for file in FILES)], timeout=600)
    passed = re.fullmatch(r"(\d+) passed, \d+ deselected in .*", done.stdout.splitlines()[-1])
    assert done.returncode == 0 and passed and int(passed[1]) == 5, done.stdout
