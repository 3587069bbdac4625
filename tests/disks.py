"""File systems of a chosen size, for tests of full disks."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def disk(where: Path, size: str) -> Iterator[Callable[[str], None]]:
    """A file system of this size; the function changes its size."""

    def mount(options: str) -> int:
        return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "small", where], capture_output=True).returncode

    where.mkdir()
    if mount(f"size={size}"):
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield lambda size: mount(f"remount,size={size}") and pytest.fail("the disk does not grow")
    finally:
        subprocess.run(["umount", "--lazy", where], check=True)
