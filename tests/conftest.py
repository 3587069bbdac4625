"""Shared by all tests. Being here it also puts tests/ on sys.path: `import images` gives tests/images.py."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from histories import History

ROOT = Path(__file__).resolve().parent.parent
UNTIL = float(os.environ.get("MANAPY_TEST_UNTIL", "inf"))  # seconds since the epoch: no test is begun later (tools/test says why)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before any fixture."""
    if time.time() > UNTIL:
        pytest.skip("no time is left: MANAPY_TEST_MINUTES sets how much there is")


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
