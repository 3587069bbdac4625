"""The directory in which runs leave their files: the one that the user names, or a temporary one."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from rich.console import Console


def make(named: Path | None, prog: str) -> Path:
    """The directory. prog: the command, for the name of a temporary one."""
    base = named.resolve() if named else Path(tempfile.mkdtemp(prefix=f"manapy-{prog}-"))
    base.mkdir(parents=True, exist_ok=True)
    return base


def leave(base: Path, keep: bool, console: Console, what: str) -> None:
    """Say where `what` is, or remove the directory."""
    if keep:
        console.print(f"{what} are in {base}", soft_wrap=True)
    else:
        shutil.rmtree(base)
