"""C text that several modules write: prototypes, and the call of the real function with translated handles."""

from __future__ import annotations

import re

from .function_table import Argument, Function, Table, TableError


# ---- types and prototypes


def declaration(table: Table, a: Argument) -> str:
    ctype = table.kinds[a.kind]
    if ctype == "...":
        return "..."
    base, bracket, dimensions = ctype.partition("[")
    return f"{base}{'' if base.endswith('*') else ' '}{a.name}{bracket}{dimensions}"


def parameters(table: Table, f: Function) -> str:
    return ", ".join(declaration(table, a) for a in f.arguments) or "void"


def result_type(table: Table, f: Function) -> str:
    ctype = table.kinds[f.result]
    return ctype if ctype.endswith("*") else ctype + " "


# ---- the call of the real function

TRANSLATED = {
    "DATATYPE": "datatype", "OP": "op", "GROUP": "group", "INFO": "info", "COMM": "comm",
    "WEIGHTS_ARRAY": "weights", "WEIGHTS_ARRAY_OUT": "weights",
}  # fmt: skip
ADOPTED = {"GROUP_OUT": "group", "INFO_OUT": "info"}
SESSIONS = {
    "GROUP": "mpy_group_session({})",
    "COMM": "mpy_comm_session({})",
    "FILE": "f != NULL ? f->session : 0",
}  # of a group that comes from an object of this kind
PASSED = re.compile(
    r"BUFFER(_IN)?|POINTER(_IN|_OUT)?|(INT|COUNT|COUNT_C|AINT|OFFSET)(_ARRAY)?(_OUT|_MUT)?|RANK|ROOT|TAG|"
    r"STRING(_OUT|_ARRAY)?|STATUS(_OUT|_INOUT)?|RANGE_ARRAY"
)


def call_argument(f: Function, a: Argument, comm: str) -> str:
    """How argument `a` is handed to the real function. Evaluated in the lower half: no thread-local variables."""
    if a.kind == "COMM":
        return comm if f.clock == a.name else f"mpy_real_comm({a.name})"
    if a.kind in TRANSLATED:
        return f"mpy_real_{TRANSLATED[a.kind]}({a.name})"
    if a.kind == "WIN":
        return "w->obj.real"
    if a.kind in ADOPTED:
        return f"{a.name} != NULL ? &real_{a.name} : NULL"
    if a.kind == "FILE":
        return "mpy_real_file(f)"
    if a.kind == "DATATYPE_ARRAY":
        return f"real_{a.name}"
    if a.kind == "REQUEST_OUT":
        return f"{a.name} != NULL ? &real_request : NULL"
    if not PASSED.fullmatch(a.kind):
        raise TableError(f"{f.symbol}: no rule to generate argument {a.name} of kind {a.kind}")
    return a.name


def real_call(f: Function, comm: str) -> str:
    return f"MPY_REAL({f.name})({', '.join(call_argument(f, a, comm) for a in f.arguments)})"


def adoption(f: Function, a: Argument) -> str:
    """The program's handle of the new object in `a`. A group belongs to the session of the first object given."""
    if a.kind != "GROUP_OUT":
        return f"mpy_{ADOPTED[a.kind]}_adopt(real_{a.name})"
    session = next(SESSIONS[b.kind].format(b.name) for b in f.arguments if b.kind in SESSIONS)
    return f"mpy_group_adopt(real_{a.name}, {session})"
