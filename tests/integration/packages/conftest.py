"""What the tests of packages share."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from jobs import run


@pytest.fixture(scope="session")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as tools/wheels builds it."""
    for name in ("ziglang", "auditwheel"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"no {name} (pip install -r tools/packages/requirements.txt)")
    into = tmp_path_factory.mktemp("wheel")
    done = run([sys.executable, root / "tools/packages/build_wheel.py", "--into", into], timeout=900)
    if "libibverbs-dev" in done.stderr:
        pytest.skip("no libibverbs-dev")
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())
