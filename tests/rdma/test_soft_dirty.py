"""Changed pages in the older way of the kernel (--dirty soft-dirty), which the machine's kernel has."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import compiling
import pytest
from vm import VM

TESTS = Path(__file__).resolve().parent.parent
FILES = ("unit/lowerhalf/test_watch.py", "integration/moments/test_incremental.py")


@pytest.fixture
def compiled_here(shared_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the tests need is compiled on this side, because a compiler needs half a minute in the machine. The
    environment that tells the tests so."""
    monkeypatch.setattr(compiling, "shared", shared_path)
    compiling.dirty_library(shared_path / "dirty.so")
    for program in ("moments/mostly_idle.c", "steps/heat2d.c"):
        compiling.mpi_programs()(TESTS / "programs" / program)
    return {"MANAPY_TEST_SHARED": str(shared_path)}


@pytest.fixture
def without_shift(rdma_vm: VM) -> Iterator[None]:
    """The machine has RDMA devices, but the jobs start no agents."""
    rdma_vm.run('printf \'[launch]\nshift = "off"\n[restart]\nshift = "off"\n\' > /etc/manapy.toml', check=True)
    yield
    rdma_vm.run("rm /etc/manapy.toml", check=True)


@pytest.mark.slow
@pytest.mark.usefixtures("without_shift")
def test_in_the_machine(rdma_vm: VM, compiled_here: dict[str, str]) -> None:
    """In one run, because Python starts slowly there."""
    chosen = "soft-dirty and (test_watch or any_checkpoint)"
    spare = [word for plugin in ("cacheprovider", "xdist", "anyio") for word in ("-p", f"no:{plugin}")]
    pytest_there = [sys.executable, "-m", "pytest", "-q", "--assert=plain", *spare, "-k", chosen]
    done = rdma_vm.run([*pytest_there, *(TESTS / file for file in FILES)], timeout=600, env=compiled_here)
    passed = re.fullmatch(r"(\d+) passed, \d+ deselected in .*", done.stdout.splitlines()[-1])
    assert done.returncode == 0 and passed and int(passed[1]) == 5, done.stdout
