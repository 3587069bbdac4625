"""The table of constants (table/abi.txt) as Python objects, and the C headers that follow from it alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .function_table import TableError

Value = int | str | None  # a number; the name of a symbol; None: the interface lacks the constant

HANDLES = ("COMM", "GROUP", "DATATYPE", "OP", "ERRHANDLER", "INFO", "REQUEST", "MESSAGE", "WIN", "FILE", "SESSION")
POINTERS = ("FILE", "SENTINEL", "T_HANDLE")  # groups whose values are pointers in MPICH's interface
RECORDED = ("DATATYPE", "COMBINER", "ORDER", "DISTRIBUTE")  # groups of which records hold the standard value
GROUPS = {*HANDLES, *POINTERS, *RECORDED} | set(
    "RANK TAG UNDEFINED KEYVAL WIN_KEYVAL ERROR COMPARE TOPOLOGY SPLIT TYPECLASS THREAD AMODE SEEK OFFSET ASSERT LOCK "
    "FLAVOR MODEL LIMIT F_STATUS VERSION T_BIND T_SCOPE T_VERBOSITY T_CLASS T_SAFETY T_ORDER".split()
)


@dataclass(frozen=True)
class Constant:
    """One row. `openmpi` holds the values in Open MPI 4.1 and 5.0, `fortran` a handle's value in Open MPI's Fortran."""

    group: str
    name: str
    mpich: Value
    standard: Value
    openmpi: tuple[Value, Value]
    fortran: int | None = None


def _value(text: str) -> Value:
    if text == "-":
        return None
    return int(text, 0) if re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", text) else text


def read_constants(path: Path) -> list[Constant]:
    """Parse abi.txt (its head describes the format). Raises TableError."""
    rows: list[Constant] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        longest = 6 if words[0] in HANDLES else 5
        if not 5 <= len(words) <= longest or words[0] not in GROUPS or any(row.name == words[1] for row in rows):
            raise TableError(f"{path}:{number}: can't read {line!r}")
        group, name, mpich, standard, openmpi, *fortran = words
        older, _, newer = openmpi.partition("/")
        both = (_value(older), _value(newer or older))
        rows.append(Constant(group, name, _value(mpich), _value(standard), both, int(fortran[0]) if fortran else None))
    return rows


def _literal(group: str, value: int) -> str:
    if group in HANDLES:
        return f"((int)0x{value:08x})"
    text = hex(value) if value > 1 << 20 else str(value)
    return f"({text})" if value < 0 else text


def mpich_constants(rows: list[Constant]) -> str:
    """C definitions of MPICH's values, for mpich.h."""
    lines = []
    for row in rows:
        if isinstance(row.mpich, int):
            pointer = row.group in POINTERS
            text = f"((void *){row.mpich})" if pointer else _literal(row.group, row.mpich)
            lines.append(f"#define {row.name} {text}")
    return "\n".join(lines) + "\n"


def interface_constants(rows: list[Constant], value: Callable[[Constant], Value], prefix: str) -> str:
    """C definitions of an interface's numbers: PREFIX_X for MPI_X."""
    numbers = [(row.name, value(row)) for row in rows]
    return "".join(
        f"#define {prefix}_{name.removeprefix('MPI_')} {f'({value})' if value < 0 else value}\n"
        for name, value in numbers
        if isinstance(value, int)
    )


def openmpi_constants(rows: list[Constant]) -> str:
    """Open MPI's numbers: OPENMPI_X for MPI_X. Only the newer version may have one; no two versions have different
    ones."""
    return interface_constants(rows, lambda row: row.openmpi[1], "OPENMPI")


def abi_table(rows: list[Constant]) -> str:
    """MPY_ABI(GROUP, NAME, STANDARD) for each constant that a record can hold, for core/abi.c."""
    return "".join(
        f"MPY_ABI({row.group}, {row.name}, {row.standard})\n"
        for row in rows
        if row.group in RECORDED and row.mpich is not None and row.standard is not None
    )
