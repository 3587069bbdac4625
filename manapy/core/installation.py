"""Where this installation keeps its C parts.

Layout of an installation: PREFIX/bin/{manapy,manapy-launch,manapy-restart}, PREFIX/lib/manapy/ (libmanapy_image.so,
upper/libmpi.so.12). PREFIX is found from this file's place (PREFIX/lib/pythonX.Y/site-packages/manapy), then from
sysconfig; MANAPY_PREFIX overrides both, for a development tree.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path


def prefixes() -> Iterator[Path]:
    """The prefixes where the C parts may be, best first."""
    if chosen := os.environ.get("MANAPY_PREFIX"):
        yield Path(chosen)
        return
    here = Path(__file__).resolve()
    if len(here.parents) > 5:
        yield here.parents[5]
    yield Path(sys.prefix)
    import sysconfig

    yield Path(sysconfig.get_path("data"))


def find(relative: str) -> Path | None:
    """PREFIX/relative of the first prefix that has it."""
    for prefix in prefixes():
        if (path := prefix / relative).exists():
            return path
    return None


def executable(name: str) -> Path | None:
    """One of the C executables, manapy-launch or manapy-restart."""
    return find(f"bin/{name}")


def library(name: str) -> Path | None:
    """A file of PREFIX/lib/manapy."""
    return find(f"lib/manapy/{name}")
