"""Writes the functions of the preloaded recorder (lowerhalf/trace/preload) from the table of the wrappers. CMake runs
it; it uses only the standard library.

    python -m generate.recorder TABLE OUTPUT_DIRECTORY     in wrappers/

Output (never edited, lives in the build tree)
    recorder_calls.h   types mpy_fn_X_t, prototypes of the mpy_record_X that are written by hand
    recorder_calls.c   mpy_names[]; MPI_X and PMPI_X for every function that is recorded
    recorder.map       what libmanapy_trace.so exports
    recorder_mpi3.map  the same without what came with MPI 4: some programs look whether such a function is there before
                       they call it

What a function is recorded as follows from its arguments' kinds and its name. Handles are words here (preload.h),
pointers are void *.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from .function_table import Argument, Function, Table, TableError, read_table
from .output import write_files
from .trace_record import trace_bytes, trace_op

BANNER = "/* Made by wrappers/generate/recorder.py from wrappers/table/. Don't edit. */\n"

# Written in lowerhalf/trace/preload: they complete, start and free requests, or find a message perhaps, or something
# begins, pauses or goes with them.
BY_HAND = {
    "Wait", "Waitall", "Waitany", "Waitsome", "Test", "Testall", "Testany", "Testsome", "Start", "Startall", "Cancel",
    "Request_free",
    "Iprobe", "Mprobe", "Improbe", "Mrecv", "Mrecv_c", "Imrecv", "Imrecv_c", "Init", "Init_thread", "Finalize",
    "Pcontrol", "Comm_free", "Comm_disconnect", "Comm_set_name", "Win_free", "Win_post", "Win_start", "Win_complete",
    "Win_wait", "Win_test", "File_close",
}  # fmt: skip

SYNCHRONISATION = {
    "Win_fence": "FENCE", "Win_lock": "LOCK", "Win_lock_all": "LOCK", "Win_unlock": "UNLOCK",
    "Win_unlock_all": "UNLOCK",
    "Win_flush": "FLUSH", "Win_flush_all": "FLUSH", "Win_flush_local": "FLUSH", "Win_flush_local_all": "FLUSH",
}  # fmt: skip

WORDS = {"COMM", "DATATYPE", "OP", "GROUP", "INFO", "WIN", "FILE", "REQUEST", "ERRHANDLER"}
INTS = {"INT", "COUNT", "RANK", "ROOT", "TAG"}
LONGS = {"COUNT_C", "AINT", "OFFSET"}


def base(f: Function) -> str:
    """Its name without the mark of the 64-bit form."""
    return f.name.removesuffix("_c")


def ctype(a: Argument) -> str:
    if a.kind in WORDS:
        return "mpy_word_t "
    if a.kind in INTS:
        return "int "
    return "int64_t " if a.kind in LONGS else "void *"


def parameters(f: Function) -> str:
    return ", ".join("MPY_VARARGS" if a.kind == "VARARGS" else ctype(a) + a.name for a in f.arguments) or "void"


def names(f: Function) -> str:
    return ", ".join("MPY_VARARGS_NAMES" if a.kind == "VARARGS" else a.name for a in f.arguments)


# ---- what is recorded


def collective_of(f: Function) -> tuple[str, str] | None:
    """Op and flag of one that moves data or synchronises: MPI_Iallreduce_c -> MPY_OP_ALLREDUCE,
    MPY_TRACE_NONBLOCKING."""
    op, flag = trace_op(f), ""
    if f.argument("REQUEST_OUT"):
        flag = "MPY_TRACE_PERSISTENT" if base(f).endswith("_init") else "MPY_TRACE_NONBLOCKING"
    return None if op == "MPY_OP_COMM_CREATE" or f.family in ("rma", "io") else (op, flag)


def is_message(f: Function) -> bool:
    return f.argument("TAG") is not None and f.argument("RANK") is not None and f.argument("COMM") is not None


def is_recorded(f: Function) -> bool:
    if f.cls == "unsupported" or f.family in ("extension", "tools", "fortran"):
        return False
    return (
        f.name in BY_HAND
        or f.clock != "-"
        or is_message(f)
        or f.name in SYNCHRONISATION
        or f.argument("COMM_OUT") is not None
        and f.name != "Comm_get_parent"
    )


def is_mpi4(f: Function) -> bool:
    collective = f.family == "persistent" and f.clock != "-"
    return (
        f.name.endswith("_c")
        or collective
        or f.family in ("partitioned", "session")
        or f.name.startswith("Isendrecv")
        or f.name == "Comm_idup_with_info"
    )


# ---- bodies of record_X(real, ...)

BEGIN = ["    mpy_trace_ring_t *ring = mpy_begin();"]


def begin(f: Function) -> list[str]:
    return [*BEGIN, f"    if (ring == NULL) return real({names(f)});"]


def object_line(f: Function, const: bool) -> str:
    for kind, finder in (("COMM", "comm"), ("WIN", "win"), ("FILE", "file")):
        named = next((a for a in f.arguments if a.name == f.clock and a.kind == kind), None) or f.argument(kind)
        if named:
            return f"    {'const ' if const else ''}mpy_object_t *c = mpy_{finder}_of({named.name});"
    return "    const mpy_object_t *c = NULL;"


def posted(f: Function, flag: str, receives: bool) -> list[str]:
    """The call has left a request."""
    persistent = ".persistent = true, " if flag == "MPY_TRACE_PERSISTENT" else ""
    return [
        "    call.request = mpy_serial(ring);",
        f"    mpy_operation_t operation = {{{persistent}.receives = {str(receives).lower()}, .serial = "
        f"call.request, .call = call}};",
    ]


def collective(f: Function, op: str, flag: str) -> list[str]:
    root = next((a.name for a in f.arguments if a.kind == "ROOT"), None)
    lines = begin(f) + [object_line(f, False)]
    lines += [
        f"    mpy_trace_call_t call = {{.op = {op}, .peer = "
        f"{f'mpy_root({root})' if root else 'MPY_TRACE_NO_PEER'}{f', .flags = {flag}' if flag else ''}}};"
    ]
    if (volume := trace_bytes(f)) != "0":  # who is no root in an inter-communicator need not say a type
        lines += [
            f"    if (c != NULL{f' && {root} != mpy_abi.proc_null && {root} != mpy_abi.root' if root else ''}) "
            f"call.bytes = {volume};"
        ]
    lines += posted(f, flag, False) if flag else []
    lines += ["    uint64_t count_, seq = mpy_enter_collective(ring, c, call, &count_);"]
    if not flag:
        return [*lines, f"    return mpy_exit(ring, seq, real({names(f)}));"]
    lines += [
        "    operation.call.comm = c != NULL ? c->index : MPY_TRACE_NO_COMM;",
        "    operation.call.context = count_;",
    ]
    return [*lines, f"    return mpy_exit_posted(ring, seq, real({names(f)}), request, &operation);"]


def other_collective(f: Function) -> list[str]:
    """Makes a communicator, a window, a file, or does something to one of them."""
    out = next((a for a in f.arguments if a.kind in ("COMM_OUT", "WIN_OUT", "FILE_OUT")), None)
    kind = "FILE" if f.family == "io" else "WIN_CREATE" if f.family == "rma" else "COMM_CREATE"
    request = f.argument("REQUEST_OUT")
    flags = ", .flags = MPY_TRACE_NONBLOCKING" if request else ""
    lines = begin(f) + [
        object_line(f, False),
        f"    mpy_trace_call_t call = {{.op = MPY_OP_{kind}, .peer = MPY_TRACE_NO_PEER{flags}}};",
    ]
    lines += posted(f, "MPY_TRACE_NONBLOCKING", False) if request else []
    lines += [
        "    uint64_t count_, seq = mpy_enter_collective(ring, c, call, &count_);",
        f"    int rc = real({names(f)});",
    ]
    if request:
        lines += ["    operation.call.comm = c != NULL ? c->index : MPY_TRACE_NO_COMM;"]
        if out:
            lines += [f"    operation.parent = c, operation.seq = count_, operation.newcomm = {out.name};"]
        return [*lines, "    return mpy_exit_posted(ring, seq, rc, request, &operation);"]
    lines += ["    mpy_close(ring, seq, mpy_failed(rc));"]
    if out:
        made = out.kind.removesuffix("_OUT").lower()
        lines += [f"    if (rc == 0) mpy_{made}_made(c, count_, {out.name});"]
    return [*lines, "    mpy_tls.busy = false;", "    return rc;"]


def of_groups(f: Function) -> list[str]:
    """Makes a communicator of some of the members, or of two groups: nothing is counted."""
    out, tag = f.argument("COMM_OUT"), f.argument("TAG")
    if out is None:
        raise TableError(f"{f.symbol}: no rule to record it")
    comm = next((a for a in f.arguments if a.kind == "COMM"), None)
    salt = tag.name if tag else "mpy_hash_text(stringtag)" if any(a.name == "stringtag" for a in f.arguments) else "0"
    return [
        *begin(f),
        f"    mpy_trace_call_t call = {{.op = MPY_OP_COMM_CREATE, .peer = "
        f"MPY_TRACE_NO_PEER{f', .tag = {tag.name}' if tag else ''}}};",
        f"    const mpy_object_t *c = {f'mpy_comm_of({comm.name})' if comm else 'NULL'};",
        "    call.comm = c != NULL ? c->index : MPY_TRACE_NO_COMM;",
        "    uint64_t seq = mpy_open(ring, call);",
        f"    int rc = real({names(f)});",
        "    mpy_close(ring, seq, mpy_failed(rc));",
        f"    if (rc == 0) mpy_comm_made_of_groups({out.name}, {salt});",
        "    mpy_tls.busy = false;",
        "    return rc;",
    ]


def synchronisation(f: Function) -> list[str]:
    rank = next((a.name for a in f.arguments if a.kind == "RANK"), None)
    asked = next((a.name for a in f.arguments if a.name == "lock_type"), "mpy_abi.lock_shared")
    lock = f", .tag = mpy_lock_kind({asked}, assert)" if SYNCHRONISATION[f.name] == "LOCK" else ""
    call = (
        f"(mpy_trace_call_t){{.op = MPY_OP_WIN_{SYNCHRONISATION[f.name]}, .peer = "
        f"{f'mpy_peer({rank})' if rank else 'MPY_TRACE_NO_PEER'}{lock}}}"
    )
    counted = f.clock != "-"
    enter = (
        f"    uint64_t count_, seq = mpy_enter_collective(ring, c, {call}, &count_);"
        if counted
        else f"    uint64_t seq = mpy_enter(ring, c, {call});"
    )
    return [*begin(f), object_line(f, not counted), enter, f"    return mpy_exit(ring, seq, real({names(f)}));"]


def message(f: Function) -> list[str]:
    name = base(f)
    match = re.fullmatch(r"I?([bsr]?send|recv|probe)(_init)?|P(send|recv)_init", name, re.IGNORECASE)
    if "endrecv" in name:
        return exchange(f)
    if match is None:
        raise TableError(f"{f.symbol}: no rule to record it")
    op = (match[1] or match[3]).upper()
    receives = op in ("RECV", "PROBE")
    flag = (
        "MPY_TRACE_PERSISTENT"
        if name.endswith("_init")
        else "MPY_TRACE_NONBLOCKING"
        if f.argument("REQUEST_OUT")
        else ""
    )
    rank = next(a.name for a in f.arguments if a.kind == "RANK")
    count = "partitions * count" if f.family == "partitioned" else "count"
    lines = begin(f) + [object_line(f, True)]
    lines += [
        f"    mpy_trace_call_t call = {{.op = MPY_OP_{op}, .peer = mpy_peer({rank}), .tag = "
        f"mpy_tag(tag){f', .flags = {flag}' if flag else ''}}};"
    ]
    lines += [f"    call.bytes = mpy_bytes({count}, datatype);"] if f.argument("DATATYPE") else []
    lines += (
        [f"    if ({rank} == mpy_abi.any_source || tag == mpy_abi.any_tag) call.flags |= MPY_TRACE_WILDCARD;"]
        if receives
        else []
    )
    if flag:
        lines += [
            *posted(f, flag, receives),
            "    uint64_t seq = mpy_enter(ring, c, call);",
            "    operation.call.comm = c != NULL ? c->index : MPY_TRACE_NO_COMM;",
        ]
        return [*lines, f"    return mpy_exit_posted(ring, seq, real({names(f)}), request, &operation);"]
    lines += ["    uint64_t seq = mpy_enter(ring, c, call);"]
    if not receives:
        return [*lines, f"    return mpy_exit(ring, seq, real({names(f)}));"]
    lines += ["    char own[MPY_STATUS_MAX];", "    if (status == mpy_abi.status_ignore) status = own;"]
    return [*lines, f"    return mpy_exit_received(ring, seq, real({names(f)}), status);"]


def exchange(f: Function) -> list[str]:
    """Sendrecv: a send and a receive."""
    both = any(a.name == "sendbuf" for a in f.arguments)
    sent, room = (
        ("mpy_bytes(sendcount, sendtype)", "mpy_bytes(recvcount, recvtype)")
        if both
        else ("mpy_bytes(count, datatype)",) * 2
    )
    flags = "MPY_TRACE_NONBLOCKING | " if f.argument("REQUEST_OUT") else ""
    lines = [*begin(f), object_line(f, True)]
    lines += [
        f"    mpy_trace_call_t out = {{.op = MPY_OP_SEND, .flags = {flags}MPY_TRACE_MORE, .peer = mpy_peer(dest), "
        f".tag = mpy_tag(sendtag), .bytes = {sent}}};",
        f"    mpy_trace_call_t in = {{.op = MPY_OP_RECV, .flags = {flags}0, .peer = mpy_peer(source), .tag = "
        f"mpy_tag(recvtag), .bytes = {room}}};",
        "    if (source == mpy_abi.any_source || recvtag == mpy_abi.any_tag) in.flags |= MPY_TRACE_WILDCARD;",
    ]
    if flags:
        lines += [
            "    in.request = out.request = mpy_serial(ring);",
            "    mpy_operation_t operation = {.receives = true, .serial = in.request, .call = in};",
        ]
        lines += ["    operation.call.comm = c != NULL ? c->index : MPY_TRACE_NO_COMM;"]
    lines += ["    uint64_t first = mpy_enter(ring, c, out), seq = mpy_enter(ring, c, in);"]
    if flags:
        lines += [f"    int rc = real({names(f)});", "    mpy_close(ring, first, mpy_failed(rc));"]
        return [*lines, "    return mpy_exit_posted(ring, seq, rc, request, &operation);"]
    lines += [
        "    char own[MPY_STATUS_MAX];",
        "    if (status == mpy_abi.status_ignore) status = own;",
        f"    int rc = real({names(f)});",
    ]
    return [
        *lines,
        "    mpy_close(ring, first, mpy_failed(rc));",
        "    return mpy_exit_received(ring, seq, rc, status);",
    ]


def body(f: Function) -> list[str]:
    found = collective_of(f) if f.clock != "-" else None
    if found:
        return collective(f, *found)
    if f.name in SYNCHRONISATION:
        return synchronisation(f)
    if f.clock != "-":
        return other_collective(f)
    return message(f) if is_message(f) else of_groups(f)


# ---- output


def header(functions: list[Function]) -> str:
    lines = [
        BANNER,
        "#ifndef MANAPY_RECORDER_CALLS_H",
        "#define MANAPY_RECORDER_CALLS_H",
        "",
        '#include "preload.h"',
        "",
    ]
    lines += [f"typedef int (*mpy_fn_{f.name}_t)({parameters(f)});" for f in functions]
    lines += [
        f"int mpy_record_{f.name}(mpy_fn_{f.name}_t "
        f"real{', ' if f.arguments else ''}{parameters(f) if f.arguments else ''});"
        for f in functions
        if f.name in BY_HAND
    ]
    return "\n".join([*lines, "", "#endif", ""])


HELPERS = """
/* The names of wrappers/tools/trace.h, in which trace_record.py says what a rank gives. */
#define MPI_IN_PLACE mpy_abi.in_place
#define mpy_trace_bytes mpy_bytes
static inline uint64_t mpy_trace_sum(const void *counts, int n, mpy_word_t type) {
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += ((const int *)counts)[i];
    return mpy_bytes(sum, type);
}
static inline uint64_t mpy_trace_sum_c(const void *counts, int n, mpy_word_t type) {
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += ((const int64_t *)counts)[i];
    return mpy_bytes(sum, type);
}
static inline int64_t mpy_hash_text(const char *text) { return (int64_t)mpy_fnv1a(text, strlen(text)); }

