"""What all tests of chains need that run attempts in pytest's own process."""

from __future__ import annotations

import pytest

from manapy.core import processes


@pytest.fixture(autouse=True)
def orphans(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt adopts its orphans. pytest's own process must not do so, because it doesn't reap them for the tests
    that follow."""
    monkeypatch.setattr(processes, "adopt_orphans", lambda: None)
