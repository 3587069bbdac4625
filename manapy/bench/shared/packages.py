"""Packages of others that benchmarks fetch once, into the user's cache directory."""

from __future__ import annotations

from pathlib import Path

from ...core import files


def cache(package: str) -> Path:
    """The directory for files of a package, such as "impi-rt==2021.19.0"."""
    return files.cache_directory() / package.replace("==", "-")
