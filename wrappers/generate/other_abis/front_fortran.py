"""MPI in Fortran for programs of Open MPI: front/openmpi/fortran/ has the contract, and what is written by hand.

Each function MPI_X has a function fortran_X here. It gets addresses, translates handles, texts and the constants that
are common blocks, and calls the front's function front_X. Open MPI's modules mpi and mpi_f08 call it by name.

Output
    fortran_functions.h     prototypes of fortran_X
    fortran_generated.c     fortran_X of all functions that need no hand-written translation
    fortran_aliases.ld      mpi_x_ = fortran_X, and the other names
    fortran_numbers.h       FORTRAN_NUMBER(SYMBOL, KIND, FORTRAN): the predefined object of each number
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .argument_rules import ignored_in_place, length_of, of_communicator
from ..constants import Constant
from .front import objects, offered
from .front_arguments import ARRAY, HANDLE, STATUS, Translation
from .front_families import OPEN_MPI
from ..function_table import Argument, Function, Table, TableError

# Functions of C only; in mpi_f08 Open MPI's module has the last ones itself.
C_ONLY = re.compile(r"MPI_T_\w+|MPI_\w+_(c2f|f2c)|MPI_Status_(c2f08|f082c|f082f|f2f08)|MPI_DUP_FN")
# Written in front/openmpi/fortran/*.c, each with the types of its parameters.
TEXT = "const char *"
LENGTH = "int"
INT = "MPI_Fint *"
AINT = "MPI_Aint *"
FUNCTION = "mpy_opaque_function *"
CREATE_ERRHANDLER = (FUNCTION, INT, INT)
CREATE_KEYVAL = (FUNCTION, FUNCTION, INT, AINT, INT)
GET_ATTRIBUTE = (INT, INT, AINT, INT, INT)
SET_ATTRIBUTE = (INT, INT, AINT, INT)
WRITTEN: dict[str, tuple[str, ...]] = {
    "Init": (INT,),
    "Init_thread": (INT, INT, INT),
    "Pcontrol": (INT,),
    "Buffer_detach": ("void *", INT, INT),
    "Op_create": (FUNCTION, INT, INT, INT),
    "Errhandler_create": CREATE_ERRHANDLER,
    "Comm_create_errhandler": CREATE_ERRHANDLER,
    "File_create_errhandler": CREATE_ERRHANDLER,
    "Win_create_errhandler": CREATE_ERRHANDLER,
    "Session_create_errhandler": CREATE_ERRHANDLER,
    "Keyval_create": (FUNCTION, FUNCTION, INT, INT, INT),
    "Comm_create_keyval": CREATE_KEYVAL,
    "Type_create_keyval": CREATE_KEYVAL,
    "Win_create_keyval": CREATE_KEYVAL,
    "Attr_get": (INT, INT, INT, INT, INT),
    "Attr_put": (INT, INT, INT, INT),
    "Comm_get_attr": GET_ATTRIBUTE,
    "Type_get_attr": GET_ATTRIBUTE,
    "Win_get_attr": GET_ATTRIBUTE,
    "Comm_set_attr": SET_ATTRIBUTE,
    "Type_set_attr": SET_ATTRIBUTE,
    "Win_set_attr": SET_ATTRIBUTE,
    "Grequest_start": (FUNCTION, FUNCTION, FUNCTION, AINT, INT, INT),
    "Register_datarep": (TEXT, FUNCTION, FUNCTION, FUNCTION, AINT, INT, LENGTH),
    "Type_get_contents": (INT, INT, INT, INT, INT, AINT, INT, INT),
    "Comm_spawn": (TEXT, TEXT, INT, INT, INT, INT, INT, INT, INT, LENGTH, LENGTH),
    "Comm_spawn_multiple": (INT, TEXT, TEXT, INT, INT, INT, INT, INT, INT, INT, LENGTH, LENGTH),
    "Info_create_env": (INT, INT),
    "Info_get_string": (INT, TEXT, INT, "char *", INT, INT, LENGTH, LENGTH),
    "Session_get_nth_pset": (INT, INT, INT, INT, "char *", INT, LENGTH),
}
ADDED = {"F_sync_reg": ("void *",)}  # of Fortran only; written there, too
# MPI 1: addresses are INTEGER.
SHORT_ADDRESSES = "Address Type_extent Type_hindexed Type_hvector Type_lb Type_struct Type_ub".split()
# Other names of four functions, for a pointer as the result.
POINTER_RESULTS = ("Alloc_mem", "Win_allocate", "Win_allocate_shared", "Win_shared_query")
# What the program passes for a copy function and the like; written in front/openmpi/fortran/callbacks.c.
PREDEFINED = [f"{kind}{name}" for kind in ("", "comm_", "type_", "win_")
              for name in ("dup_fn", "null_copy_fn", "null_delete_fn")] + ["conversion_fn_null"]  # fmt: skip
# Common blocks; in front/openmpi/fortran/constants.c.
SENTINELS = [f"mpi_fortran_{name}_" for name in (
    "argv_null argvs_null bottom errcodes_ignore in_place status_ignore statuses_ignore unweighted weights_empty"
).split()]  # fmt: skip
# The types of MPI_Sizeof in mpif.h, with their sizes, and the ranks of arrays.
SIZEOF = {"character": 1, "logical": 4, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "real32": 4, "real64": 8,
          "real128": 16, "complex32": 8, "complex64": 16, "complex128": 32}  # fmt: skip
SHAPES = ["scalar", *(f"r{rank}" for rank in range(1, 16))]
SCALARS = ("AINT", "COUNT", "COUNT_C", "INT", "TAG", "RANK", "ROOT", "KEYVAL", "OFFSET")
POINTERS = re.compile(
    r"(INT|AINT|COUNT_C|OFFSET|KEYVAL)(_ARRAY)?(_OUT|_INOUT|_MUT)?|RANGE_ARRAY|POINTER_OUT"
)  # the value is where C expects it


def in_fortran(table: Table) -> list[Function]:
    return [f for f in offered(table, OPEN_MPI) if not C_ONLY.fullmatch(f.symbol)]


# ---- arguments


def parameter(table: Table, f: Function, a: Argument) -> str:
    """Everything is passed by its address. MPI_Fint is int."""
    short = f.name in SHORT_ADDRESSES and a.kind.startswith("AINT")
    if HANDLE.fullmatch(a.kind) or ARRAY.fullmatch(a.kind) or STATUS.fullmatch(a.kind) or short:
        return f"{'' if a.kind.endswith(('OUT', 'MUT')) else 'const '}MPI_Fint *{a.name}"
    ctype = table.kinds[a.kind]
    if a.kind in SCALARS:
        return f"const {ctype} *{a.name}"
    base, bracket, dimensions = ctype.partition("[")
    return f"{base}{'' if base.endswith('*') else ' '}{a.name}{bracket}{dimensions}"


def parameters(table: Table, f: Function) -> str:
    if f.name in WRITTEN:
        return ", ".join(WRITTEN[f.name])
    given = [parameter(table, f, a) for a in f.arguments]
    given += ["MPI_Fint *ierror"] if f.result == "INT" else []
    given += [f"int {a.name}_length" for a in f.arguments if a.kind in ("STRING", "STRING_OUT")]
    return ", ".join(given) or "void"


def prototype(table: Table, f: Function) -> str:
    result = "void" if f.result == "INT" else table.kinds[f.result]
    return f"{result} fortran_{f.name}({parameters(table, f)})"


def length(f: Function, a: Argument) -> str:
    """The number of an array's items."""
    if not of_communicator(f, a):
        return f"*{a.count}"
    members = length_of(f, a, lambda comm, which: f"fortran_members({comm}, MPY_{which})")
    return f"is_in_place(sendbuf) ? 0 : {members}" if ignored_in_place(a) else members


