"""Writes the C sources that follow from the function table. Run by CMake; only the standard library is used.

    generate.py TABLE ABI_TABLE OUTPUT_DIRECTORY

Output (never edited, lives in the build tree)
    function_index.h   slots MPY_FN_*, MPY_FN_COUNT, MPY_TABLE_HASH                     both halves
    function_names.h   mpy_function_names[]: the name of each slot, and of each data symbol, for dlsym          lower half
    functions.h        prototypes of all PMPI_ functions, pointer types mpy_fn_*_t; names of those that generated.c calls     wrappers
    generated.c        wrappers of class "generated"; what of the manual ones looks for NULL first
    stubs.c            weak PMPI_ functions for the rest: unsupported ones, and manual ones until somebody writes them
    aliases.ld         MPI_X = PMPI_X for every function (linker script)
    exports.map        the symbols of libmpi.so.12
    abi_table.h        MPICH constants and their values in the MPI-5 standard ABI
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

CLASSES = ("generated", "manual", "unsupported")


class TableError(Exception):
    """The table doesn't follow its own description; the text names file, line and fault."""


@dataclass(frozen=True)
class Argument:
    name: str
    kind: str
    count: str | None  # of arrays of handles: an argument's name, or a property of a communicator: "size(comm)"


@dataclass(frozen=True)
class Function:
    symbol: str  # MPI_Comm_rank
    family: str
    cls: str
    clock: str
    result: str
    arguments: tuple[Argument, ...]

    @property
    def name(self) -> str:
        """MPI_Comm_rank -> Comm_rank; MPIX_Comm_agree -> X_Comm_agree."""
        return self.symbol.removeprefix("MPI_") if self.symbol.startswith("MPI_") else self.symbol[3:]

    def argument(self, kind: str) -> Argument | None:
        return next((a for a in self.arguments if a.kind == kind), None)


@dataclass
class Table:
    kinds: dict[str, str] = field(default_factory=dict)
    functions: list[Function] = field(default_factory=list)
    data: list[str] = field(default_factory=list)
    internal: list[str] = field(default_factory=list)

    @property
    def hash(self) -> int:
        """FNV-1a 64 over the names of slots and data symbols, each followed by a newline: both halves must have been
        built from one table."""
        value = 0xCBF29CE484222325
        for byte in "".join(f"{name}\n" for name in [*(f.symbol for f in self.functions), *self.data]).encode():
            value = ((value ^ byte) * 0x100000001B3) & (2**64 - 1)
        return value


def read_table(path: Path) -> Table:
    """Parse functions.txt (its head describes the format). Raises TableError."""
    table = Table()
    family = ""
    argument = re.compile(r"(\w+|\.\.\.):(\w+)(?:\((\w+|(?:size|indegree|outdegree)\(comm\))\))?")
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        words = line.split()
        if words[0] == "kind":
            table.kinds[words[1]] = line.split(None, 2)[2]
        elif words[0] == "data":
            table.data.append(words[1])
        elif words[0] == "internal":
            table.internal.append(words[1])
        elif line.startswith("["):
            family = line.strip("[]")
        else:
            symbol, cls, clock, result, *rest = words
            matches = [argument.fullmatch(word) for word in rest]
            if cls not in CLASSES or None in matches:
                raise TableError(f"{path}:{number}: can't read {line!r}")
            arguments = tuple(Argument(m[1], m[2], m[3]) for m in matches if m is not None)
            unknown = [kind for kind in (result, *(a.kind for a in arguments)) if kind not in table.kinds]
            if unknown:
                raise TableError(f"{path}:{number}: unknown kind {unknown[0]}")
            if clock not in ("-", "world", *(a.name for a in arguments)):
                raise TableError(f"{path}:{number}: clock argument {clock} doesn't exist")
            table.functions.append(Function(symbol, family, cls, clock, result, arguments))
    return table


# ---- C text of types and prototypes


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


# ---- bodies of generated wrappers

# MPI_MODE_SEQUENTIAL allows no other accesses than with the shared file pointer, which may not be moved either.
NOT_SEQUENTIAL = re.compile(r"File_(i?(read|write)(_at)?(_all)?(_begin|_end)?|seek(_shared)?|get_position(_shared)?|get_byte_offset|set_size)(_c)?")

