"""Which programs a shell script starts, as far as its words tell. Nothing is run, and no variable is known."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

SHELLS = ("sh", "bash", "dash", "ksh", "zsh")
LARGEST = 1 << 20  # bytes; a longer script is not read


def words(script: Path) -> Iterator[str]:
    """The words of a script that may name a program, each once. Raises OSError if it can't be read."""
    if script.stat().st_size > LARGEST:
        return
    seen: set[str] = set()
    for line in script.read_text(errors="replace").replace("\\\n", " ").splitlines():
        try:
            found = list(shlex.shlex(line, posix=True, punctuation_chars=True))
        except ValueError:  # a string of several lines
            continue
        for word in found:
            if word and word not in seen and not set(word) & set("$*?=(){}|&;<>`"):
                seen.add(word)
                yield word