/* The next function of this name: of MPI_X and of PMPI_X. */
#define REAL(NAME, P) ((mpy_fn_##NAME##_t)(__builtin_expect(mpy_real[I_##NAME][P] != NULL, 1) ? \
mpy_real[I_##NAME][P] : mpy_resolve(I_##NAME, P)))
#define EXPORT __attribute__((visibility("default")))
"""


def calls(functions: list[Function]) -> str:
    lines = [BANNER, '#include "recorder_calls.h"', "#include <manapy/fnv.h>", "#include <string.h>", "", "enum {"]
    lines += [f"    I_{f.name}," for f in functions]
    lines += [
        "    I_COUNT",
        "};",
        "const char *const mpy_names[] = {",
        *(f'    "P{f.symbol}",' for f in functions),
        "};",
        "void *mpy_real[I_COUNT][2];",
        HELPERS,
    ]
    for f in functions:
        comma = ", " if f.arguments else ""
        if f.name in BY_HAND:
            record = f"mpy_record_{f.name}"
        else:
            record = f"record_{f.name}"
            lines += [
                f"static int {record}(mpy_fn_{f.name}_t real{comma}{parameters(f) if f.arguments else ''}) {{",
                *body(f),
                "}",
            ]
        for p in (0, 1):
            symbol = "P" * p + f.symbol
            lines += [f"EXPORT int {symbol}({parameters(f)});"]
            lines += [f"int {symbol}({parameters(f)}) {{ return {record}(REAL({f.name}, {p}){comma}{names(f)}); }}"]
    return "\n".join(lines) + "\n"


def exports(functions: list[Function]) -> str:
    symbols = sorted(name for f in functions for name in (f.symbol, "P" + f.symbol))
    return (
        BANNER
        + "{ global:\n"
        + "".join(
            f"  {name};\n" for name in [*symbols, "manapy_trace_clocks", "manapy_trace_mark", "manapy_trace_of_process"]
        )
        + "local: *; };\n"
    )


def recorded(table: Table) -> list[Function]:
    return [f for f in table.functions if is_recorded(f)]


def main(arguments: list[str]) -> int:
    functions = recorded(read_table(Path(arguments[0])))
    texts = {
        "recorder_calls.h": header(functions),
        "recorder_calls.c": calls(functions),
        "recorder.map": exports(functions),
        "recorder_mpi3.map": exports([f for f in functions if not is_mpi4(f)]),
    }
    write_files(Path(arguments[1]), texts, "recorder.stamp")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
