"""The backs: for each function of the table, C that translates its arguments from MPICH's interface, calls the function
of a library with another one, and translates the results (lowerhalf/mpi/back/shared/translate.h). A second program over
the tables:

    python -m generate.other_abis.back TABLE ABI_TABLE OUTPUT_DIRECTORY     in wrappers/

Output, for each back, in a folder of its own
    back_interface.h   includes the header of the back: files of back/shared are compiled for each back
    back_constants.h   the interface's numbers: BACK_X for MPI_X
    back_pairs.h       numbers that differ: MPY_PAIR(GROUP, MPICH's, the library's)
    back_calls.c       the functions, the list of them, and the predefined handles

Where the library lacks a function with 64-bit counts (MPI_X_c), the plain one is called. If a count is too large for an
int, it fails with MPI_ERR_VALUE_TOO_LARGE. What is written by hand stands in back_families.py. What has arguments of
other kinds is missing.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from .argument_rules import (
    BITS,
    CONSTANTS,
    OF_CONSTANTS,
    WITH_IN_PLACE,
    group_translations,
    ignored_count,
    ignored_in_place,
    length_of,
    of_communicator,
    of_function,
)
from .back_families import BACKS, Back
from ..c_text import parameters
from ..constants import Constant, interface_constants, read_constants
from ..function_table import Argument, Function, Table, read_table
from ..output import BANNER, write_files

# Families of which the core calls nothing in the real library.
NEVER_CALLED = ("fortran", "extension", "grequest", "attr")
INFOS = "info"
KINDS = ("COMM", "GROUP", "DATATYPE", "OP", "ERRHANDLER", "INFO", "REQUEST", "MESSAGE", "WIN", "SESSION")
# Groups of numbers for back/shared/numbers.c: of those that argument_rules.py translates, and of attributes.
PAIRS = (
    "COMBINER ORDER DISTRIBUTE TYPECLASS SPLIT TOPOLOGY LOCK MODEL FLAVOR KEYVAL WIN_KEYVAL ASSERT ERROR COMPARE "
    "THREAD AMODE SEEK T_BIND T_SCOPE T_VERBOSITY T_CLASS T_ORDER"
).split()
BY_HAND = {"RANK": "rank", "TAG": "tag"}  # groups with functions of their own in translate.h
# Arrays of constants: what translates them before the call, after it, and their lengths.
ARRAYS_IN = {
    ("Group_translate_ranks", "ranks1"): ("mpy_ranks_in(&arrays, {0}, {1})", "n"),
    ("Type_create_darray", "array_of_distribs"): ("mpy_distributions_in(&arrays, {0}, {1})", "ndims"),
    ("Type_create_darray", "array_of_dargs"): ("mpy_distribution_arguments_in(&arrays, {0}, {1})", "ndims"),
}
RANKS_OUT = {("Group_translate_ranks", "ranks2"): "n"}
PLAIN = set(
    "AINT AINT_ARRAY AINT_ARRAY_MUT AINT_ARRAY_OUT AINT_OUT ARGV_POINTER COUNT COUNT_C COUNT_C_ARRAY "
    "COUNT_C_ARRAY_OUT COUNT_C_OUT INT INT_ARRAY INT_ARRAY_MUT INT_ARRAY_OUT INT_OUT OFFSET OFFSET_OUT POINTER "
    "POINTER_IN POINTER_OUT RANGE_ARRAY STRING STRING_ARRAY STRING_ARRAY_ARRAY STRING_OUT TAG WEIGHTS_ARRAY "
    "WEIGHTS_ARRAY_OUT T_CVAR_HANDLE T_CVAR_HANDLE_P T_ENUM T_ENUM_P T_PVAR_HANDLE T_PVAR_HANDLE_P T_PVAR_SESSION "
    "T_PVAR_SESSION_P T_CB_SAFETY T_SOURCE_ORDER_P".split()
)
# 64-bit arguments for which the plain function has smaller ones: how an array becomes the library's.
NARROWED_ARRAYS = {
    ("COUNT_C_ARRAY", "INT_ARRAY"): "mpy_ints_of_counts",
    ("AINT_ARRAY", "INT_ARRAY"): "mpy_ints_of_aints",
    ("COUNT_C_ARRAY", "AINT_ARRAY"): "mpy_aints_of_counts",
}


class Unknown(Exception):
    """There is no rule for an argument: the function isn't generated."""


