"""The back for Open MPI: for each function of the table, C that translates its arguments from MPICH's interface, calls
Open MPI's function, and translates the results (lowerhalf/mpi/back/openmpi/back.h). A second program over the tables:

    python -m generate.back TABLE ABI_TABLE OUTPUT_DIRECTORY     in wrappers/

Output
    back_calls.c       the functions, the list of them, and the predefined handles
    openmpi_pairs.h    numbers that differ: MPY_PAIR(GROUP, MPICH's, Open MPI's)

A function with 64-bit counts (MPI_X_c) calls the plain one, which fails with MPI_ERR_VALUE_TOO_LARGE if a count is too
large for an int. What is in WRITTEN, and what has arguments of other kinds, is written by hand or missing.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from .c_text import parameters
from .constants import Constant, read_constants
from .front_families import OPEN_MPI
from .function_table import Argument, Function, Table, read_table
from .output import BANNER, write_files

# lowerhalf/mpi/back/openmpi/{written,infos,errors,windows,abi,spawn}.c
WRITTEN = set(
    "Init Init_thread Finalize Op_create Op_create_c Op_free Comm_get_attr Win_get_attr Get_processor_name "
    "Open_port Lookup_name Comm_idup Comm_idup_with_info Type_create_darray Type_create_darray_c "
    "Type_get_envelope Type_get_envelope_c Type_get_contents Type_get_contents_c Get_count_c Type_get_value_index "
    "Register_datarep Register_datarep_c Comm_spawn Comm_spawn_multiple Type_create_f90_real "
    "Type_create_f90_complex Type_create_f90_integer T_cvar_handle_alloc T_pvar_handle_alloc Error_class "
    "Error_string Add_error_class Add_error_code Add_error_string Remove_error_class Remove_error_code "
    "Remove_error_string Get_hw_resource_info Abort Abi_get_info Abi_get_fortran_info Abi_get_fortran_booleans "
    "Abi_set_fortran_info Abi_set_fortran_booleans Win_allocate Win_allocate_c Win_allocate_shared "
    "Win_allocate_shared_c Win_free Win_shared_query Win_shared_query_c".split()
)
# Families of which the core calls nothing in the real library.
NEVER_CALLED = ("fortran", "extension", "grequest", "attr")
INFOS = "info"  # the family that infos.c implements
KINDS = ("COMM", "GROUP", "DATATYPE", "OP", "ERRHANDLER", "INFO", "REQUEST", "MESSAGE", "WIN", "SESSION")
PAIRS = (
    "COMBINER ORDER DISTRIBUTE TYPECLASS SPLIT TOPOLOGY LOCK MODEL KEYVAL WIN_KEYVAL ASSERT ERROR T_BIND T_SCOPE "
    "T_VERBOSITY T_CLASS"
).split()
# Integers that are more than numbers: what turns a value into Open MPI's (in), or a result into MPICH's (out).
IN = {
    ("Comm_split_type", "split_type"): "mpy_number_in(MPY_GROUP_SPLIT, {})",
    ("Type_create_subarray", "order"): "mpy_number_in(MPY_GROUP_ORDER, {})",
    ("Type_match_size", "typeclass"): "mpy_number_in(MPY_GROUP_TYPECLASS, {})",
    ("Win_lock", "lock_type"): "mpy_number_in(MPY_GROUP_LOCK, {})",
    ("T_pvar_get_index", "var_class"): "mpy_number_in(MPY_GROUP_T_CLASS, {})",
} | {
    (name, "assert"): "mpy_assert_in({})" for name in ("Win_fence", "Win_lock", "Win_lock_all", "Win_post", "Win_start")
}
OUT = {
    ("Topo_test", "status"): "mpy_number_out(MPY_GROUP_TOPOLOGY, {})",
    ("Cart_shift", "rank_source"): "mpy_rank_out({})",
    ("Cart_shift", "rank_dest"): "mpy_rank_out({})",
    **{
        (f"T_{of}_get_info", name): f"mpy_number_out(MPY_GROUP_T_{group}, {{}})"
        for of in ("cvar", "pvar")
        for name, group in (("verbosity", "VERBOSITY"), ("bind", "BIND"), ("scope", "SCOPE"), ("var_class", "CLASS"))
    },
}
# Arrays of ranks and their lengths.
RANKS_IN = {("Group_translate_ranks", "ranks1"): "n"}
RANKS_OUT = {("Group_translate_ranks", "ranks2"): "n"}
PLAIN = set(
    "AINT AINT_ARRAY AINT_ARRAY_MUT AINT_ARRAY_OUT AINT_OUT ARGV_POINTER COUNT COUNT_C COUNT_C_OUT INT INT_ARRAY "
    "INT_ARRAY_MUT INT_ARRAY_OUT INT_OUT OFFSET OFFSET_OUT POINTER POINTER_IN POINTER_OUT RANGE_ARRAY STRING "
    "STRING_ARRAY STRING_ARRAY_ARRAY STRING_OUT TAG WEIGHTS_ARRAY WEIGHTS_ARRAY_OUT T_CVAR_HANDLE T_CVAR_HANDLE_P "
    "T_ENUM T_ENUM_P T_PVAR_HANDLE T_PVAR_HANDLE_P T_PVAR_SESSION T_PVAR_SESSION_P".split()
)
# 64-bit arguments for which the plain function has smaller ones: how an array becomes Open MPI's.
NARROWED_ARRAYS = {
    ("COUNT_C_ARRAY", "INT_ARRAY"): "mpy_ints_of_counts",
    ("AINT_ARRAY", "INT_ARRAY"): "mpy_ints_of_aints",
    ("COUNT_C_ARRAY", "AINT_ARRAY"): "mpy_aints_of_counts",
}


class Unknown(Exception):
    """There is no rule for an argument: the function isn't generated."""


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
    comm = f.argument("COMM")
    if a.count and "(" not in a.count:
        return a.count
    if comm is None:
        raise Unknown(a.name)
    sent = a.name.startswith("s")
    root = f.argument("ROOT")
    if "eighbor" in f.name:
        text = f"mpy_length({comm.name}, {'MPY_OF_DESTINATIONS' if sent else 'MPY_OF_SOURCES'})"
    elif root:
        text = f"mpy_length_at_root({comm.name}, {root.name})"
    elif f.argument("OP"):
        text = f"mpy_length({comm.name}, MPY_OF_LOCAL)"
    else:
        text = f"mpy_length({comm.name}, MPY_OF_PEERS)"
    if sent and any(b.name == "sendbuf" for b in f.arguments):
        text = f"sendbuf == MPI_IN_PLACE ? 0 : {text}"
    return f"{a.name} == NULL ? 0 : {text}"


