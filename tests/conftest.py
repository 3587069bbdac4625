"""Shared by all tests. Being here it also puts tests/ on sys.path: `import images` gives tests/images.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from histories import History

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The source tree."""
    return ROOT


@pytest.fixture(scope="session")
def include() -> Path:
    """Directory of the C headers that Python mirrors."""
    return ROOT / "lowerhalf" / "include"


@pytest.fixture
def history(tmp_path: Path) -> History:
    """A chain in which nothing has happened."""
    return History(tmp_path / "chain")