@dataclass(frozen=True)
class Interface:
    """What the translation of arguments needs. differ: the groups of numbers that do."""

    table: Table
    back: Back
    differ: frozenset[str]


def interface(table: Table, constants: list[Constant], back: Back) -> Interface:
    return Interface(table, back, frozenset(group_translations(constants, back.family)))


@dataclass
class Body:
    """The text of one function, as its arguments are translated in turn."""

    function: Function
    arrays: bool = False
    fits: bool = False
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)

    def add(self, ctype: str, passed: str, before: str = "", after: str = "") -> None:
        self.types.append(ctype)
        self.passed.append(passed)
        self.before += [before] if before else []
        self.after += [after] if after else []


def sized(f: Function, a: Argument) -> str:
    """The length of an array, as a C expression."""
    if a.count is None:
        raise Unknown(a.name)
    root = f.argument("ROOT")

    def members(comm: str, which: str) -> str:
        if which == "PEERS_AT_ROOT" and root is not None:
            return f"mpy_length_at_root({comm}, {root.name})"
        return f"mpy_length({comm}, MPY_OF_{which})"

    length = length_of(f, a, members)
    if not of_communicator(f, a):
        return length
    in_place = "sendbuf == MPI_IN_PLACE ? 0 : " if ignored_in_place(a) else ""
    return f"{a.name} == NULL ? 0 : {in_place}{length}"


def handle(body: Body, back: Back, a: Argument, kind: str, form: str) -> None:
    f, x, k = body.function, a.name, f"MPY_KIND_{kind}"
    if form == "":
        body.add("void *", f"mpy_in({k}, {x})")
    elif form == "OUT":
        special = kind == "WIN" or (kind == "INFO" and back.own_infos)
        made = f"mpy_{kind.lower()}_out(o_{x})" if special else f"mpy_out({k}, o_{x})"
        after = f"if (rc == 0 && {x} != NULL) *{x} = {made};"
        body.add("void **", f"{x} != NULL ? &o_{x} : NULL", f"void *o_{x} = mpy_null[{k}];", after)
    elif form == "INOUT":
        before = f"void *o_{x} = {x} != NULL ? mpy_in({k}, *{x}) : NULL;"
        after = f"if ({x} != NULL) mpy_inout({k}, {x}, o_{x});"
        body.add("void **", f"{x} != NULL ? &o_{x} : NULL", before, after)
    elif form in ("ARRAY", "ARRAY_MUT", "ARRAY_INOUT"):
        body.arrays = True
        length = sized(f, a)
        copy = f"mpy_handles_in(&arrays, {k}, {x}, n_{x})"
        # MPICH takes buffers as the same only if the arrays of types are the same, too.
        if x == "recvtypes" and a.count == "size(comm)":
            copy = f"{x} == sendtypes && o_sendtypes != NULL ? o_sendtypes : {copy}"
        before = f"long n_{x} = {length};\n    void **o_{x} = {copy};"
        after = f"mpy_handles_back({k}, {x}, o_{x}, n_{x});" if form == "ARRAY_INOUT" else ""
        body.add("void **", f"o_{x}", before, after)
    else:
        raise Unknown(f"{f.name}: {a.kind}")


def file(body: Body, a: Argument, form: str) -> None:
    x = a.name
    # MPICH 5.0's library of the standard ABI crashes with the null handle.
    given = f"*{x}" if form else x
    refused = "" if "errhandler" in body.function.name else f"if ({given} == MPI_FILE_NULL) return MPI_ERR_FILE;"
    if form == "":
        body.add("void *", f"mpy_file_in({x})", refused)
    elif form == "OUT":
        after = f"if (rc == 0) *{x} = mpy_file_out(o_{x});"
        body.add("void **", f"{x} != NULL ? &o_{x} : NULL", f"void *o_{x} = mpy_file_null;", after)
    else:
        before = f"{refused}\n    void *o_{x} = mpy_file_in(*{x});"
        body.add("void **", f"&o_{x}", before, f"*{x} = mpy_file_out(o_{x});")


