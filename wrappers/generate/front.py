"""The front for Open MPI: libmpi.so.40, which translates each call from Open MPI's binary interface to MPICH's.

Output
    front_functions.h  prototypes of front_X for each function MPI_X, and of the constants' translations
    front_objects.h    FRONT_OBJECT(SYMBOL, KIND, CORE, FORTRAN) for each predefined object
    front_generated.c  front_X of all functions that need no hand-written translation
    front_aliases.ld   MPI_X = PMPI_X = front_X
    front_exports.map  the symbols of libmpi.so.40
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .constants import HANDLES, Constant
from .front_arguments import front_function, group_translations, prototype
from .function_table import Function, Table

# Functions that Open MPI lacks (until 5.0).
LACKING = re.compile(
    r"MPI_\w+_c|MPI_Abi_\w+|MPI_\w+_(toint|fromint)|MPI_Status_[gs]et_(source|tag|error)|MPI_T_(event|source)_\w+|"
    r"MPI_T_category_get_(num_)?events|MPI_(Buffer|Comm|Session)_i?flush_buffer|MPI_Buffer_i?flush|"
    r"MPI_(Comm|Session)_(at|de)tach_buffer|MPI_Request_get_status_(all|any|some)|MPI_Remove_error_\w+|"
    r"MPI_Get_hw_resource_info|MPI_Type_get_value_index|MPIX_\w+"
)
# Written in front/openmpi/*.c.
MANUAL = set(
    "Waitall Waitany Waitsome Testall Testany Testsome Startall "
    "Op_create Comm_create_errhandler File_create_errhandler Win_create_errhandler Session_create_errhandler "
    "Errhandler_create Comm_create_keyval Type_create_keyval Win_create_keyval Keyval_create Grequest_start "
    "Comm_get_attr Attr_get Win_get_attr Type_get_contents Type_create_darray Group_translate_ranks "
    "Get_version Get_library_version Comm_spawn_multiple "
    "Status_c2f Status_f2c Status_c2f08 Status_f082c Status_f082f Status_f2f08 "
    "T_cvar_handle_alloc T_pvar_handle_alloc".split()
)
# Functions of Open MPI that the core doesn't have, each with another one that does the same.
SAME_AS = {
    f"MPIX_{name}_init": f"MPI_{name}_init"
    for name in (
        "Allgather Allgatherv Allreduce Alltoall Alltoallv Alltoallw Barrier Bcast Exscan Gather Gatherv "
        "Neighbor_allgather Neighbor_allgatherv Neighbor_alltoall Neighbor_alltoallv Neighbor_alltoallw Reduce "
        "Reduce_scatter Reduce_scatter_block Scan Scatter Scatterv"
    ).split()
}
UNSUPPORTED = (
    "MPIX_Comm_ack_failed MPIX_Comm_agree MPIX_Comm_failure_ack MPIX_Comm_failure_get_acked MPIX_Comm_get_failed "
    "MPIX_Comm_iagree MPIX_Comm_is_revoked MPIX_Comm_revoke MPIX_Comm_shrink MPI_Session_set_info"
).split()
# Without a PMPI twin; written in front/openmpi/*.c.
ALONE = [
    *(f"OMPI_C_MPI_{kind}{name}" for kind in ("", "COMM_", "TYPE_", "WIN_")
      for name in ("DUP_FN", "NULL_COPY_FN", "NULL_DELETE_FN")),
    "MPIX_Query_cuda_support", "MPIX_Query_rocm_support", "MPI_F_STATUS_IGNORE", "MPI_F_STATUSES_IGNORE",
    "MPI_F08_STATUS_IGNORE", "MPI_F08_STATUSES_IGNORE",
    "ompi_mpi_errors_throw_exceptions", "ompi_attr_create_keyval", "ompi_errhandler_create", "ompi_errhandler_invoke",
    "ompi_op_set_cxx_callback", "ompi_errcode_intern_lastused", "ompi_errcodes_intern", "ompi_registered_datareps",
]  # fmt: skip
# Objects that mpi.h hides, with names of the core's constants and the values in Fortran.
HIDDEN = {"MPI_LB": ("ompi_mpi_lb", 4), "MPI_UB": ("ompi_mpi_ub", 3), "MPI_INTEGER16": ("ompi_mpi_integer16", 12),
          "MPI_REAL2": ("ompi_mpi_real2", 28)}  # fmt: skip
# Objects for which mpi.h has no constant; other handles of the core's types. A query returns none of them.
NAMELESS = {"ompi_mpi_ldblcplex": "MPI_C_LONG_DOUBLE_COMPLEX", "ompi_mpi_c_complex": "MPI_C_FLOAT_COMPLEX",
            "ompi_mpi_complex4": "MPI_COMPLEX4"}  # fmt: skip


# A value that Open MPI doesn't define may be one of the core's: the core gets one that nobody defines.
UNDEFINED = "value == MPI_UNDEFINED ? value : UNKNOWN_CONSTANT"


def offered(table: Table) -> list[Function]:
    return [f for f in table.functions if not LACKING.fullmatch(f.symbol)]


def objects(rows: Iterable[Constant]) -> list[tuple[str, str, str, int]]:
    """(symbol, kind, the core's constant, value in Fortran or -1); the first constant of several that share an object.
    A type that the core lacks is no type there: 0."""
    found: dict[str, tuple[str, str, str, int]] = {}
    for row in rows:
        if row.group not in HANDLES:
            continue
        symbol, fortran = row.openmpi[1], row.fortran
        if symbol is None and row.name in HIDDEN:
            symbol, fortran = HIDDEN[row.name]
        if isinstance(symbol, str) and (symbol not in found or found[symbol][2] == "0"):
            core = "0" if row.mpich is None or row.group == "FILE" else row.name
            found[symbol] = (symbol, f"FRONT_{row.group}", core, -1 if fortran is None else fortran)
    return [*found.values(), *((symbol, "FRONT_DATATYPE", core, -1) for symbol, core in NAMELESS.items())]


def front_objects(rows: list[Constant]) -> str:
    return "".join(f"FRONT_OBJECT({', '.join(map(str, entry))})\n" for entry in objects(rows))


def front_functions(table: Table, rows: list[Constant]) -> str:
    """No guard: openmpi.h includes it once, between its types and what needs the translations."""
    lines = [f"int core_{name}(int value), front_{name}(int core);" for name in translated(rows)]
    lines += ["#pragma GCC visibility push(default) /* the linker's aliases have the visibility of these */"]
    lines += [f"{prototype(table, f)};" for f in offered(table)]
    lines += [f"void front_{name}(void);" for name in UNSUPPORTED]
    lines += ["#pragma GCC visibility pop"]
    return "\n".join(lines) + "\n"


def translated(rows: list[Constant]) -> dict[str, list[tuple[int, int]]]:
    """The groups of numbers that differ, by the name of the translation; except for those that constants.c makes."""
    pairs = group_translations(rows)
    own = {group.lower(): pairs[group] for group in pairs if group not in ("ERROR", "RANK", "ASSERT", "KEYVAL")}
    return own | {"error_class": pairs["ERROR"]}


def switch(name: str, pairs: list[tuple[int, int]], otherwise: str) -> str:
    cases = "".join(f"    case {before}: return {after};\n" for before, after in pairs)
    return f"int {name}(int value) {{\n    switch (value) {{\n{cases}    default: return {otherwise};\n    }}\n}}\n"


def front_generated(table: Table, rows: list[Constant]) -> str:
    differing = group_translations(rows)
    parts = ['#include "front/openmpi/openmpi.h"\n']
    for name, pairs in translated(rows).items():
        parts += [
            switch(f"core_{name}", [(theirs, core) for core, theirs in pairs], UNDEFINED),
            switch(f"front_{name}", pairs, "UNKNOWN_CONSTANT" if name == "error_class" else "value"),
        ]
    parts += [front_function(table, f, differing) for f in offered(table) if f.name not in MANUAL]
    parts += [f'void front_{name}(void) {{ mpy_core_unsupported("{name}"); }}\n' for name in UNSUPPORTED]
    return "\n".join(parts)


def names(table: Table) -> dict[str, str]:
    """Each function of the interface and the C function behind it."""
    found = {f.symbol: f"front_{f.name}" for f in offered(table)}
    found |= {name: f"front_{same.removeprefix('MPI_')}" for name, same in SAME_AS.items()}
    return found | {name: f"front_{name}" for name in UNSUPPORTED}


def front_aliases(table: Table) -> str:
    return "".join(f"{name} = {own};\nP{name} = {own};\n" for name, own in names(table).items())


def front_exports(table: Table, rows: list[Constant]) -> str:
    symbols = [each for name in names(table) for each in (name, f"P{name}")]
    symbols += [entry[0] for entry in objects(rows)] + ALONE
    return "{ global:\n" + "".join(f"  {name};\n" for name in sorted(symbols)) + "local: *; };\n"


def front_files(table: Table, rows: list[Constant]) -> dict[str, str]:
    return {
        "front_functions.h": front_functions(table, rows),
        "front_objects.h": front_objects(rows),
        "front_generated.c": front_generated(table, rows),
        "front_aliases.ld": front_aliases(table),
        "front_exports.map": front_exports(table, rows),
    }