def handle(kind: str, form: str | None, a: Argument) -> Translation:
    """An output that isn't written stays, as in front_arguments.py."""
    name, own = a.name, f"{a.name}_front"
    given = f"front_of_fortran(FRONT_{kind}, *{name})"
    if form is None:
        return Translation(given)
    if form == "_OUT":
        before, changed = [f"front_handle_t {own} = 0;"], f"{own} != 0"
    else:
        before, changed = [f"front_handle_t {own} = {given}, {name}_given = {own};"], f"{own} != {name}_given"
    return Translation(f"&{own}", before, [f"if ({changed}) *{name} = front_fortran(FRONT_{kind}, {own});"])


def array(kind: str, f: Function, a: Argument) -> Translation:
    name, own, local = a.name, f"{a.name}_front", f"{a.name}_local"
    n = f"{name}_count"
    before = [
        f"int {n} = {length(f, a)};",
        f"front_handle_t {local}[LOCAL_ITEMS], *{own} = fortran_handles(FRONT_{kind}, {name}, {n}, {local});",
    ]
    after = [f"fortran_handles_free({own}, {local});"]
    if a.kind.endswith("_INOUT"):
        after.insert(0, f"fortran_handles_put(FRONT_{kind}, {name}, {n}, {own});")
    return Translation(own, before, after)


