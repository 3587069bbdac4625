"""DeepSpeed, installed from PyPI on demand into the user's cache directory: for CPUs, without its own operators, used
with the installed torch."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ..shared.commands import LeftOutError, Setting
from ..shared.packages import cache

PACKAGE = "deepspeed==0.19.8"
# its declared dependencies, except torch and numpy
NEEDS = ("einops", "hjson", "msgpack", "ninja", "packaging", "psutil", "py-cpuinfo", "pydantic", "tqdm")
INSTALL_SECONDS = 300.0


def packages(setting: Setting) -> Path:
    """The directory from which Python imports it. Raises LeftOutError if it is not available."""
    target = cache(f"{PACKAGE}-py{sys.version_info.major}.{sys.version_info.minor}")
    if not target.is_dir():
        setting.progress(0.0, f"pip installs {PACKAGE}")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="deepspeed-", dir=target.parent) as scratch:
            place = Path(scratch) / "packages"
            _install(place, "--no-deps", "--no-build-isolation", PACKAGE)  # without downloading torch again
            _install(place, *NEEDS)
            place.rename(target)
    return target


def _install(target: Path, *what: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--target",
        str(target),
        *what,
    ]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
            env={**os.environ, "DS_BUILD_OPS": "0"},
        )
    except subprocess.TimeoutExpired:
        raise LeftOutError(f"pip did not install {PACKAGE} within {INSTALL_SECONDS:.0f} s") from None
    if done.returncode:
        raise LeftOutError(f"pip can't install {PACKAGE}: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
