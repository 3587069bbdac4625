"""Bodies of collectives on a communicator, blocking and nonblocking."""

from __future__ import annotations

import re

from ..c_text import call_argument, real_call
from ..function_table import Argument, Function
from ..trace_record import trace_enter


def length(a: Argument) -> str:
    """The length of an array of types in a collective on `c`."""
    return {
        "size(comm)": "c->remote_size != 0 ? c->remote_size : c->size",
        "indegree(comm)": "c->indegree",
        "outdegree(comm)": "c->outdegree",
    }[a.count or ""]


def in_place(f: Function, a: Argument) -> str:
    """With MPI_IN_PLACE the types to send are ignored and may be no array at all."""
    return f"sendbuf == MPI_IN_PLACE ? NULL : {a.name}" if a.name == "sendtypes" else a.name


def translation(f: Function, arrays: list[Argument], i: int, function: str, where: str) -> str:
    """The real handles of an array. One given twice is translated once: MPI compares addresses to find aliased
    buffers."""
    array = arrays[i].name
    own = f"{function}({in_place(f, arrays[i])}, n_{array}, {where})"
    if i == 0:
        return own
    first = arrays[0].name
    return f"{array} == {first} && n_{array} == n_{first} && real_{first} != NULL ? real_{first} : {own}"


def shared(arrays: list[Argument], i: int) -> str:
    """Before the end of a translation that may be the first array's."""
    return f"if (real_{arrays[i].name} != real_{arrays[0].name}) " if i else ""


def collective_body(f: Function) -> list[str]:
    """Count the call on its communicator, or park (clock.c). A nonblocking one counts when it's started."""
    arrays = [a for a in f.arguments if a.kind == "DATATYPE_ARRAY"]
    # The arrays' lengths are the communicator's: without one there is nothing to translate.
    null = {a.name: "NULL" for a in arrays}
    wrong = ", ".join(null.get(a.name) or call_argument(f, a, f"mpy_real_comm({a.name})") for a in f.arguments)
    return [
        "    mpy_thread_t *t = mpy_self();",
        f"    mpy_comm_t *c = mpy_comm({f.clock});",
        *(["    int real_request;"] if f.argument("REQUEST_OUT") else []),
        "    int rc;",
        "    if (MPY_UNLIKELY(c == NULL)) {",
        "        mpy_cross_in(t);",
        f"        rc = MPY_REAL({f.name})({wrong});",
        "        mpy_cross_out(t);",
        f'        return mpy_error(NULL, rc, "{f.symbol}");',
        "    }",
        *(nonblocking(f, arrays) if f.argument("REQUEST_OUT") else blocking(f, arrays)),
        f'    return MPY_LIKELY(rc == 0) ? 0 : mpy_error(c, rc, "{f.symbol}");',
    ]


def aging(f: Function) -> list[str]:
    """Count a call by whose number MPICH chooses its algorithm; those of no data it counts only for MPI_Allreduce."""
    name = f.name.removesuffix("_c")
    if name not in ("Allreduce", "Reduce", "Bcast", "Barrier"):
        return []
    return [f"    c->had[MPY_AGING_{name.upper()}]{' += count != 0' if name in ('Reduce', 'Bcast') else '++'};"]


def blocking(f: Function, arrays: list[Argument]) -> list[str]:
    return [
        *(f"    int local_{a.name}[MPY_LOCAL_TYPES], *real_{a.name}, n_{a.name} = {length(a)};" for a in arrays),
        trace_enter(f),
        "    mpy_collective_enter(t, c);",
        *aging(f),
        "    mpy_cross_in_collective(t);",
        *(
            f"    real_{a.name} = {translation(f, arrays, i, 'mpy_real_datatypes', f'local_{a.name}')};"
            for i, a in enumerate(arrays)
        ),
        f"    rc = {real_call(f, 'c->obj.real')};",
        *(
            f"    {shared(arrays, i)}mpy_real_datatypes_free(real_{a.name}, n_{a.name}, local_{a.name});"
            for i, a in enumerate(arrays)
        ),
        "    mpy_collective_leave(t, mpy_row(c->row), rc);",
        "    mpy_traced(t, record, rc);",
    ]


def nonblocking(f: Function, arrays: list[Argument]) -> list[str]:
    """The call leaves a request, which keeps translated arrays until completion."""
    lines = fold_lines(f)
    lines += ["    mpy_p2p_thread_t *th = mpy_p2p_self(t);"]
    lines += [f"    int n_{a.name} = {length(a)};" for a in arrays]
    lines += [trace_enter(f, "MPY_TRACE_NONBLOCKING")]
    lines += [f'    mpy_clock_start(t, mpy_row(c->row), "{f.symbol}");', "    mpy_cross_in_collective(t);"]
    if arrays:
        sizes = [f"n_{a.name}" for a in arrays]
        lines += [
            f"    size_t bytes = (size_t)({' + '.join(sizes)} + 1) * sizeof(int);",
            "    int *types = mpy_alloc(bytes);",
        ]
        for i, a in enumerate(arrays):
            own = translation(f, arrays, i, "mpy_real_datatypes_to", " + ".join(["types", *sizes[:i]]))
            lines += [f"    int *real_{a.name} = {own};"]
    lines += [f"    rc = {real_call(f, 'c->obj.real')};"]
    result = "mpy_request_keep(r, types, bytes)" if arrays else "r->handle"
    made = "mpy_request_other(th, real_request, c)"
    if f.argument("OP"):
        made = "mpy_reduction_request(th, real_request, c, op)"
    lines += [
        "    if (MPY_LIKELY(rc == 0)) {",
        f"        mpy_request_t *r = {made};",
        "        mpy_trace_posted(t, record, r);",
        f"        *request = {result};",
        "    }",
    ]
    if arrays:
        lines += ["    if (MPY_UNLIKELY(rc != 0)) mpy_free(types, bytes);"]
    return [
        *lines,
        "    mpy_collective_leave(t, mpy_row(c->row), rc);",
        "    mpy_traced(t, record, rc);",
        "    mpy_p2p_done(t, th);",
    ]


def fold_lines(f: Function) -> list[str]:
    """A nonblocking or persistent reduction with an operation of the program, whose function may not run in a drain, is
    made by fold.c."""
    if f.argument("OP") is None or f.argument("REQUEST_OUT") is None:
        return []
    kind = re.sub(r"^I|_init|_c$", "", f.name).upper()
    fields = [
        f'.name = "{f.symbol}"',
        f".kind = MPY_FOLD_{kind}",
        f".persistent = {str(f.argument('INFO') is not None).lower()}",
    ]
    for a in f.arguments:
        if a.kind == "COUNT_C_ARRAY":
            fields.append(f".{a.name}_c = {a.name}")
        elif a.kind != "REQUEST_OUT":
            fields.append(f".{'count' if a.name == 'recvcount' else a.name} = {a.name}")
    return [
        "    if (MPY_UNLIKELY(mpy_folds(comm, op)) && request != NULL) return mpy_fold(&(mpy_reduction_t){"
        f"{', '.join(fields)}}}, request);"
    ]
