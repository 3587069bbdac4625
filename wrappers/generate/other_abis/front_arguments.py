"""How the arguments of one call are translated between a front's binary interface and MPICH's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from .argument_rules import (
    CONSTANTS,
    OF_CONSTANTS,
    WITH_IN_PLACE,
    group_translations,
    ignored_in_place,
    length_of,
    of_function,
)
from ..c_text import declaration
from ..constants import Constant
from .front_families import Family
from ..function_table import Argument, Function, Table, TableError

# Texts that may be longer in the core than the program's array: the constants that say how long.
LIMITS = {
    "comm_name": "MAX_OBJECT_NAME", "type_name": "MAX_OBJECT_NAME", "win_name": "MAX_OBJECT_NAME",
    "Error_string.string": "MAX_ERROR_STRING", "Info_get_nthkey.key": "MAX_INFO_KEY",
}  # fmt: skip
HANDLE = re.compile(r"(COMM|GROUP|DATATYPE|OP|ERRHANDLER|INFO|REQUEST|MESSAGE|WIN|SESSION|FILE)(_OUT|_INOUT)?")
ARRAY = re.compile(r"(DATATYPE|INFO|REQUEST)_ARRAY(_MUT|_OUT|_INOUT)?")
STATUS = re.compile(r"STATUS(_ARRAY)?(_OUT|_INOUT)?")


@dataclass(frozen=True)
class Differences:
    """What the interface of a front has that the core's has not."""

    groups: Mapping[str, list[tuple[int, int]]]  # numbers that differ: pairs (the core's, the interface's)
    shorter: frozenset[str]  # constants of LIMITS that are smaller
    automatic: bool  # MPI_BUFFER_AUTOMATIC


@dataclass
class Translation:
    """One argument: what is declared before the call, what the core gets, and what follows the call."""

    given: str
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)


def differences(rows: list[Constant], family: Family) -> Differences:
    values = {row.name: (row.mpich, family.value(row)) for row in rows}
    shorter = {
        limit
        for limit in LIMITS.values()
        if isinstance(core := values[f"MPI_{limit}"][0], int)
        and isinstance(theirs := values[f"MPI_{limit}"][1], int)
        and theirs < core
    }
    return Differences(
        group_translations(rows, family), frozenset(shorter), values["MPI_BUFFER_AUTOMATIC"][1] is not None
    )


# ---- types


def c_type(a: Argument) -> str | None:
    """The argument's type in the front's interface, "[]" behind the name; None: as in MPICH's."""
    if m := HANDLE.fullmatch(a.kind):
        return "front_handle_t *" if m[2] else "front_handle_t"
    if m := ARRAY.fullmatch(a.kind):
        return "front_handle_t[]" if m[2] in ("_OUT", "_INOUT", "_MUT") else "const front_handle_t[]"
    if m := STATUS.fullmatch(a.kind):
        return "front_status_t *" if m[2] else "const front_status_t *"
    if a.kind.startswith("FN_"):
        return "mpy_opaque_function *"
    if a.kind.startswith("F08_STATUS"):
        return "front_status_t *" if a.kind.endswith("_OUT") else "const front_status_t *"
    return None


def parameter(table: Table, a: Argument) -> str:
    own = c_type(a)
    if own is None:
        return declaration(table, a)
    base, bracket, dimensions = own.partition("[")
    return f"{base}{'' if base.endswith('*') else ' '}{a.name}{bracket}{dimensions}"


def prototype(table: Table, f: Function) -> str:
    result = "front_handle_t" if HANDLE.fullmatch(f.result) else table.kinds[f.result]
    return f"{result} front_{f.name}({', '.join(parameter(table, a) for a in f.arguments) or 'void'})"


# ---- arguments


