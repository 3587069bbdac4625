"""The generated files, each as one text."""

from __future__ import annotations

from pathlib import Path

from .c_text import parameters, result_type
from .constants import abi_table, mpich_constants, openmpi_constants, read_constants
from .other_abis.front import front_files
from .other_abis.front_families import FAMILIES
from .other_abis.front_fortran import fortran_files, with_fortran
from .function_table import Table, read_table
from .libmpi.null_checks import checked, nulls, unchecked
from .libmpi.outside import outside
from .libmpi.wrappers import wrapper

BANNER = "/* Made by wrappers/generate from wrappers/table/. Don't edit. */\n"


def header(name: str, included: tuple[str, ...], lines: list[str]) -> str:
    guard = f"MANAPY_{name}_H"
    includes = [*(f'#include "{file}"' for file in included), ""] if included else []
    return "\n".join([BANNER, f"#ifndef {guard}", f"#define {guard}", "", *includes, *lines, "", "#endif"]) + "\n"


def function_index(table: Table) -> str:
    lines = ["enum {"]
    lines += [f"    MPY_FN_{f.name} = {i}," for i, f in enumerate(table.functions)]
    lines += [f"    MPY_FN_COUNT = {len(table.functions)},", "};", "enum {"]
    lines += [f"    MPY_DATA_{name.removeprefix('MPI_')} = {i}," for i, name in enumerate(table.data)]
    lines += [
        f"    MPY_DATA_COUNT = {len(table.data)},",
        "};",
        f"#define MPY_TABLE_HASH 0x{table.hash:016x}ul",
    ]
    return header("FUNCTION_INDEX", (), lines)


def function_names(table: Table) -> str:
    lines = ["static const char *const mpy_function_names[MPY_FN_COUNT] = {"]
    lines += [f'    "{f.symbol}",' for f in table.functions]
    lines += ["};", "static const char *const mpy_data_names[MPY_DATA_COUNT] = {"]
    lines += [f'    "{name}",' for name in table.data]
    return header("FUNCTION_NAMES", ("function_index.h",), [*lines, "};"])


def functions(table: Table) -> str:
    lines = ["#pragma GCC visibility push(default)"]
    lines += [f"{result_type(table, f)}P{f.symbol}({parameters(table, f)});" for f in table.functions]
    lines += ["#pragma GCC visibility pop", ""]
    lines += [
        "/* What is written as PMPI_X, and called behind a check for NULL: generated.c has that under the name of "
        "PMPI_X. */"
    ]
    lines += [f"int {unchecked(f)}({parameters(table, f)});" for f in table.functions if nulls(f)]
    lines += [
        "#ifndef MPY_CHECKS",
        *(f"#define P{f.symbol} {unchecked(f)}" for f in table.functions if nulls(f)),
        "#endif",
        "",
    ]
    lines += [f"typedef {result_type(table, f)}(*mpy_fn_{f.name}_t)({parameters(table, f)});" for f in table.functions]
    return header("FUNCTIONS", ("function_index.h", "mpich.h"), lines)


INCLUDED = (
    "front/front.h", "clock/clock.h", "collective/persistent.h", "collective/twophase.h", "comm/group.h",
    "comm/session.h", "core/objects.h", "environment/errors.h", "environment/info.h", "environment/outside.h",
    "file/file.h", "p2p/request.h", "tools/trace.h", "window/win.h",
)  # fmt: skip


def generated(table: Table) -> str:
    parts = [
        BANNER,
        "#define MPY_CHECKS\n" + "".join(f'#include "{name}"\n' for name in INCLUDED),
    ]
    parts += [wrapper(table, f) for f in table.functions if f.cls == "generated"]
    parts += [checked(table, f) for f in table.functions if nulls(f)]
    parts += [outside(table), core_functions(table)]
    return "\n".join(parts)


def core_functions(table: Table) -> str:
    """What fronts call (front/front.h)."""
    entries = "".join(f"    (void (*)(void))P{f.symbol},\n" for f in table.functions)
    return f"void (*const mpy_core_functions[MPY_FN_COUNT])(void) = {{\n{entries}}};\n"


def stubs(table: Table) -> str:
    """No functions.h here: a stub takes and returns nothing."""
    lines = [BANNER, 'void mpy_unsupported(const char *name) __attribute__((noreturn, visibility("hidden")));', ""]
    lines += [
        "#define STUB(SYMBOL, NAME) \\",
        '    __attribute__((weak, visibility("default"))) void SYMBOL(void); \\',
        "    void SYMBOL(void) { mpy_unsupported(NAME); }",
    ]
    lines += [f'STUB(P{f.symbol}, "{f.symbol}")' for f in table.functions if f.cls != "generated"]
    lines += [f'STUB({name}, "{name}")' for name in table.internal]
    return "\n".join(lines) + "\n"


def aliases(table: Table) -> str:
    return BANNER + "".join(f"{f.symbol} = P{f.symbol};\n" for f in table.functions)


def exports(table: Table) -> str:
    names = [name for f in table.functions for name in (f.symbol, "P" + f.symbol)] + table.data + table.internal
    names += [f"mpy_core_{name}" for name in ("above", "end", "functions", "members", "unsupported")]  # front/front.h
    return "{ global:\n" + "".join(f"  {name};\n" for name in sorted(names)) + "local: *; };\n"


def write_files(output: Path, texts: dict[str, str], stamp: str) -> None:
    output.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        file = output / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_text() != text:  # keep time stamps: unchanged headers rebuild nothing
            file.write_text(text)
    (output / stamp).touch()


def main(arguments: list[str]) -> int:
    table_path, abi_path, output = Path(arguments[0]), Path(arguments[1]), Path(arguments[2])
    table = read_table(table_path)
    constants = read_constants(abi_path)
    texts = {
        "function_index.h": function_index(table),
        "function_names.h": function_names(table),
        "functions.h": functions(table),
        "generated.c": generated(table),
        "stubs.c": stubs(table),
        "aliases.ld": aliases(table),
        "exports.map": exports(table),
        "abi_table.h": BANNER + abi_table(constants),
        "mpich_constants.h": BANNER + mpich_constants(constants),
        "openmpi_constants.h": BANNER + openmpi_constants(constants),
    }
    fronts = fortran_files(table, constants)
    for family in FAMILIES:
        fronts |= front_files(table, constants, family)
    exports_openmpi = "openmpi/front_exports.map"
    fronts[exports_openmpi] = with_fortran(fronts[exports_openmpi], table)
    texts |= {name: BANNER + text for name, text in fronts.items()}
    write_files(output, texts, "generated.stamp")
    return 0
