"""No line that a person has written is longer than 120 columns, and Python is written as ruff wants it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COLUMNS = 120
FOLDERS = ("docs", "examples", "lowerhalf", "manapy", "osu_bench", "tests", "tools", "wrappers")
ENDS = {
    "", ".c", ".h", ".cpp", ".S", ".F90", ".f90", ".map", ".md", ".py", ".sbatch", ".sh", ".toml", ".txt",
}  # fmt: skip
TABLE = Path("wrappers/table/functions.txt")


def test_columns(root: Path) -> None:
    """Rows of tables cannot be broken (of TABLE: all lines except comments), golden/ was generated, and recorded/ comes
    from other tools."""
    files = [
        file for folder in FOLDERS for file in (root / folder).rglob("*") if file.is_file() and file.suffix in ENDS
    ]
    files += [*root.glob("*.md"), *root.glob("*.toml"), root / "CMakeLists.txt"]
    assert len(files) > 500
    long = [
        f"{file.relative_to(root)}:{number}"
        for file in files
        if not {"golden", "recorded"} & set(file.parts)
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if len(line) > COLUMNS and not line.startswith("|")
        if file != root / TABLE or line.startswith("#")
    ]
    assert not long


@pytest.mark.parametrize("words", [("check",), ("format", "--check")])
def test_ruff_finds_nothing(root: Path, words: tuple[str, ...]) -> None:
    """Of the version that pyproject.toml names: others may want something else."""
    command = [sys.executable, "-m", "ruff", *words, "--no-cache", "."]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