def handle(kind: str, form: str | None, a: Argument) -> Translation:
    """The program's handle changes only if the core has changed its own: an output that isn't written stays."""
    name, core = a.name, f"{a.name}_core"
    if kind == "FILE":
        into, out, ctype, none = f"core_file(*{name})", f"front_file({core})", "MPI_File", "(MPI_File)-1"
        single = f"core_file({name})"
    else:
        into, out, ctype, none = f"core_handle(*{name})", f"front_handle(FRONT_{kind}, {core})", "int", "0"
        single = f"core_handle({name})"
    if form is None:
        return Translation(single)
    before = [f"{ctype} {core} = {none};"]
    changed = f"{core} != {none}"
    if form == "_INOUT":
        before = [f"{ctype} {core} = {name} != NULL ? {into} : 0, {name}_given = {core};"]
        changed = f"{core} != {name}_given"
    return Translation(f"{name} != NULL ? &{core} : NULL", before, [f"if (LIKELY({changed})) *{name} = {out};"])


def status(f: Function, a: Argument) -> Translation:
    name, core = a.name, f"{a.name}_core"
    given = f"{name} != NULL ? &{core} : {'NULL' if a.kind != 'STATUS_OUT' else 'MPI_STATUS_IGNORE'}"
    if a.kind != "STATUS_OUT":
        # The calls that change a status of the program leave its source, tag and error as they are.
        after = [f"if (rc == MPI_SUCCESS && {name} != NULL) front_status_count({name}, &{core});"]
        unset = [f"MPI_Status {core} = {name} != NULL ? core_status({name}) : CORE_STATUS_EMPTY;"]
        return Translation(given, unset, after if a.kind == "STATUS_INOUT" else [])
    # A call for a send writes no source, but whether it was cancelled; a call that fails may have written everything.
    flag = " && *flag" if any(b.name == "flag" for b in f.arguments) else ""
    written = f"(rc == MPI_SUCCESS{flag}) || {core}.MPI_SOURCE != STATUS_UNWRITTEN"
    after = [f"if ({name} != NULL && LIKELY({written})) front_status_put({name}, &{core});"]
    return Translation(given, [f"MPI_Status {core} = CORE_STATUS_EMPTY;"], after)


def array(a: Argument, f: Function) -> Translation:
    name = a.name
    length = length_of(f, a, lambda comm, which: f"mpy_core_members(core_handle({comm}), MPY_{which})")
    ignored = f"sendbuf == (const void *)FRONT_IN_PLACE ? NULL : {name}" if ignored_in_place(a) else name
    core, local = f"{name}_core", f"{name}_local"
    copy, release = f"core_handles({ignored}, {length}, {local})", f"core_handles_free({core}, {local});"
    # MPICH takes buffers as the same only if the arrays of types are the same, too.
    if name == "recvtypes" and a.count == "size(comm)":
        copy = f"{name} == sendtypes && sendtypes_core != NULL ? sendtypes_core : {copy}"
        release = f"if ({core} != sendtypes_core) {release}"
    return Translation(core, [f"int {local}[LOCAL_ITEMS], *{core} = {copy};"], [release])


def number(group: str, a: Argument, table: Table) -> Translation:
    """A constant, given or returned."""
    low = group.lower()
    if not a.kind.endswith("_OUT"):
        return Translation(f"core_{low}({a.name})")
    return Translation(
        a.name, after=[f"if (rc == MPI_SUCCESS && {a.name} != NULL) *{a.name} = front_{low}(*{a.name});"]
    )


def text(limit: str, f: Function, a: Argument) -> Translation:
    length = next((b.name for b in f.arguments if b.name == "resultlen"), "NULL")
    return Translation(
        f"{a.name} != NULL ? {a.name}_core : NULL",
        [f"char {a.name}_core[MPI_{limit} + 1];"],
        [f"if (rc == MPI_SUCCESS) front_text({a.name}, FRONT_{limit}, {a.name}_core, {length});"],
    )