def handle(body: Body, a: Argument, kind: str, form: str) -> None:
    f, x, k = body.function, a.name, f"MPY_KIND_{kind}"
    if form == "":
        body.add("void *", f"mpy_in({k}, {x})")
    elif form == "OUT":
        special = kind in ("INFO", "WIN")
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
        before = f"long n_{x} = {length};\n    void **o_{x} = mpy_handles_in(&arrays, {k}, {x}, n_{x});"
        after = f"mpy_handles_back({k}, {x}, o_{x}, n_{x});" if form == "ARRAY_INOUT" else ""
        body.add("void **", f"o_{x}", before, after)
    else:
        raise Unknown(f"{f.name}: {a.kind}")


def file(body: Body, a: Argument, form: str) -> None:
    x = a.name
    if form == "":
        body.add("void *", f"mpy_file_in({x})")
    elif form == "OUT":
        after = f"if (rc == 0) *{x} = mpy_file_out(o_{x});"
        body.add("void **", f"{x} != NULL ? &o_{x} : NULL", f"void *o_{x} = mpy_file_null;", after)
    else:
        before = f"void *o_{x} = mpy_file_in(*{x});"
        body.add("void **", f"&o_{x}", before, f"*{x} = mpy_file_out(o_{x});")


def status(body: Body, a: Argument) -> None:
    f, x = body.function, a.name
    flag = next((f" && *{b.name}" for b in f.arguments if b.name == "flag"), "")
    came = f"(rc == 0 || rc == OPENMPI_ERR_TRUNCATE){flag}"
    if a.kind == "STATUS_ARRAY_OUT":
        body.arrays = True
        number = next((f"*{b.name}" for b in f.arguments if b.name == "outcount"), a.count)
        came = f"(rc == 0{flag}) || rc == OPENMPI_ERR_IN_STATUS"
        before = f"mpy_status_t *o_{x} = mpy_statuses_for(&arrays, {x}, {a.count});"
        body.add("mpy_status_t *", f"o_{x}", before, f"if ({came}) mpy_statuses_out({x}, o_{x}, {number}, rc);")
    elif a.kind == "STATUS_OUT":
        after = f"if ({x} != MPI_STATUS_IGNORE && {came}) mpy_status_out({x}, &o_{x});"
        given = f"{x} == MPI_STATUS_IGNORE ? NULL : &o_{x}"
        body.add("mpy_status_t *", given, f"mpy_status_t o_{x} = MPY_STATUS_EMPTY;", after)
    else:
        after = f"if (rc == 0) mpy_status_out({x}, &o_{x});" if a.kind == "STATUS_INOUT" else ""
        body.add("mpy_status_t *", f"&o_{x}", f"mpy_status_t o_{x};\n    mpy_status_in(&o_{x}, {x});", after)