def status(body: Body, a: Argument) -> None:
    f, x = body.function, a.name
    flag = next((f" && *{b.name}" for b in f.arguments if b.name == "flag"), "")
    came = f"(rc == 0 || mpy_failed_as(rc, BACK_ERR_TRUNCATE)){flag}"
    if a.kind == "STATUS_ARRAY_OUT":
        body.arrays = True
        number = next((f"*{b.name}" for b in f.arguments if b.name == "outcount"), a.count)
        came = f"(rc == 0{flag}) || mpy_failed_as(rc, BACK_ERR_IN_STATUS)"
        before = f"mpy_status_t *o_{x} = mpy_statuses_for(&arrays, {x}, {a.count});"
        body.add("mpy_status_t *", f"o_{x}", before, f"if ({came}) mpy_statuses_out({x}, o_{x}, {number}, rc);")
    elif a.kind == "STATUS_OUT":
        after = f"if ({x} != MPI_STATUS_IGNORE && {came}) mpy_status_out({x}, &o_{x});"
        given = f"{x} == MPI_STATUS_IGNORE ? NULL : &o_{x}"
        body.add("mpy_status_t *", given, f"mpy_status_t o_{x} = MPY_STATUS_EMPTY;", after)
    else:
        after = f"if (rc == 0) mpy_status_out({x}, &o_{x});" if a.kind == "STATUS_INOUT" else ""
        body.add("mpy_status_t *", f"&o_{x}", f"mpy_status_t o_{x};\n    mpy_status_in(&o_{x}, {x});", after)


def constant_in(group: str, value: str) -> str:
    """A constant as the library's."""
    if group in BY_HAND:
        return f"mpy_{BY_HAND[group]}_in({value})"
    if group == "ERROR":
        return f"mpy_code_in({value})"
    return f"mpy_{'bits' if group in BITS else 'number'}_in(MPY_GROUP_{group}, {value})"


def constant_out(group: str, value: str) -> str:
    """A constant of the library as MPICH's."""
    if group in BY_HAND:
        return f"mpy_{BY_HAND[group]}_out({value})"
    if group == "ERROR":
        return f"mpy_class_out({value})"
    return f"mpy_{'bits' if group in BITS else 'number'}_out(MPY_GROUP_{group}, {value})"


def number(body: Body, interface: Interface, a: Argument) -> None:
    f, x, ctype = body.function, a.name, interface.table.kinds[a.kind]
    place, group = (f.name.removesuffix("_c"), x), of_function(CONSTANTS, f, a)
    if a.kind == "T_SOURCE_ORDER_P" and "T_ORDER" in interface.differ:
        x, group = f"(int *){x}", "T_ORDER"
    known = group in interface.differ and (a.kind in OF_CONSTANTS or a.kind == "T_SOURCE_ORDER_P")
    if known and (a.kind.endswith("_OUT") or a.kind == "T_SOURCE_ORDER_P"):
        body.add(ctype, a.name, after=f"if (rc == 0 && {a.name} != NULL) *{x} = {constant_out(str(group), '*' + x)};")
    elif known:
        body.add(ctype, constant_in(str(group), x))
    elif x == "target_disp" and interface.back.own_windows:
        body.add(ctype, f"mpy_disp_in(win, {x})")
    elif place in ARRAYS_IN:
        body.arrays = True
        made, length = ARRAYS_IN[place]
        body.add(ctype, f"o_{x}", f"int *o_{x} = {made.format(x, length)};")
    elif place in RANKS_OUT:
        loop = f"for (int i = 0; rc == 0 && i < {RANKS_OUT[place]}; i++) {x}[i] = mpy_rank_out({x}[i]);"
        body.add(ctype, x, after=loop)
    elif place == ("File_set_view", "disp") and "OFFSET" in interface.differ:
        body.add(ctype, f"{x} == MPI_DISPLACEMENT_CURRENT ? BACK_DISPLACEMENT_CURRENT : {x}")
    else:
        body.add(ctype, x)


