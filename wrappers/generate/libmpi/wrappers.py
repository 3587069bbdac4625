"""The wrapper of a function of class "generated"."""

from __future__ import annotations

from ..c_text import ADOPTED, adoption, parameters, real_call
from .collectives import collective_body
from .files import file_body
from ..function_table import Function, Table, TableError
from .persistent import persistent_wrapper
from .windows import window_body

NULL_OF = {"GROUP_OUT": "MPI_GROUP_NULL", "INFO_OUT": "MPI_INFO_NULL"}  # left by a call that fails


def local_body(f: Function) -> list[str]:
    """Cross, call, and give new objects a handle before a snapshot can come between (invariant 2 of objects.h)."""
    adopted = [a for a in f.arguments if a.kind in ADOPTED]
    comm = f.argument("COMM")
    handler = f"mpy_comm({comm.name})" if comm else "NULL"
    raised = "mpy_file_error(NULL" if f.family == "io" else f"mpy_error({handler}"
    # MPI-4 15.3.10: tools call no error handler
    failed = "rc" if f.family == "tools" else f'{raised}, rc, "{f.symbol}")'
    lines = ["    mpy_thread_t *t = mpy_self();"]
    lines += [f"    int real_{a.name};" for a in adopted]
    lines += ["    mpy_cross_in(t);", f"    int rc = {real_call(f, '')};"]
    if adopted:
        lines += [
            *(f"    if (rc == 0) *{a.name} = {adoption(f, a)};" for a in adopted),
            *(f"    mpy_or_null(rc, {a.name}, {NULL_OF[a.kind]});" for a in adopted),
        ]
    lines += [
        "    mpy_cross_out(t);",
        f"    return MPY_LIKELY(rc == 0) ? 0 : {failed};",
    ]
    return lines


def wrapper(table: Table, f: Function) -> str:
    if f.result != "INT":
        raise TableError(f"{f.symbol}: only functions that return an error code can be generated")
    if f.family == "persistent":
        return persistent_wrapper(table, f)
    if f.argument("FILE"):
        rule = file_body
    elif f.argument("WIN"):
        rule = window_body
    else:
        rule = collective_body if f.clock != "-" else local_body
    body = rule(f)
    return "\n".join([f"int P{f.symbol}({parameters(table, f)}) {{", *body, "}"]) + "\n"
