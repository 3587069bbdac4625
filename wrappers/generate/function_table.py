"""The table of functions (table/functions.txt) as Python objects."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

CLASSES = ("generated", "manual", "unsupported")


class TableError(Exception):
    """The table doesn't follow its own description; the text names file, line and fault."""


@dataclass(frozen=True)
class Argument:
    name: str
    kind: str
    count: str | None  # of arrays: an argument's name, or a property of a communicator: "size(comm)"


@dataclass(frozen=True)
class Function:
    symbol: str  # MPI_Comm_rank
    family: str
    cls: str
    clock: str
    result: str
    arguments: tuple[Argument, ...]

    @property
    def name(self) -> str:
        """MPI_Comm_rank -> Comm_rank; MPIX_Comm_agree -> X_Comm_agree."""
        return self.symbol.removeprefix("MPI_") if self.symbol.startswith("MPI_") else self.symbol[3:]

    def argument(self, kind: str) -> Argument | None:
        return next((a for a in self.arguments if a.kind == kind), None)


@dataclass
class Table:
    kinds: dict[str, str] = field(default_factory=dict)
    functions: list[Function] = field(default_factory=list)
    data: list[str] = field(default_factory=list)
    internal: list[str] = field(default_factory=list)

    @property
    def hash(self) -> int:
        """FNV-1a 64 over the names of slots and data symbols, each followed by a newline: both halves must have been
        built from one table."""
        value = 0xCBF29CE484222325
        for byte in "".join(f"{name}\n" for name in [*(f.symbol for f in self.functions), *self.data]).encode():
            value = ((value ^ byte) * 0x100000001B3) & (2**64 - 1)
        return value


def read_table(path: Path) -> Table:
    """Parse functions.txt (its head describes the format). Raises TableError."""
    table = Table()
    family = ""
    argument = re.compile(r"(\w+|\.\.\.):(\w+)(?:\((\w+|(?:size|root|local|indegree|outdegree)\(comm\))\))?")
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        words = line.split()
        if words[0] == "kind":
            table.kinds[words[1]] = line.split(None, 2)[2]
        elif words[0] == "data":
            table.data.append(words[1])
        elif words[0] == "internal":
            table.internal.append(words[1])
        elif line.startswith("["):
            family = line.strip("[]")
        else:
            symbol, cls, clock, result, *rest = words
            matches = [argument.fullmatch(word) for word in rest]
            if cls not in CLASSES or None in matches:
                raise TableError(f"{path}:{number}: can't read {line!r}")
            arguments = tuple(Argument(m[1], m[2], m[3]) for m in matches if m is not None)
            unknown = [kind for kind in (result, *(a.kind for a in arguments)) if kind not in table.kinds]
            if unknown:
                raise TableError(f"{path}:{number}: unknown kind {unknown[0]}")
            if clock not in ("-", "world", *(a.name for a in arguments)):
                raise TableError(f"{path}:{number}: clock argument {clock} doesn't exist")
            table.functions.append(Function(symbol, family, cls, clock, result, arguments))
    return table
