"""What tools/conformance, verdicts, matrix and applications call starts without pytest's paths."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).resolve().parents[2] / "conformance"
TOOLS = PROGRAMS.parent.parent / "tools"


@pytest.mark.parametrize("program", ["suite.py", "mpich.py", "misuse.py", "matrix", "applications"])
def test_help(tmp_path: Path, program: str) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    words: list[str | Path] = [PROGRAMS / program]
    if not program.endswith(".py"):
        environment["PYTHONPATH"] = str(PROGRAMS)  # as the tool sets it
        words = ["-m", program]
        assert 'PYTHONPATH="$root/tests/conformance' in (TOOLS / program).read_text()
    done = subprocess.run(
        [sys.executable, *words, "--help"], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout[:6], done.stderr) == (0, "usage:", "")
