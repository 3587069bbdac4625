"""Wrappers of persistent collectives: each call is kept as data."""

from __future__ import annotations

from ..c_text import parameters
from .collectives import fold_lines
from ..function_table import Argument, Function, Table
from ..trace_record import trace_op

ARGUMENT_KINDS = {
    "ROOT": "ROOT",
    "OP": "OP",
    "DATATYPE": "TYPE",
    "INT_ARRAY": "INTS",
    "COUNT_C_ARRAY": "COUNTS",
    "AINT_ARRAY": "COUNTS",
    "DATATYPE_ARRAY": "TYPES",
}


def persistent_length(f: Function, a: Argument) -> str:
    """How long an array is (mpy_argument_length_t)."""
    sent = a.name.startswith("s")
    if not a.kind.endswith("_ARRAY"):
        return "ONE"
    if f.name.startswith("Neighbor"):
        return "DESTINATIONS" if sent else "SOURCES"
    if f.argument("ROOT"):
        return "ROOT"
    if f.argument("OP"):
        return "LOCAL"
    return "SENT" if sent else "PEERS"


def persistent_wrapper(table: Table, f: Function) -> str:
    """A persistent collective: its call as data, which persistent.c keeps and makes again after a restart."""
    arguments = [a for a in f.arguments if a.kind not in ("COMM", "INFO", "REQUEST_OUT")]
    pointers = [a.kind.startswith("BUFFER") or a.kind.endswith("_ARRAY") for a in arguments]
    real = [f"a[{i}].{'pointer' if pointer else 'value'}" for i, pointer in enumerate(pointers)]
    given = [
        f"{{.pointer = (void *){a.name}}}" if pointer else f"{{.value = {a.name}}}"
        for a, pointer in zip(arguments, pointers, strict=True)
    ]
    described = [
        f"{{MPY_ARG_{ARGUMENT_KINDS.get(a.kind, 'PLAIN')}, MPY_LENGTH_{persistent_length(f, a)}}}" for a in arguments
    ]
    lines = [
        f"static int make_{f.name}(const mpy_argument_t *a, int comm, int info, int *request) {{",
        *([] if arguments else ["    (void)a;"]),
        f"    return MPY_REAL({f.name})({', '.join([*real, 'comm', 'info', 'request'])});",
        "}",
        f'const mpy_persistent_call_t mpy_persistent_{f.name} = {{"{f.symbol}", {trace_op(f)}, make_{f.name}, '
        f"{len(arguments)}, {{{', '.join(described) or '{0}'}}}}};",
        f"int P{f.symbol}({parameters(table, f)}) {{",
        f'    if (MPY_UNLIKELY(request == NULL)) return mpy_error(mpy_comm(comm), MPI_ERR_ARG, "{f.symbol}");',
        *fold_lines(f),
        f"    const mpy_argument_t a[] = {{{', '.join(given) or '{0}'}}};",
        f'    return mpy_persistent_init(&mpy_persistent_{f.name}, a, comm, info, NULL, "{f.symbol}", request);',
        "}",
    ]
    return "\n".join(lines) + "\n"