TRANSLATED = {
    "DATATYPE": "datatype", "OP": "op", "GROUP": "group", "INFO": "info", "COMM": "comm",
    "WEIGHTS_ARRAY": "weights", "WEIGHTS_ARRAY_OUT": "weights",
}  # fmt: skip
ADOPTED = {"GROUP_OUT": "group", "INFO_OUT": "info"}
NULL_OF = {"GROUP_OUT": "MPI_GROUP_NULL", "INFO_OUT": "MPI_INFO_NULL"}  # left by a call that fails
PASSED = re.compile(
    r"BUFFER(_IN)?|POINTER(_IN|_OUT)?|(INT|COUNT|COUNT_C|AINT|OFFSET)(_ARRAY)?(_OUT|_MUT)?|RANK|ROOT|TAG|STRING(_OUT|_ARRAY)?|"
    r"STATUS(_OUT|_INOUT)?|RANGE_ARRAY"
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
    """The real handles of an array. One given twice is translated once: MPI compares addresses to find aliased buffers."""
    array = arrays[i].name
    own = f"{function}({in_place(f, arrays[i])}, n_{array}, {where})"
    if i == 0:
        return own
    first = arrays[0].name
    return f"{array} == {first} && n_{array} == n_{first} && real_{first} != NULL ? real_{first} : {own}"


def shared(arrays: list[Argument], i: int) -> str:
    """Before the end of a translation that may be the first array's."""
    return f"if (real_{arrays[i].name} != real_{arrays[0].name}) " if i else ""


# What a collective is called in the trace (mpy_trace_op_t): the first that its name begins with.
TRACED = (
    "Neighbor", "Barrier", "Bcast", "Reduce_scatter", "Reduce", "Allreduce", "Gather", "Scatter", "Allgather", "Alltoall", "Scan", "Exscan",
)  # fmt: skip


def trace_op(f: Function) -> str:
    name = re.sub("^I(?=[a-z])", "", f.name).lower()
    return next((f"MPY_OP_{op.upper()}" for op in TRACED if name.startswith(op.lower())), "MPY_OP_COMM_CREATE")


def trace_bytes(f: Function) -> str:
    """What this rank gives to the collective on `c`, in bytes; of a Scatter its part."""
    names = {a.name for a in f.arguments}
    big = "_c" if f.name.endswith("_c") else ""
    peers = "c->outdegree" if "eighbor" in f.name else "(c->remote_size != 0 ? c->remote_size : c->size)"

    def one(side: str) -> str:
        if side + "count" in names:
            each = f"mpy_trace_bytes({side}count, {side}type)"
            return f"{each} * (uint64_t){peers}" if "lltoall" in f.name else each
        if side + "counts" in names and side + "type" in names:
            return f"mpy_trace_sum{big}({side}counts, {peers}, {side}type)"
        return "0"

    if "count" in names:
        return "mpy_trace_bytes(count, datatype)"
    if "recvcounts" in names and "datatype" in names:
        return f"mpy_trace_sum{big}(recvcounts, c->size, datatype)"
    if "recvcount" in names and "datatype" in names:
        return "mpy_trace_bytes(recvcount, datatype) * (uint64_t)c->size"
    if "sendtypes" in names:
        return "0"  # Alltoallw: a type for each peer
    if "Scatter" in f.name or "scatter" in f.name:
        return f"recvbuf == MPI_IN_PLACE ? 0 : {one('recv')}"
    if "sendbuf" in names and "sendtype" in names:
        in_place = one("recv") if "recvcount" in names and "Gather" not in f.name and "Igather" not in f.name else "0"
        return f"sendbuf == MPI_IN_PLACE ? {in_place} : {one('send')}"
    return "0"


def trace_enter(f: Function, flags: str = "") -> str:
    """The record of a collective on `c`; a root is one of its ranks, or says who is none."""
    posts = [f".flags = {flags}", "MPY_TRACE_POST"] if flags else []
    fields = [f".op = {trace_op(f)}", *posts, f"MPY_TRACE_ROOTED(c, {'root' if f.argument('ROOT') else 'MPI_UNDEFINED'})"]
    if (volume := trace_bytes(f)) != "0":
        fields.append(f".bytes = {volume}")
    return f"    uint64_t record = MPY_TRACE(t, {', '.join(fields)});"


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
        lines += [f"    size_t bytes = (size_t)({' + '.join(sizes)} + 1) * sizeof(int);", "    int *types = mpy_alloc(bytes);"]
        for i, a in enumerate(arrays):
            own = translation(f, arrays, i, "mpy_real_datatypes_to", " + ".join(["types", *sizes[:i]]))
            lines += [f"    int *real_{a.name} = {own};"]
    lines += [f"    rc = {real_call(f, 'c->obj.real')};"]
    result = "mpy_request_keep(r, types, bytes)" if arrays else "r->handle"
    lines += [
        "    if (MPY_LIKELY(rc == 0)) {",
        "        mpy_request_t *r = mpy_request_other(th, real_request, c);",
        "        mpy_trace_posted(t, record, r);",
        f"        *request = {result};",
        "    }",
    ]
    if arrays:
        lines += ["    if (MPY_UNLIKELY(rc != 0)) mpy_free(types, bytes);"]
    return [*lines, "    mpy_collective_leave(t, mpy_row(c->row), rc);", "    mpy_traced(t, record, rc);", "    mpy_p2p_done(t, th);"]


def local_body(f: Function) -> list[str]:
    """Cross, call, and give new objects a handle before a snapshot can come between (invariant 5 of runtime.h)."""
    adopted = [a for a in f.arguments if a.kind in ADOPTED]
    comm = f.argument("COMM")
    handler = f"mpy_comm({comm.name})" if comm else "NULL"
    raised = "mpy_file_error(NULL" if f.family == "io" else f"mpy_error({handler}"
    failed = "rc" if f.family == "tools" else f'{raised}, rc, "{f.symbol}")'  # MPI-4 15.3.10: tools call no error handler
    lines = ["    mpy_thread_t *t = mpy_self();"]
    lines += [f"    int real_{a.name};" for a in adopted]
    lines += ["    mpy_cross_in(t);", f"    int rc = {real_call(f, '')};"]
    if adopted:
        lines += [
            *(f"    if (rc == 0) *{a.name} = mpy_{ADOPTED[a.kind]}_adopt(real_{a.name});" for a in adopted),
            *(f"    mpy_or_null(rc, {a.name}, {NULL_OF[a.kind]});" for a in adopted),
        ]
    lines += [
        "    mpy_cross_out(t);",
        f"    return MPY_LIKELY(rc == 0) ? 0 : {failed};",
    ]
    return lines


def file_body(f: Function) -> list[str]:
    """A call on a file: collective ones count on its row. A split access is done whole by its first half (file.h, invariant 5)."""
    if f.name.endswith("_end"):
        refused = f'    if (MPY_UNLIKELY(status == NULL)) return mpy_file_error(mpy_file(fh), MPI_ERR_ARG, "{f.symbol}");'
        return ["    (void)buf;", refused, f'    return mpy_file_split_end(fh, status, "{f.symbol}");']
    begin = re.search("_begin(_c)?$", f.name)
    out = [a for a in f.arguments if a.kind in ADOPTED or a.kind == "REQUEST_OUT"]
    lines = [f"    int real_{a.name};" for a in out]
    if f.clock == "-":
        lines += ["    mpy_thread_t *t = mpy_self();", "    mpy_file_t *f = mpy_file(fh);"]
    if begin:
        lines += [f'    if (mpy_file_between(fh)) return mpy_file_error(mpy_file(fh), MPI_ERR_IO, "{f.symbol}");']
    lines += ["    mpy_cross_in(t);"] if f.clock == "-" else ["    mpy_file_call_t call = mpy_file_enter(fh);", "    mpy_file_t *f = call.f;"]
    refused = "mpy_file_sequential(f) ? MPI_ERR_UNSUPPORTED_OPERATION : " if NOT_SEQUENTIAL.fullmatch(f.name) else ""
    lines += [f"    int rc = {refused}{real_call(f, '')};"]
    if "shared" in f.name or "ordered" in f.name:
        lines += ["    if (f != NULL) f->shared = true;"]
    if begin:
        lines += [f"    if (f != NULL) f->split = MPY_REAL({f.name[: begin.start()]}_end)(f->real, buf, &f->split_status) == 0;"]
    for a in out:
        made = f"mpy_file_request({'t, NULL' if f.clock == '-' else 'call.t, f'}, real_request, buf, count, datatype)"
        lines += [f"    if (rc == 0) *{a.name} = {made if a.kind == 'REQUEST_OUT' else f'mpy_{ADOPTED[a.kind]}_adopt(real_{a.name})'};"]
    lines += [
        "    mpy_cross_out(t);" if f.clock == "-" else "    mpy_file_leave(call, rc);",
        f'    return MPY_LIKELY(rc == 0) ? 0 : mpy_file_error(f, rc, "{f.symbol}");',
    ]
    return lines


def fold_lines(f: Function) -> list[str]:
    """A nonblocking or persistent reduction with an operation of the program, whose function may not run in a drain, is made by fold.c."""
    if f.argument("OP") is None or f.argument("REQUEST_OUT") is None:
        return []
    user = "!mpy_is_builtin(op)) && mpy_lookup(MPY_OP, op) != NULL"
    kind = re.sub(r"^I|_init|_c$", "", f.name).upper()
    fields = [f'.name = "{f.symbol}"', f".kind = MPY_FOLD_{kind}", f".persistent = {str(f.argument('INFO') is not None).lower()}"]
    for a in f.arguments:
        if a.kind == "COUNT_C_ARRAY":
            fields.append(f".{a.name}_c = {a.name}")
        elif a.kind != "REQUEST_OUT":
            fields.append(f".{'count' if a.name == 'recvcount' else a.name} = {a.name}")
    return [f"    if (MPY_UNLIKELY({user} && request != NULL) return mpy_fold(&(mpy_reduction_t){{{', '.join(fields)}}}, request);"]


ARGUMENT_KINDS = {"ROOT": "ROOT", "DATATYPE": "TYPE", "INT_ARRAY": "INTS", "COUNT_C_ARRAY": "COUNTS", "AINT_ARRAY": "COUNTS", "DATATYPE_ARRAY": "TYPES"}


# ---- NULL where a value is written

# The real library refuses a NULL for these; generated wrappers hand it on, and manual ones never see it.
VALUE = re.compile(r"(?!\w*ARRAY)\w+_(OUT|INOUT)|(F08_|FINT_)?STATUS|STRING")


def nulls(f: Function) -> list[str]:
    """The conditions under which a manual function isn't called. Of a string only the root of a collective knows; a text before
    which its length stands may be left out, to ask for that; MPI_Init takes NULL."""
    if f.cls != "manual" or f.result != "INT" or f.family == "tools" or f.name in ("Init", "Init_thread"):
        return []
    found = []
    for before, a in zip((None, *f.arguments), f.arguments):
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
    """How an error of this function is raised, but for the code."""
    for kind, raised in (("WIN", "mpy_win_error(mpy_win({0})"), ("FILE", "mpy_file_error(mpy_file({0})"), ("SESSION", "mpy_session_error(mpy_session({0})"), ("COMM", "mpy_error(mpy_comm({0})")):
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
    asked = ["    mpy_thread_t *t = mpy_self();", "    mpy_cross_in(t);", f"    int rc = {call};", "    mpy_cross_out(t);"] if call else []
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
    given = [f"{{.pointer = (void *){a.name}}}" if pointer else f"{{.value = {a.name}}}" for a, pointer in zip(arguments, pointers, strict=True)]
    described = [f"{{MPY_ARG_{ARGUMENT_KINDS.get(a.kind, 'PLAIN')}, MPY_LENGTH_{persistent_length(f, a)}}}" for a in arguments]
    lines = [
        f"static int make_{f.name}(const mpy_argument_t *a, int comm, int info, int *request) {{",
        *([] if arguments else ["    (void)a;"]),
        f"    return MPY_REAL({f.name})({', '.join([*real, 'comm', 'info', 'request'])});",
        "}",
        f'const mpy_persistent_call_t mpy_persistent_{f.name} = {{"{f.symbol}", {trace_op(f)}, make_{f.name}, {len(arguments)}, {{{", ".join(described) or "{0}"}}}}};',
        f"int P{f.symbol}({parameters(table, f)}) {{",
        f'    if (MPY_UNLIKELY(request == NULL)) return mpy_error(mpy_comm(comm), MPI_ERR_ARG, "{f.symbol}");',
        *fold_lines(f),
        f"    const mpy_argument_t a[] = {{{', '.join(given) or '{0}'}}};",
        f'    return mpy_persistent_init(&mpy_persistent_{f.name}, a, comm, info, NULL, "{f.symbol}", request);',
        "}",
    ]
    return "\n".join(lines) + "\n"


def window_body(f: Function) -> list[str]:
    """An operation on a window: allowed in its epoch, or not; the request-based ones fill a slot. See runtime/win.h."""
    win, request = f.argument("WIN"), f.argument("REQUEST_OUT")
    if win is None or f.argument("RANK") is None:
        raise TableError(f"{f.symbol}: an operation on a window has a target")
    lines = ["    mpy_thread_t *t = mpy_self();"]
    lines += [
        f"    mpy_win_t *w = mpy_win({win.name});",
        f"    int rc = mpy_win_access(w, {f.argument('RANK').name});",
        f'    if (MPY_UNLIKELY(rc != 0)) return mpy_win_error(w, rc, "{f.symbol}");',
    ]
    if request:
        lines += ["    mpy_p2p_thread_t *th = mpy_p2p_self(t);", "    int real_request;"]
    if direct := re.fullmatch("(Put|Get)(_c)?", f.name):
        given = ", ".join(a.name for a in f.arguments if a is not win)
        lines += [f"    if (mpy_win_{direct[1].lower()}(t, w, {given})) return MPI_SUCCESS;"]
    lines += [
        "    mpy_cross_in(t);",
        f"    rc = {real_call(f, '')};",
        f"    mpy_win_issued(w, {f.argument('RANK').name});",
    ]
    if request:
        lines += ["    if (MPY_LIKELY(rc == 0)) *request = mpy_request_unrecorded(mpy_request_other(th, real_request, NULL))->handle;"]
    lines += ["    mpy_cross_out(t);", f'    return MPY_LIKELY(rc == 0) ? 0 : mpy_win_error(w, rc, "{f.symbol}");']
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


# ---- calls before MPI_Init and after MPI_Finalize

ANY_TIME = re.compile(
    r"Init(_thread)?|Initialized|Finalized|Get_(library_)?version|Abi_get_(version|info)|Info_\w+|Error_(class|string)|Pcontrol|"
    r"Session_(init|create_errhandler)|Status_[gs]et_(error|source|tag|cancelled)|\w+_(c2f|f2c|c2f08|f082c|f082f|f2f08|toint|fromint)|T_\w+"
)


# Families whose manual functions are answered without the real library, and without an object that is there only between the two.
ALONE = ("query", "errhandler", "attr", "dynamic")


def outside(table: Table) -> str:
    """What stands in the real library's table while it isn't up."""
    needing = [f for f in table.functions if not ANY_TIME.fullmatch(f.name)]
    return "\n".join(
        [
            *(f'static void outside_{f.name}(void) {{ mpy_called_outside("{f.symbol}"); }}' for f in needing),
            "void (*const mpy_outside[MPY_FN_COUNT])(void) = {",
            *(f"    [MPY_FN_{f.name}] = outside_{f.name}," for f in needing),
            "};",
            "const char *const mpy_names[MPY_FN_COUNT] = {",
            *(f'    "{f.symbol}",' for f in table.functions),
            "};",
            "",
        ]
    )


# ---- output files

BANNER = "/* Made by wrappers/generate.py from wrappers/table/. Don't edit. */\n"


def function_index(table: Table) -> str:
    lines = [BANNER, "#ifndef MANAPY_FUNCTION_INDEX_H", "#define MANAPY_FUNCTION_INDEX_H", "", "enum {"]
    lines += [f"    MPY_FN_{f.name} = {i}," for i, f in enumerate(table.functions)]
    lines += [f"    MPY_FN_COUNT = {len(table.functions)},", "};", "enum {"]
    lines += [f"    MPY_DATA_{name.removeprefix('MPI_')} = {i}," for i, name in enumerate(table.data)]
    lines += [f"    MPY_DATA_COUNT = {len(table.data)},", "};", f"#define MPY_TABLE_HASH 0x{table.hash:016x}ul", "", "#endif"]
    return "\n".join(lines) + "\n"


def function_names(table: Table) -> str:
    lines = [BANNER, "#ifndef MANAPY_FUNCTION_NAMES_H", "#define MANAPY_FUNCTION_NAMES_H", "", '#include "function_index.h"', ""]
    lines += ["static const char *const mpy_function_names[MPY_FN_COUNT] = {"]
    lines += [f'    "{f.symbol}",' for f in table.functions]
    lines += ["};", "static const char *const mpy_data_names[MPY_DATA_COUNT] = {"]
    lines += [f'    "{name}",' for name in table.data]
    lines += ["};", "", "#endif"]
    return "\n".join(lines) + "\n"


def functions(table: Table) -> str:
    lines = [BANNER, "#ifndef MANAPY_FUNCTIONS_H", "#define MANAPY_FUNCTIONS_H", "", '#include "function_index.h"', '#include "mpich.h"', ""]
    lines += ["#pragma GCC visibility push(default)"]
    lines += [f"{result_type(table, f)}P{f.symbol}({parameters(table, f)});" for f in table.functions]
    lines += ["#pragma GCC visibility pop", ""]
    lines += ["/* What is written as PMPI_X, and called behind a check for NULL: generated.c has that under the name of PMPI_X. */"]
    lines += [f"int {unchecked(f)}({parameters(table, f)});" for f in table.functions if nulls(f)]
    lines += ["#ifndef MPY_CHECKS", *(f"#define P{f.symbol} {unchecked(f)}" for f in table.functions if nulls(f)), "#endif", ""]
    lines += [f"typedef {result_type(table, f)}(*mpy_fn_{f.name}_t)({parameters(table, f)});" for f in table.functions]
    lines += ["", "#endif"]
    return "\n".join(lines) + "\n"


def generated(table: Table) -> str:
    parts = [BANNER, '#define MPY_CHECKS\n#include "objects.h"\n#include "p2p.h"\n#include "persistent.h"\n#include "file.h"\n#include "trace.h"\n#include "win.h"\n']
    parts += [wrapper(table, f) for f in table.functions if f.cls == "generated"]
    parts += [checked(table, f) for f in table.functions if nulls(f)]
    parts += [outside(table)]
    return "\n".join(parts)


def stubs(table: Table) -> str:
    """No functions.h here: a stub takes and returns nothing."""
    lines = [BANNER, "void mpy_unsupported(const char *name) __attribute__((noreturn, visibility(\"hidden\")));", ""]
    lines += ['#define STUB(SYMBOL, NAME) \\', '    __attribute__((weak, visibility("default"))) void SYMBOL(void); \\', "    void SYMBOL(void) { mpy_unsupported(NAME); }"]
    lines += [f'STUB(P{f.symbol}, "{f.symbol}")' for f in table.functions if f.cls != "generated"]
    lines += [f'STUB({name}, "{name}")' for name in table.internal]
    return "\n".join(lines) + "\n"


def aliases(table: Table) -> str:
    return BANNER + "".join(f"{f.symbol} = P{f.symbol};\n" for f in table.functions)


def exports(table: Table) -> str:
    names = [name for f in table.functions for name in (f.symbol, "P" + f.symbol)] + table.data + table.internal
    return "{ global:\n" + "".join(f"  {name};\n" for name in sorted(names)) + "local: *; };\n"


def abi_table(path: Path) -> str:
    """Rows `GROUP NAME MPICH STANDARD`, see abi.txt."""
    lines = [BANNER]
    for line in path.read_text().splitlines():
        words = line.split("#")[0].split()
        if words:
            group, name, mpich, standard = words
            lines.append(f"MPY_ABI({group}, {name}, {mpich}, {standard})")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    table_path, abi_path, output = Path(arguments[0]), Path(arguments[1]), Path(arguments[2])
    table = read_table(table_path)
    output.mkdir(parents=True, exist_ok=True)
    texts = {
        "function_index.h": function_index(table),
        "function_names.h": function_names(table),
        "functions.h": functions(table),
        "generated.c": generated(table),
        "stubs.c": stubs(table),
        "aliases.ld": aliases(table),
        "exports.map": exports(table),
        "abi_table.h": abi_table(abi_path),
    }
    for name, text in texts.items():
        file = output / name
        if not file.exists() or file.read_text() != text:  # keep time stamps: unchanged headers rebuild nothing
            file.write_text(text)
    (output / "generated.stamp").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
