"""tools/systems: wrong arguments. What it does takes minutes, downloads a Debian release, and is run by hand."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "name a Debian release, such as trixie"),
        (["../etc"], "name a Debian release, such as trixie"),
        (["--as", "nobody", "trixie"], "not 'nobody'"),
        (["--as"], "not ''"),
    ],
)
def test_wrong_arguments(root: Path, arguments: list[str], text: str) -> None:
    done = subprocess.run([root / "tools/systems", *arguments], capture_output=True, text=True)
    assert done.returncode == 1 and not done.stdout
    assert text in done.stderr and len(done.stderr.splitlines()) == 1