def translate(body: Body, interface: Interface, a: Argument) -> None:
    f = body.function
    kind, _, form = a.kind.partition("_")
    if kind in KINDS:
        handle(body, interface.back, a, kind, form)
    elif kind == "FILE" and form in ("", "OUT", "INOUT"):
        file(body, a, form)
    elif kind == "STATUS":
        status(body, a)
    elif a.kind in ("BUFFER", "BUFFER_IN"):
        in_place = f.clock != "-" and f.family in WITH_IN_PLACE
        body.add(interface.table.kinds[a.kind], f"mpy_buffer_in({a.name})" if in_place else a.name)
    elif a.kind in ("RANK", "ROOT"):
        body.add("int", f"mpy_{a.kind.lower()}_in({a.name})")
    elif a.kind in PLAIN:
        number(body, interface, a)
    else:
        raise Unknown(f"{f.name}: {a.kind}")


def narrow(body: Body, table: Table, a: Argument, plain: Argument) -> None:
    """An argument of MPI_X_c for MPI_X."""
    x, ctype = a.name, table.kinds[plain.kind]
    small = ctype.startswith(("int", "const int"))
    if (a.kind, plain.kind) in NARROWED_ARRAYS:
        body.arrays = body.fits = True
        make = NARROWED_ARRAYS[a.kind, plain.kind]
        element = "int" if small else "MPI_Aint"
        body.add(ctype, f"o_{x}", f"{element} *o_{x} = {make}(&arrays, {x}, {sized(body.function, a)}, &fits);")
    elif plain.kind in ("INT_OUT", "AINT_OUT"):
        element = "int" if small else "MPI_Aint"
        before = f"{element} o_{x} = {x} != NULL && fits ? ({element})*{x} : 0;"
        if x == "position":
            body.fits = True
            before = f"fits &= mpy_fits(*{x});\n    " + before
        else:
            before = f"{element} o_{x} = 0;"
        body.add(ctype, f"{x} != NULL ? &o_{x} : NULL", before, f"if (rc == 0 && {x} != NULL) *{x} = o_{x};")
    elif small:
        body.fits = True
        fits = " || ".join([f"mpy_fits({x})", *ignored_count(body.function, a)])
        body.add(ctype, f"(int){x}", f"fits &= {fits};")
    elif plain.kind == "AINT":
        body.add(ctype, x)
    else:
        raise Unknown(f"{body.function.name}: {a.kind} for {plain.kind}")


def call(interface: Interface, f: Function, real: Function) -> str:
    """The C function that stands for `f` and calls `real`. Raises Unknown."""
    table = interface.table
    if f.result != "INT" or len(f.arguments) != len(real.arguments):
        raise Unknown(f.name)
    body = Body(f)
    for a, b in zip(f.arguments, real.arguments, strict=True):
        if a.kind == b.kind:
            translate(body, interface, a)
        else:
            narrow(body, table, a, b)
    request = f.argument("REQUEST_OUT")
    lines = [f"static int back_{f.name}({parameters(table, f)}) {{"]
    if body.arrays:
        lines += ["    mpy_arrays_t arrays;", f"    mpy_arrays_begin(&arrays, {'true' if request else 'false'});"]
    if body.fits:
        lines.append("    bool fits = true;")
    lines += [f"    {text}" for text in body.before]
    called = f"((int (*)({', '.join(body.types) or 'void'}))mpy_theirs[MPY_FN_{real.name}])({', '.join(body.passed)})"
    if body.fits:
        called = f"!fits ? MPY_TOO_LARGE : {called}"
    lines.append(f"    int rc = {called};")
    lines += [f"    {text}" for text in body.after]
    if body.arrays and request:
        kept = f"mpy_request_keep(*{request.name}, arrays.blocks)"
        lines.append(f"    if (rc == 0 && *{request.name} != MPI_REQUEST_NULL) {kept};")
        lines.append("    else mpy_arrays_end(&arrays);")
    elif body.arrays:
        lines.append("    mpy_arrays_end(&arrays);")
    return "\n".join([*lines, "    return mpy_code_out(rc);", "}"]) + "\n"


