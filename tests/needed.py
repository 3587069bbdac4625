"""Skips tests whose packages are missing. It imports no package: PyTorch takes seconds of each process that collects
tests."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def need(package: str, reason: str) -> None:
    """In a test or at the head of a module: skip it if the package is not installed."""
    if find_spec(package) is None:
        pytest.skip(reason, allow_module_level=True)
