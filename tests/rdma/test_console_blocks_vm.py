"""The commands of the documentation that need RDMA devices print what the page shows, in the machine that has them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import console
import pytest
from vm import VM
from vm.image import SYSTEM_PATH

ROOT = Path(__file__).resolve().parents[2]
PAGES = console.pages("rails")


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES.keys())
def test_commands(page: console.Page, rdma_vm: VM, shared_path: Path) -> None:
    """A page calls guest/rails to let a switch fail."""
    path = os.pathsep.join([str(Path(sys.executable).parent), str(ROOT / "tools/vm/guest"), SYSTEM_PATH])
    try:
        said = rdma_vm.run(console.script(page.commands), cwd=shared_path, env={"PATH": path}).stdout
    finally:
        rdma_vm.repair()
    shown = console.outputs(said)
    assert len(shown) == len(page.commands), said
    names = {str(shared_path): "/home/me"}
    for command, (output, code) in zip(page.commands, shown, strict=True):
        assert not (difference := console.difference(command, output, code, names)), difference + said
