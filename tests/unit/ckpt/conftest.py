"""The C drivers of the control plane."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from compiling import build_core

DRIVERS = Path(__file__).parent / "drivers"


@pytest.fixture(scope="session")
def driver(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Compiles drivers/NAME.c together with the control plane; returns the executable."""
    made: dict[str, Path] = {}
    lower = root / "lowerhalf"

    def build(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("driver") / name
            rooms = [
                path
                for room in ("control", "image/file", "join", "join/manager", "wire", "base")
                for path in sorted((lower / room).glob("*.c"))
            ]
            sources = [DRIVERS / f"{name}.c", *rooms, lower / "isolate" / "fdguard.c"]
            build_core(made[name], sources, "-fno-stack-protector", "-pthread")
        return made[name]

    return build
