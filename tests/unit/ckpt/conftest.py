"""The C drivers of the control plane."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

DRIVERS = Path(__file__).parent / "drivers"


@pytest.fixture(scope="session")
def driver(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Compiles drivers/NAME.c together with the control plane; returns the executable."""
    made: dict[str, Path] = {}
    lower = root / "lowerhalf"

    def build(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("driver") / name
            rooms = [path for room in ("control", "join", "wire", "base") for path in sorted((lower / room).glob("*.c"))]
            sources = [DRIVERS / f"{name}.c", *rooms, lower / "isolate" / "fdguard.c"]
            flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fno-stack-protector"]
            include = [f"-I{lower / 'include'}", f"-I{lower}"]
            subprocess.run(["gcc", *flags, *include, *map(str, sources), "-lpthread", "-o", str(made[name])], check=True)
        return made[name]

    return build
