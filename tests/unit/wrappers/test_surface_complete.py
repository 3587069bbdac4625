"""Every function of the table has a case in a program tests/programs/surface/*/surface_*.c, which test_surface.py
checkpoints and restarts."""

from __future__ import annotations

import re
from pathlib import Path

# Functions that the MPI standard doesn't define (MPICH's own extensions) may be unsupported.
OPTIONAL = {"extension"}


def table(root: Path) -> dict[str, tuple[str, str]]:
    """function -> (family, class)"""
    found, family = {}, ""
    for line in (root / "wrappers/table/functions.txt").read_text().splitlines():
        words = line.split()
        if line.startswith("["):
            family = line.strip("[]")
        elif words and words[0].startswith("MPI"):
            found[words[0]] = (family, words[1])
    return found


def called(root: Path) -> set[str]:
    """The functions called in the bodies of cases: by name, or in both forms by FORM of four_ranks.h."""
    text = "".join(p.read_text() for p in (root / "tests/programs/surface").rglob("surface_*.c"))
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
    both = re.findall(r"\bFORM\(\w+, (MPI_\w+)", text)
    return {*re.findall(r"\b(MPIX?_[A-Z]\w*)\s*\(", text), *both, *(f"{name}_c" for name in both)}


def test_every_standard_function_is_supported(root: Path) -> None:
    assert [n for n, (family, cls) in table(root).items() if cls == "unsupported" and family not in OPTIONAL] == []


def test_every_supported_function_has_a_case(root: Path) -> None:
    cases = called(root)
    missing = [n for n, (_, cls) in table(root).items() if cls != "unsupported" and n not in cases]
    assert missing == [], f"{len(missing)} functions without a case in tests/programs/surface"
