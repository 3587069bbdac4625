"""lowerhalf/include/manapy/proc_exe.h: which processes are split, by the files that they run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from compiling import build_core

DRIVER = r"""
#include <manapy/proc_exe.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    return argc == 2 ? !mpy_proc_is_split(atol(argv[1])) : 2;
}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("split")
    source = where / "driver.c"
    source.write_text(DRIVER)
    return build_core(where / "driver", [source])


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize(
    ("name", "split"),
    [("manapy-launch", True), ("manapy-restart", True), ("manapy-launcher", False), ("sleep", False)],
)
def test_split_processes(driver: Path, tmp_path: Path, name: str, split: bool, replaced: bool) -> None:
    """An upgrade of manapy removes the file that a running process runs."""
    program = tmp_path / name
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    process = subprocess.Popen([program, "1000"])
    try:
        if replaced:
            program.unlink()
            shutil.copy(driver, program)
        assert subprocess.run([driver, str(process.pid)], check=False).returncode == (0 if split else 1)
    finally:
        process.kill()
        process.wait()
