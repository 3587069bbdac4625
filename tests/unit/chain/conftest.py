"""Shared by the tests of chains."""

from __future__ import annotations

from pathlib import Path

import pytest
from histories import History


@pytest.fixture
def history(tmp_path: Path) -> History:
    """An empty one."""
    return History(tmp_path / "chain")
