"""The fronts: libraries that translate each call from another binary interface to MPICH's (front_families.py).

Output, for each front, in a folder of its own
    front_interface.h  includes the header of the front: files of front/shared are compiled for each front
    front_constants.h  the interface's numbers: FRONT_X for MPI_X
    front_functions.h  prototypes of front_X for each function MPI_X, and of the constants' translations
    front_objects.h    FRONT_OBJECT(HANDLE, KIND, CORE, FORTRAN) for each predefined handle
    front_generated.c  front_X of all functions that need no hand-written translation
    front_aliases.ld   MPI_X = PMPI_X = front_X
    front_exports.map  the symbols of the library
"""

from __future__ import annotations

from collections.abc import Iterable

from .argument_rules import ALWAYS, BITS, group_translations
from ..constants import HANDLES, Constant, interface_constants
from .front_arguments import differences, front_function, prototype
from .front_families import Family
from ..function_table import Function, Table

# A value that the interface doesn't define may be one of the core's: the core gets one that nobody defines.
UNDEFINED = "value == MPI_UNDEFINED ? value : UNKNOWN_CONSTANT"
# Translated by front/shared/constants.c and translate.h.
BY_HAND = ("ERROR", "RANK", "TAG", "OFFSET")


def offered(table: Table, family: Family) -> list[Function]:
    return [f for f in table.functions if not family.lacking.fullmatch(f.symbol)]


def objects(rows: Iterable[Constant], family: Family) -> list[tuple[str, str, str, int]]:
    """(symbol or number, kind, the core's constant, value in Fortran or -1); the first constant of several that share a
    handle. A type that the core lacks is no type there: 0."""
    found: dict[str, tuple[str, str, str, int]] = {}
    for row in rows:
        if row.group not in HANDLES:
            continue
        value, fortran = family.value(row), row.fortran
        if value is None and row.name in family.hidden:
            value, fortran = family.hidden[row.name]
        if isinstance(value, int):
            fortran = value
        handle = str(value)
        if value is not None and (handle not in found or found[handle][2] == "0"):
            core = "0" if row.mpich is None or row.group == "FILE" else row.name
            found[handle] = (handle, f"FRONT_{row.group}", core, -1 if fortran is None else fortran)
    return [*found.values(), *((symbol, "FRONT_DATATYPE", core, -1) for symbol, core in family.nameless.items())]


def front_objects(rows: list[Constant], family: Family) -> str:
    return "".join(f"FRONT_OBJECT({', '.join(map(str, entry))})\n" for entry in objects(rows, family))


def front_functions(table: Table, rows: list[Constant], family: Family) -> str:
    """No guard: the front's header includes it once, between its types and what needs the translations."""
    names = [*translated(rows, family), *bits(rows, family)]
    lines = [f"int core_{name}(int value), front_{name}(int core);" for name in names]
    lines += ["int core_keyval(int value);"]
    lines += ["#pragma GCC visibility push(default) /* the linker's aliases have the visibility of these */"]
    lines += [f"{prototype(table, f)};" for f in offered(table, family)]
    lines += [f"void front_{name}(void);" for name in family.unsupported]
    lines += ["#pragma GCC visibility pop"]
    return "\n".join(lines) + "\n"


def translated(rows: list[Constant], family: Family) -> dict[str, list[tuple[int, int]]]:
    """The groups of numbers that need a list of pairs (the core's, the interface's), by the name of the translation."""
    pairs = group_translations(rows, family, ALWAYS)
    apart = (*BITS, *BY_HAND, "KEYVAL", "WIN_KEYVAL")
    own = {group.lower(): pairs[group] for group in pairs if group not in apart}
    return own | {"error_class": pairs["ERROR"]}


def bits(rows: list[Constant], family: Family) -> dict[str, list[tuple[int, int]]]:
    pairs = group_translations(rows, family)
    return {group.lower(): pairs[group] for group in BITS if group in pairs}


def switch(name: str, pairs: list[tuple[int, int]], otherwise: str) -> str:
    cases = "".join(f"    case {before}: return {after};\n" for before, after in pairs)
    return f"int {name}(int value) {{\n    switch (value) {{\n{cases}    default: return {otherwise};\n    }}\n}}\n"


def union(name: str, pairs: list[tuple[int, int]]) -> str:
    """A translation of bits. A bit that isn't defined becomes one that nobody defines."""
    cases = "".join(f"    if (value & {before}) result |= {after};\n" for before, after in pairs)
    start = f"int result = value & ~{sum(before for before, _ in pairs)} ? 1 << 30 : 0;"
    return f"int {name}(int value) {{\n    {start}\n{cases}    return result;\n}}\n"


def front_generated(table: Table, rows: list[Constant], family: Family) -> str:
    differ = differences(rows, family)
    parts = ['#include "front_interface.h"\n']
    for name, pairs in translated(rows, family).items():
        parts += [
            switch(f"core_{name}", [(theirs, core) for core, theirs in pairs], UNDEFINED),
            switch(f"front_{name}", pairs, "UNKNOWN_CONSTANT" if name == "error_class" else "value"),
        ]
    for name, pairs in bits(rows, family).items():
        parts += [union(f"core_{name}", [(theirs, core) for core, theirs in pairs]), union(f"front_{name}", pairs)]
    keyvals = [(theirs, core) for group in ("KEYVAL", "WIN_KEYVAL") for core, theirs in differ.groups[group]]
    parts += [switch("core_keyval", keyvals, "value")]
    parts += [front_function(table, f, differ) for f in offered(table, family) if f.name not in family.manual]
    parts += [f'void front_{name}(void) {{ mpy_core_unsupported("{name}"); }}\n' for name in family.unsupported]
    return "\n".join(parts)


def names(table: Table, family: Family) -> dict[str, str]:
    """Each function of the interface and the C function behind it."""
    found = {f.symbol: f"front_{f.name}" for f in offered(table, family)}
    found |= {name: f"front_{same.removeprefix('MPI_')}" for name, same in family.same_as.items()}
    return found | {name: f"front_{name}" for name in family.unsupported}


def front_aliases(table: Table, family: Family) -> str:
    return "".join(f"{name} = {own};\nP{name} = {own};\n" for name, own in names(table, family).items())


def front_exports(table: Table, rows: list[Constant], family: Family) -> str:
    symbols = [each for name in names(table, family) for each in (name, f"P{name}")]
    symbols += [symbol for symbol, *_ in objects(rows, family) if not symbol.isdecimal()]
    return "{ global:\n" + "".join(f"  {name};\n" for name in sorted([*symbols, *family.alone])) + "local: *; };\n"


def front_files(table: Table, rows: list[Constant], family: Family) -> dict[str, str]:
    texts = {
        "front_interface.h": f'#include "front/{family.folder}/{family.folder}.h"\n',
        "front_constants.h": interface_constants(rows, family.value, "FRONT"),
        "front_functions.h": front_functions(table, rows, family),
        "front_objects.h": front_objects(rows, family),
        "front_generated.c": front_generated(table, rows, family),
        "front_aliases.ld": front_aliases(table, family),
        "front_exports.map": front_exports(table, rows, family),
    }
    return {f"{family.folder}/{name}": text for name, text in texts.items()}
