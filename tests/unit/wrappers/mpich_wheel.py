"""Where the tests find a real MPICH: the wheel installed beside Python, or the prefix in MANAPY_TEST_MPICH."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from compiling import c_values

ROOT = Path(__file__).resolve().parents[3]
TABLE = ROOT / "wrappers/table/functions.txt"
ABI = ROOT / "wrappers/table/abi.txt"


def prefix() -> Path:
    """The prefix with include/mpi.h and lib/libmpi.so.12 of MPICH 5; skips the test if there is none."""
    place = Path(os.environ.get("MANAPY_TEST_MPICH", sys.prefix))
    if not (place / "include/mpi_abi.h").exists():
        pytest.skip("no MPICH 5 with headers (pip install mpich)")
    return place


def generator() -> ModuleType:
    """wrappers/generate as a module. It is a build program, not part of the package."""
    spec = importlib.util.spec_from_file_location("manapy_generate", ROOT / "wrappers/generate/__init__.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def evaluate(names: list[str], prologue: str, flags: list[str], directory: Path) -> dict[str, int]:
    """The values of C constants after `prologue`."""
    return c_values(directory, prologue, {name: name for name in names}, *flags)


def dynamic_symbols(library: Path) -> dict[str, str]:
    """The defined dynamic symbols and their nm letters."""
    output = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], check=True, capture_output=True, text=True
    ).stdout
    return {words[-1].split("@")[0]: words[-2] for line in output.splitlines() if len(words := line.split()) >= 2}
