"""The user's cache directory (XDG Base Directory Specification 0.8)."""

from __future__ import annotations

import os
from pathlib import Path


def directory() -> Path:
    """The part of the cache directory that belongs to manapy: ~/.cache/manapy, or below XDG_CACHE_HOME. It may not
    exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "manapy"
