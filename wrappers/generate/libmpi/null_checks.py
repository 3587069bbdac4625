"""Checks of arguments: a manual function is not called with NULL where it writes a value."""

from __future__ import annotations

import re

from ..c_text import PASSED, TRANSLATED, parameters
from ..function_table import Function, Table
from .outside import ALONE, ANY_TIME

# The real library refuses a NULL for these; generated wrappers hand it on, and manual ones never see it.
VALUE = re.compile(r"(?!\w*ARRAY)\w+_(OUT|INOUT)|(F08_|FINT_)?STATUS|STRING")


def nulls(f: Function) -> list[str]:
    """The conditions under which a manual function isn't called. Of a string only the root of a collective knows; a
    text before which its length stands may be left out, to ask for that; MPI_Init takes NULL."""
    if f.cls != "manual" or f.result != "INT" or f.family == "tools" or f.name in ("Init", "Init_thread"):
        return []
    found = []
    for before, a in zip((None, *f.arguments), f.arguments, strict=False):
        asked = a.kind == "STRING_OUT" and before is not None and before.kind == "INT_OUT"
        if VALUE.fullmatch(a.kind) and not asked and not (a.kind == "STRING" and f.argument("ROOT")):
            found.append(f"{a.name} == NULL")
        elif a.count is not None and f.family in ("datatype", "p2p", "persistent"):
            found.append(f"({a.name} == NULL && {a.count} > 0)")
    return found


def unchecked(f: Function) -> str:
    """The name of a manual function that is called behind a check."""
    return f"mpy_unchecked_{f.name}"


def error_of(f: Function) -> str:
    """How an error of this function is raised, except for the code."""
    for kind, raised in (
        ("WIN", "mpy_win_error(mpy_win({0})"),
        ("FILE", "mpy_file_error(mpy_file({0})"),
        ("SESSION", "mpy_session_error(mpy_session({0})"),
        ("COMM", "mpy_error(mpy_comm({0})"),
    ):
        if (a := f.argument(kind)) is not None:
            return raised.format(a.name)
    return "mpy_file_error(NULL" if f.family == "io" else "mpy_error(NULL"


def refused_call(f: Function) -> str | None:
    """The real call with the NULL in it, which says what is wrong with it; None if not all arguments can be translated
    here, or if that would crash in it: these look at a status, and at nothing else."""
    if f.family == "status":
        return None
    given = []
    for a in f.arguments:
        if a.kind == "COMM":
            given.append(f"mpy_real_comm({a.name})")
        elif a.kind in TRANSLATED:
            given.append(f"mpy_real_{TRANSLATED[a.kind]}({a.name})")
        elif PASSED.fullmatch(a.kind) or a.kind.endswith("_OUT") and "ARRAY" not in a.kind:
            given.append(a.name)
        else:
            return None
    return f"MPY_REAL({f.name})({', '.join(given)})"


def checked(table: Table, f: Function) -> str:
    """PMPI_X of a manual function: that with a NULL is kept away from it, and costs the others a comparison."""
    names = ", ".join(a.name for a in f.arguments)
    call, failed = refused_call(f), error_of(f)
    asked = (
        ["    mpy_thread_t *t = mpy_self();", "    mpy_cross_in(t);", f"    int rc = {call};", "    mpy_cross_out(t);"]
        if call
        else []
    )
    unused = [f"    (void){a.name};" for a in f.arguments if not call and a.name not in re.findall(r"\w+", failed)]
    return "\n".join(
        [
            f"static __attribute__((noinline, cold)) int null_{f.name}({parameters(table, f)}) {{",
            *unused,
            *asked,
            f'    return {failed}, {"rc != 0 ? rc : " if call else ""}MPI_ERR_ARG, "{f.symbol}");',
            "}",
            f"int P{f.symbol}({parameters(table, f)}) {{",
            *([f'    mpy_require_mpi("{f.symbol}");'] if f.family in ALONE and not ANY_TIME.fullmatch(f.name) else []),
            f"    if (MPY_UNLIKELY({' || '.join(nulls(f))})) return null_{f.name}({names});",
            f"    return {unchecked(f)}({names});",
            "}",
            "",
        ]
    )
