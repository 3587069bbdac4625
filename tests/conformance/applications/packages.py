"""Debian packages of the applications: root installs them, everybody else is told which ones are missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable

PATIENCE = 1800.0  # seconds for an installation


def missing(packages: Iterable[str]) -> list[str]:
    """The packages that are not installed."""
    return [package for package in packages if not _installed(package)]


def install(packages: Iterable[str]) -> None:
    """Install what is missing and what Debian has, if this is root on Debian. Errors show later: packages are still
    missing."""
    wanted = missing(packages)
    if not wanted or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    _quietly("apt-get", "-qq", "update")
    known = [package for package in wanted if _quietly("apt-cache", "show", package) == 0]
    if known:
        _quietly("apt-get", "-qq", "install", "--no-install-recommends", "-y", *known)


def _installed(package: str) -> bool:
    if shutil.which("dpkg-query") is None:
        return False
    asked = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout == "installed"


def _quietly(*command: str) -> int:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            timeout=PATIENCE,
            check=False,
        ).returncode
    except (OSError, subprocess.TimeoutExpired):
        return 1