def translation(table: Table, f: Function, a: Argument, differ: Differences) -> Translation:
    name, group = a.name, of_function(CONSTANTS, f, a)
    limit = of_function(LIMITS, f, a)
    if m := HANDLE.fullmatch(a.kind):
        return handle(m[1], m[2], a)
    if ARRAY.fullmatch(a.kind):
        return array(a, f)
    if STATUS.fullmatch(a.kind):
        return status(f, a)
    if limit in differ.shorter and a.kind == "STRING_OUT":
        return text(str(limit), f, a)
    if group in differ.groups and a.kind in OF_CONSTANTS:
        return number(str(group), a, table)
    if a.kind in ("RANK", "ROOT"):
        return Translation(f"core_rank({name})")
    if a.kind in ("KEYVAL", "KEYVAL_OUT", "KEYVAL_INOUT"):
        return keyval(a)
    if a.kind in ("BUFFER", "BUFFER_IN") and f.family in WITH_IN_PLACE:
        return Translation(f"core_buffer({name})")
    if a.kind.startswith("WEIGHTS_ARRAY"):
        return Translation(f"core_weights({name})")
    if a.kind == "T_PVAR_HANDLE":
        return Translation(f"{name} == (void *)FRONT_T_PVAR_ALL_HANDLES ? MPI_T_PVAR_ALL_HANDLES : {name}")
    if a.kind == "T_SOURCE_ORDER_P" and "T_ORDER" in differ.groups:
        return number("T_ORDER", Argument(f"(int *){name}", "INT_OUT", None), table)
    if f"{f.name}.{name}" == "File_set_view.disp" and "OFFSET" in differ.groups:
        return Translation(f"{name} == FRONT_DISPLACEMENT_CURRENT ? MPI_DISPLACEMENT_CURRENT : {name}")
    if differ.automatic and re.fullmatch(r"buffer(_addr)?", name) and re.search("(at|de)tach", f.name):
        return attached(a)
    if a.kind == "DATATYPE_ARRAY_OUT" or a.kind.startswith("F08_"):
        raise TableError(f"{f.symbol}: no rule translates {name}")
    return Translation(name)


def attached(a: Argument) -> Translation:
    """The address of a buffer for MPI_Bsend."""
    if a.kind == "BUFFER":
        return Translation(f"{a.name} == (void *)FRONT_BUFFER_AUTOMATIC ? MPI_BUFFER_AUTOMATIC : {a.name}")
    given = f"*(void **){a.name}"
    automatic = f"{given} == MPI_BUFFER_AUTOMATIC"
    after = f"if (rc == MPI_SUCCESS && {a.name} != NULL && {automatic}) {given} = (void *)FRONT_BUFFER_AUTOMATIC;"
    return Translation(a.name, after=[after])


def keyval(a: Argument) -> Translation:
    name = a.name
    if a.kind == "KEYVAL":
        return Translation(f"core_keyval({name})")
    before = f"int {name}_core = {name} != NULL ? core_keyval(*{name}) : 0;"
    return Translation(
        f"{name} != NULL ? &{name}_core : NULL",
        [before],
        [f"if (rc == MPI_SUCCESS && {name} != NULL) *{name} = front_keyval({name}_core);"],
    )


def handle_as_number(f: Function) -> list[str] | None:
    """MPI_X_c2f, MPI_X_f2c, MPI_X_toint and MPI_X_fromint."""
    a = f.arguments[0] if f.arguments else None
    if a is None or f.name.startswith("Status_") or not f.name.endswith(("_c2f", "_f2c", "_toint", "_fromint")):
        return None
    if f.result in ("FINT", "INT"):
        return [f"return front_fortran(FRONT_{a.kind}, {a.name});"]
    return [f"return front_of_fortran(FRONT_{f.result}, {a.name});"]


def front_function(table: Table, f: Function, differ: Differences) -> str:
    """The whole function front_X."""
    body = handle_as_number(f)
    if body is None:
        arguments = [translation(table, f, a, differ) for a in f.arguments if a.kind != "VARARGS"]
        call = f"MPY_CORE({f.name})({', '.join(t.given for t in arguments)})"
        before = [line for t in arguments for line in t.before]
        after = [line for t in arguments for line in t.after]
        if f.result != "INT":
            body = [f"return {call};"]
        elif not after:
            body = [*before, f"return front_error({call});"]
        else:
            body = [*before, f"int rc = {call};", *after, "return front_error(rc);"]
    lines = "".join(f"    {line}\n" for line in body)
    return f"{prototype(table, f)} {{\n{lines}}}\n"