def text(f: Function, a: Argument) -> Translation:
    name, own = a.name, f"{a.name}_c"
    if a.kind == "STRING":
        return Translation(own, [f"char *{own} = fortran_text({name}, {name}_length);"], [f"free({own});"])
    flag = " && *flag" if any(b.name == "flag" for b in f.arguments) else ""
    put = f"if (rc == MPI_SUCCESS{flag}) fortran_text_put({name}, {name}_length, {own});"
    return Translation(own, [f"char {own}[TEXT_SIZE];"], [put])


def short_address(f: Function, a: Argument) -> Translation:
    name, own = a.name, f"{a.name}_address"
    if a.kind == "AINT":
        return Translation(f"*{name}")
    if a.kind == "AINT_OUT":
        return Translation(f"&{own}", [f"MPI_Aint {own} = 0;"], [f"if (rc == MPI_SUCCESS) *{name} = (MPI_Fint){own};"])
    return Translation(own, [f"MPI_Aint *{own} = fortran_addresses({name}, *{a.count});"], [f"free({own});"])


def index(f: Function, a: Argument) -> Translation:
    """Indices count from 1."""
    if a.name == "indx":
        return Translation("&own_index", ["int own_index = UNKNOWN_CONSTANT;"], ["fortran_index(indx, own_index);"])
    return Translation(a.name, after=[f"fortran_indices(rc, *outcount, {a.name});"])


def translation(f: Function, a: Argument) -> Translation:
    name = a.name
    if m := HANDLE.fullmatch(a.kind):
        return handle(m[1], m[2], a)
    if m := ARRAY.fullmatch(a.kind):
        return array(m[1], f, a)
    if STATUS.fullmatch(a.kind):
        return Translation(f"fortran_status({name})")
    if (name, a.kind) in (("indx", "INT_OUT"), ("array_of_indices", "INT_ARRAY_OUT")):
        return index(f, a)
    if f.name in SHORT_ADDRESSES and a.kind.startswith("AINT"):
        return short_address(f, a)
    if f.name == "Info_get" and name == "valuelen":
        return Translation("fortran_value_length(*valuelen)")
    if a.kind in SCALARS:
        return Translation(f"*{name}")
    if a.kind in ("BUFFER", "BUFFER_IN"):
        return Translation(f"fortran_buffer({name})")
    if a.kind in ("STRING", "STRING_OUT"):
        return text(f, a)
    if a.kind.startswith("WEIGHTS_ARRAY"):
        return Translation(f"fortran_weights({name})")
    if POINTERS.fullmatch(a.kind):
        return Translation(name)
    raise TableError(f"{f.symbol}: no rule translates {name} of kind {a.kind} from Fortran")


def fortran_function(table: Table, f: Function) -> str:
    """The whole function fortran_X."""
    arguments = [translation(f, a) for a in f.arguments]
    call = f"front_{f.name}({', '.join(t.given for t in arguments)})"
    before = [line for t in arguments for line in t.before]
    after = [line for t in arguments for line in t.after]
    if f.result != "INT":
        body = [f"return {call};"]
    elif not after:
        body = [*before, f"*ierror = {call};"]
    else:
        body = [*before, f"int rc = {call};", *after, "*ierror = rc;"]
    return f"{prototype(table, f)} {{\n{''.join(f'    {line}{chr(10)}' for line in body)}}}\n"


# ---- files


