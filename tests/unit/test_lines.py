"""No line that a person has written is longer than 120 columns. Ruff checks those of Python."""

from __future__ import annotations

from pathlib import Path

COLUMNS = 120
FOLDERS = ("docs", "examples", "lowerhalf", "manapy", "osu_bench", "tests", "tools", "wrappers")
ENDS = {"", ".c", ".h", ".cpp", ".F90", ".f90", ".md", ".sh", ".sbatch"}


def test_columns(root: Path) -> None:
    """Rows of tables cannot be broken, golden/ was generated, and recorded/ comes from other tools."""
    files = [
        file for folder in FOLDERS for file in (root / folder).rglob("*") if file.is_file() and file.suffix in ENDS
    ]
    files += [*root.glob("*.md"), *root.rglob("lowerhalf/**/CMakeLists.txt"), root / "CMakeLists.txt"]
    assert len(files) > 500
    long = [
        f"{file.relative_to(root)}:{number}"
        for file in files
        if not {"golden", "recorded"} & set(file.parts)
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if len(line) > COLUMNS and not line.startswith("|")
    ]
    assert not long
