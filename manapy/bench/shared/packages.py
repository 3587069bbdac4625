"""Packages of others that benchmarks fetch once, into the user's cache directory."""

from __future__ import annotations

import os
from pathlib import Path


def cache(package: str) -> Path:
    """The directory for what comes of a package, such as "impi-rt==2021.19.0"."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "manapy" / package.replace("==", "-")
