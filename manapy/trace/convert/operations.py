"""The operations of calls, by the names that other tools give them: functions of MPI, and PyTorch's collectives
(`nccl:_all_gather_base`, `allreduce`), each as the MPI operation that does the same."""

from __future__ import annotations

import re

from ..model.events import Op

# In this order: `reducescatter` contains `reduce`.
_NAMES = {
    "barrier": Op.BARRIER,
    "reducescatter": Op.REDUCE_SCATTER,
    "allreduce": Op.ALLREDUCE,
    "allgather": Op.ALLGATHER,
    "alltoall": Op.ALLTOALL,
    "broadcast": Op.BCAST,
    "gather": Op.GATHER,
    "scatter": Op.SCATTER,
    "reduce": Op.REDUCE,
    "recv": Op.RECV,
    "send": Op.SEND,
}
BYTES = {
    **dict.fromkeys(("double", "long", "complexfloat", "float64", "int64", "complex64"), 8),
    **dict.fromkeys(("float", "int", "float32", "int32", "uint32"), 4),
    **dict.fromkeys(("half", "bfloat16", "short", "float16", "int16"), 2),
    "complexdouble": 16,
    "complex128": 16,
}


# By the function's name in small letters. The second kind of name is a variant of the first.
FUNCTIONS = {
    **{f"mpi_{op.name.lower()}": op for op in (Op.SEND, Op.BSEND, Op.SSEND, Op.RSEND, Op.RECV, Op.INIT, Op.FINALIZE)},
    **{f"mpi_{op.name.lower()}": op for op in map(Op, range(Op.BARRIER, Op.NEIGHBOR))},
    **{f"mpi_{op.name.lower()}v": op for op in (Op.GATHER, Op.SCATTER, Op.ALLGATHER, Op.ALLTOALL)},
    "mpi_alltoallw": Op.ALLTOALL,
    "mpi_reduce_scatter_block": Op.REDUCE_SCATTER,
    "mpi_init_thread": Op.INIT,
}


def operation(name: str) -> Op | None:
    """Return the operation of this name, or None if it is none that is known."""
    plain = name.lower().rpartition(":")[2].replace("_", "")
    return next((op for known, op in _NAMES.items() if known in plain), None)


def width(dtype: str) -> int:
    """Return the bytes of one element of this type; 1 if it is unknown."""
    return BYTES.get(re.sub(r"^(c10::|torch\.)", "", str(dtype)).lower(), 1)