def real_function(table: Table, back: Back, f: Function) -> Function:
    """The library's function that is called for `f`."""
    if not back.calls_plain(f.symbol):
        return f
    by_name = {g.name: g for g in table.functions}
    plain = f.name.removesuffix("_c")
    return by_name.get(f"{plain}_x") or by_name.get(plain) or f


def calls(table: Table, constants: list[Constant], back: Back) -> str:
    passing = interface(table, constants, back)
    parts = [
        "/* Of the real call's arguments the ones that are pointers have the library's types: void * for a handle. */",
        '#include "back_interface.h"\n',
        "enum { MPY_TOO_LARGE = BACK_ERR_VALUE_TOO_LARGE };\n",
    ]
    rows = []
    apart = (*NEVER_CALLED, INFOS) if back.own_infos else NEVER_CALLED
    for f in table.functions:
        if f.family in apart or f.cls == "unsupported" or f.name in back.written:
            continue
        real = real_function(table, back, f)
        try:
            parts.append(call(passing, f, real))
        except Unknown:
            continue
        rows.append(f"    {{MPY_FN_{f.name}, MPY_FN_{real.name}, (void *)back_{f.name}}},")
    parts += ["const mpy_ours_t mpy_ours_generated[] = {", *rows, "};"]
    parts.append("const size_t mpy_ours_generated_count = sizeof mpy_ours_generated / sizeof *mpy_ours_generated;\n")
    parts.append("const mpy_row_t mpy_rows[] = {")
    for row in constants:
        if row.group in KINDS and isinstance(row.mpich, int) and (found := theirs(back, row)):
            parts.append(f"    {{MPY_KIND_{row.group}, {row.name}, {found}}},")
    parts += ["};", "const size_t mpy_rows_count = sizeof mpy_rows / sizeof *mpy_rows;"]
    no_file = next(row for row in constants if row.name == "MPI_FILE_NULL")
    parts.append(f"const mpy_object_t mpy_no_file = {theirs(back, no_file)};")
    return "\n".join(parts) + "\n"


def theirs(back: Back, row: Constant) -> str:
    """A predefined handle of the library, as an mpy_object_t; empty if there is none."""
    value = back.family.value(row) or back.family.hidden.get(row.name, (None,))[0]
    return "" if value is None else f'{{"{value}", NULL}}' if isinstance(value, str) else f"{{NULL, (void *){value}}}"


def pairs(constants: list[Constant], back: Back) -> str:
    return "".join(
        f"MPY_PAIR({row.group}, {row.name}, BACK_{row.name.removeprefix('MPI_')})\n"
        for row in constants
        if row.group in PAIRS and isinstance(row.mpich, int) and isinstance(back.family.value(row), int)
    )


def back_files(table: Table, constants: list[Constant], back: Back) -> dict[str, str]:
    texts = {
        "back_interface.h": f'#include "mpi/back/{back.folder}/{back.folder}.h"\n',
        "back_constants.h": interface_constants(constants, back.family.value, "BACK"),
        "back_pairs.h": pairs(constants, back),
        "back_calls.c": calls(table, constants, back),
    }
    return {f"back/{back.folder}/{name}": BANNER + text for name, text in texts.items()}


def main(arguments: list[str]) -> int:
    table, constants, output = read_table(Path(arguments[0])), read_constants(Path(arguments[1])), Path(arguments[2])
    texts: dict[str, str] = {}
    for back in BACKS:
        texts |= back_files(table, constants, back)
    write_files(output, texts, "back.stamp")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