def number(body: Body, table: Table, a: Argument) -> None:
    f, x, ctype = body.function, a.name, table.kinds[a.kind]
    place = (f.name.removesuffix("_c"), x)
    if x == "target_disp":
        body.add(ctype, f"mpy_disp_in(win, {x})")
    elif place in OUT:
        body.add(ctype, x, after=f"if (rc == 0 && {x} != NULL) *{x} = {OUT[place].format('*' + x)};")
    elif place in RANKS_IN:
        body.arrays = True
        before = f"int *o_{x} = mpy_ranks_in(&arrays, {x}, {RANKS_IN[place]});"
        body.add(ctype, f"o_{x}", before)
    elif place in RANKS_OUT:
        loop = f"for (int i = 0; rc == 0 && i < {RANKS_OUT[place]}; i++) {x}[i] = mpy_rank_out({x}[i]);"
        body.add(ctype, x, after=loop)
    else:
        body.add(ctype, IN.get(place, "{}").format(x))


def translate(body: Body, table: Table, a: Argument) -> None:
    f = body.function
    kind, _, form = a.kind.partition("_")
    if kind in KINDS:
        handle(body, a, kind, form)
    elif kind == "FILE" and form in ("", "OUT", "INOUT"):
        file(body, a, form)
    elif kind == "STATUS":
        status(body, a)
    elif a.kind in ("BUFFER", "BUFFER_IN"):
        in_place = f.clock != "-" and f.family in ("collective", "nbc", "persistent", "topo")
        body.add(table.kinds[a.kind], f"mpy_buffer_in({a.name})" if in_place else a.name)
    elif a.kind in ("RANK", "ROOT"):
        body.add("int", f"mpy_{a.kind.lower()}_in({a.name})")
    elif a.kind in PLAIN:
        number(body, table, a)
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
        body.add(ctype, f"(int){x}", f"fits &= mpy_fits({x});")
    elif plain.kind == "AINT":
        body.add(ctype, x)
    else:
        raise Unknown(f"{body.function.name}: {a.kind} for {plain.kind}")


def call(table: Table, f: Function, real: Function) -> str:
    """The C function that stands for `f` and calls `real`. Raises Unknown."""
    if f.result != "INT" or len(f.arguments) != len(real.arguments):
        raise Unknown(f.name)
    body = Body(f)
    for a, b in zip(f.arguments, real.arguments, strict=True):
        if a.kind == b.kind:
            translate(body, table, a)
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


def calls(table: Table, constants: list[Constant]) -> str:
    by_name = {f.name: f for f in table.functions}
    parts = [
        BANNER,
        "/* Of the real call's arguments the ones that are pointers have Open MPI's types: void * for a handle. */",
        '#include "back.h"\n',
        "enum { MPY_TOO_LARGE = OPENMPI_ERR_VALUE_TOO_LARGE };\n",
    ]
    rows = []
    for f in table.functions:
        if f.family in (*NEVER_CALLED, INFOS) or f.cls == "unsupported" or f.name in WRITTEN:
            continue
        plain = f.name.removesuffix("_c")
        real = (by_name.get(f"{plain}_x") or by_name.get(plain)) if plain != f.name else f
        try:
            parts.append(call(table, f, real or f))
        except Unknown:
            continue
        rows.append(f"    {{MPY_FN_{f.name}, MPY_FN_{(real or f).name}, (void *)back_{f.name}}},")
    parts += ["const mpy_ours_t mpy_ours_generated[] = {", *rows, "};"]
    parts.append("const size_t mpy_ours_generated_count = sizeof mpy_ours_generated / sizeof *mpy_ours_generated;\n")
    parts.append("const mpy_row_t mpy_rows[] = {")
    for row in constants:
        symbol = row.openmpi[1] or OPEN_MPI.hidden.get(row.name, (None,))[0]
        if row.group in KINDS and isinstance(row.mpich, int) and isinstance(symbol, str):
            parts.append(f'    {{MPY_KIND_{row.group}, {row.name}, "{symbol}"}},')
    parts += ["};", "const size_t mpy_rows_count = sizeof mpy_rows / sizeof *mpy_rows;"]
    return "\n".join(parts) + "\n"


def pairs(constants: list[Constant]) -> str:
    return BANNER + "".join(
        f"MPY_PAIR({row.group}, {row.name}, OPENMPI_{row.name.removeprefix('MPI_')})\n"
        for row in constants
        if row.group in PAIRS and isinstance(row.mpich, int) and isinstance(row.openmpi[1], int)
    )


def main(arguments: list[str]) -> int:
    table, constants, output = read_table(Path(arguments[0])), read_constants(Path(arguments[1])), Path(arguments[2])
    write_files(output, {"back_calls.c": calls(table, constants), "openmpi_pairs.h": pairs(constants)}, "back.stamp")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
