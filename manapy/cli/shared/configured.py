"""The options that manapy-launch and manapy-restart take from configuration files: they print and check these
themselves."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from ...core.errors import ManapyError, UsageError, explained

LIMIT = 10.0  # seconds


def ask(program: Path, words: Sequence[str] = ()) -> list[tuple[str, str, str]]:
    """Key, value and file of each option; the file is empty if none sets it. words: options on the command line.

    Raises UsageError if the program refuses a file or an option, in one line."""
    with explained(ManapyError, program):
        done = subprocess.run(
            [program, "--settings", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT,
        )
    if done.returncode != 0:
        raise UsageError(done.stderr.strip().removeprefix(f"{program.name}: "))
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return [(key, value, file) for key, value, file in rows]
