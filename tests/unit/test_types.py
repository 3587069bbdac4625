"""mypy's check of the package. Its options are in pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(1200)  # mypy, from the beginning in a new environment; beside other work
def test_types(root: Path) -> None:
    """The cache stays in the environment for the next run of the tests."""
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(Path(sys.prefix) / "mypy-cache")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