def sizeof(kind: str, size: int) -> str:
    return f"void fortran_sizeof_{kind}(const void *x, MPI_Fint *size, MPI_Fint *ierror)"


def fortran_functions(table: Table) -> str:
    """No guard: fortran.h includes it once."""
    lines = ["#pragma GCC visibility push(default) /* the linker's aliases have the visibility of these */"]
    lines += [f"{prototype(table, f)};" for f in in_fortran(table)]
    lines += [f"void fortran_{name}({', '.join(types)});" for name, types in ADDED.items()]
    lines += [f"{sizeof(kind, size)};" for kind, size in SIZEOF.items()]
    lines += ["#pragma GCC visibility pop"]
    return "\n".join(lines) + "\n"


def fortran_generated(table: Table) -> str:
    parts = ['#include "front/openmpi/fortran/fortran.h"\n\n#include <stdlib.h>\n']
    parts += [fortran_function(table, f) for f in in_fortran(table) if f.name not in WRITTEN]
    parts += [
        f"{sizeof(kind, size)} {{\n    (void)x;\n    *size = {size};\n    *ierror = MPI_SUCCESS;\n}}\n"
        for kind, size in SIZEOF.items()
    ]
    return "\n".join(parts)


def spellings(name: str) -> list[str]:
    """What compilers make of a name."""
    low = name.lower()
    return [low, f"{low}_", f"{low}__", name.upper()]


def names(table: Table) -> dict[str, str]:
    """Each exported name of a function, and the C function behind it."""
    found: dict[str, str] = {}
    functions = {f.symbol: f"fortran_{f.name}" for f in in_fortran(table)}
    functions |= {f"MPI_{name}": f"fortran_{name}" for name in ADDED}
    functions |= {name: f"fortran_{same.removeprefix('MPI_')}" for name, same in OPEN_MPI.same_as.items()}
    for symbol, own in functions.items():
        prefix, _, name = symbol.partition("_")
        for p in ("", "P"):
            found |= dict.fromkeys([*spellings(p + symbol), f"{p}{symbol}_f", f"{p}{symbol}_f08"], own)
        found[f"o{prefix.lower()}_{name.lower()}_f"] = own  # for Open MPI's modules: ompi_send_f
    for name in POINTER_RESULTS:
        for p in ("", "P"):
            both = [f"{p}MPI_{name}_cptr_f", f"{p}MPI_{name}_cptr_f08"]
            found |= dict.fromkeys([*spellings(f"{p}MPI_{name}_cptr"), *both], f"fortran_{name}")
        found[f"ompi_{name.lower()}_cptr_f"] = f"fortran_{name}"
    for name in PREDEFINED:
        found |= dict.fromkeys(spellings(f"MPI_{name}"), f"fortran_{name}")
    for kind in SIZEOF:
        for shape in SHAPES:
            for p in ("", "P"):
                found |= dict.fromkeys(spellings(f"{p}MPI_sizeof_{kind}_{shape}"), f"fortran_sizeof_{kind}")
    return found


def fortran_aliases(table: Table) -> str:
    return "".join(f"{name} = {own};\n" for name, own in names(table).items())


def fortran_numbers(rows: Iterable[Constant]) -> str:
    """The first object of several that have one number."""
    found: dict[tuple[str, int], str] = {}
    for symbol, kind, _, number in objects(rows, OPEN_MPI):
        if number >= 0:
            found.setdefault((kind, number), symbol)
    return "".join(f"FORTRAN_NUMBER({symbol}, {kind}, {number})\n" for (kind, number), symbol in found.items())


def with_fortran(exports: str, table: Table) -> str:
    """The version script of libmpi.so.40 with these symbols."""
    more = "".join(f"  {name};\n" for name in sorted([*names(table), *SENTINELS]))
    return exports.replace("local: *;", f"{more}local: *;")


def fortran_files(table: Table, rows: list[Constant]) -> dict[str, str]:
    texts = {
        "fortran_functions.h": fortran_functions(table),
        "fortran_generated.c": fortran_generated(table),
        "fortran_aliases.ld": fortran_aliases(table),
        "fortran_numbers.h": fortran_numbers(rows),
    }
    return {f"{OPEN_MPI.folder}/{name}": text for name, text in texts.items()}
