"""How a call is recorded in the trace: its operation, its bytes, the statement at its entry."""

from __future__ import annotations

import re

from .function_table import Function


# What a collective is called in the trace (mpy_trace_op_t): the first that its name begins with.
TRACED = (
    "Neighbor", "Barrier", "Bcast", "Reduce_scatter", "Reduce", "Allreduce", "Gather", "Scatter", "Allgather",
    "Alltoall", "Scan", "Exscan",
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
    fields = [
        f".op = {trace_op(f)}",
        *posts,
        f"MPY_TRACE_ROOTED(c, {'root' if f.argument('ROOT') else 'MPI_UNDEFINED'})",
    ]
    if (volume := trace_bytes(f)) != "0":
        fields.append(f".bytes = {volume}")
    return f"    uint64_t record = MPY_TRACE(t, {', '.join(fields)});"
