"""Reads the lists of programs in a copy of MPICH's test/mpi: program, ranks, arguments, environment, time limit.

A list is a file "testlist" (or "testlist.in", which configure would fill in) in each folder. A line of it is

    program [ranks [key=value ...]]

or the name of a folder that has a list of its own. "#" begins a comment. In a .in file a word @name@ stands in front of
a program that needs a feature, and @namedir@ for a folder that may be left out: both are taken to be wanted here, since
a program that can't be built, or that fails natively, is no reason for a difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Of the first two, the one that exists is read. The suite's autogen.sh makes the last two.
LISTS = ("testlist", "testlist.in", "testlist.ap", "testlist.dtp", "testlist.collalgo")
RANKS = 2  # default of a line
LIMIT = 180.0  # seconds, default of a line
FOLDER = re.compile(r"@(\w+)dir@")
FEATURE = re.compile(r"@\w+@")


class ListError(Exception):
    """A list that can't be read; one line."""


@dataclass(frozen=True)
class Case:
    """One run of one program. folder: below the suite. result: its rule in verdict.py. memory: the GB that it needs."""

    folder: str
    program: str
    ranks: int = RANKS
    arguments: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    launcher: tuple[str, ...] = ()  # options of mpiexec
    limit: float = LIMIT
    result: str = ""
    memory: float = 0.0
    expected_to_fail: str = ""

    @property
    def path(self) -> str:
        """Folder and program."""
        return f"{self.folder}/{self.program}"

    @property
    def name(self) -> str:
        """A name that is different from those of all other cases."""
        env = [f"{key}={value}" for key, value in self.env]
        return " ".join([self.path, str(self.ranks), *self.arguments, *env])


def parse(line: str, folder: str) -> Case | None:
    """The case of one line of a list in a folder; None for a line without one. Raises ListError."""
    words = FEATURE.sub("", line.partition("#")[0]).split()
    if not words or words[0].startswith("!"):  # "!": must be built first
        return None
    program, *rest = words
    ranks = rest.pop(0) if rest and "=" not in rest[0] else str(RANKS)
    if not ranks.isdigit():
        raise ListError(f"{folder}: not a number of ranks in {line.strip()!r}")
    below, _, program = program.rpartition("/")
    arguments, env, launcher = [], [], []
    other = {"timeLimit": str(LIMIT), "resultTest": "", "mem": "0", "xfail": ""}
    for word in rest:
        key, found, value = word.partition("=")
        if key == "arg":
            arguments.append(value)
        elif key == "env":
            name, _, value = value.partition("=")
            env.append((name, value))
        elif key == "mpiexecarg":
            launcher.append(value)
        elif found:
            other[key] = value
    try:
        limit, memory = float(other["timeLimit"]), float(other["mem"])
    except ValueError:
        raise ListError(f"{folder}: not a number in {line.strip()!r}") from None
    where = f"{folder}/{below}" if below else folder
    return Case(
        where,
        program,
        int(ranks),
        tuple(arguments),
        tuple(env),
        tuple(launcher),
        limit,
        other["resultTest"],
        memory,
        other["xfail"],
    )


def cases(suite: Path, folder: str) -> Iterator[Case]:
    """All cases of a folder and of those below it that its list names. Raises ListError if it has no list."""
    found = _lists(suite / folder)
    if not found:
        raise ListError(f"{suite / folder} has no testlist")
    for file in found:
        for line in file.read_text(errors="replace").splitlines():
            words = FOLDER.sub(r"\1", line.partition("#")[0]).split()
            if words and _lists(suite / folder / words[0]):
                yield from cases(suite, f"{folder}/{words[0]}")
            elif not FOLDER.match(line) and (case := parse(line, folder)) is not None:
                yield case


def _lists(folder: Path) -> list[Path]:
    """The lists of a folder that are read."""
    found = [folder / name for name in LISTS if (folder / name).exists()]
    if found and found[0].name == "testlist":
        found = [file for file in found if file.name != "testlist.in"]
    return found
