"""The boundary blocks of this process, read from inside the program: the mirror of lowerhalf/include/manapy/boundary.h.

Only what Python needs is mirrored: the lower block up to its function table, the services, and of the upper block the
collective clock. tests/unit/test_boundary.py compares sizes and offsets with the header.

Programs that call manapy import this module. Where a call has no effect, because there are no such blocks, it warns.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_char_p, c_int32, c_int64, c_uint32, c_uint64, c_void_p

MAGIC = 0x59444E554F42594D
VERSION = 14
AT_BOUNDARY = 0x6D616E61
UPPER_ADDR = 0x200000010000
ROW_FREED = 0xFFFFFFFF
PATH_BYTES = 1024


class ServicesStruct(ctypes.Structure):
    """mpy_services_t"""

    _fields_ = [
        ("thread_bind", c_void_p),
        ("thread_unbind", c_void_p),
        ("mpi_load", c_void_p),
        ("notify", c_void_p),
        ("say", c_void_p),
        ("die", c_void_p),
        ("request_checkpoint", c_void_p),
        ("checkpoint_done", c_void_p),
        ("set_checkpoint_dir", c_void_p),
        ("trace_comm", c_void_p),
        ("trace_mark", c_void_p),
        ("trace_end", c_void_p),
        ("tcp_bytes", c_void_p),
        ("meet", c_void_p),
    ]


class LowerStruct(ctypes.Structure):
    """mpy_lower_t, without mpi[] at its end"""

    _fields_ = [
        ("magic", c_uint64),
        ("version", c_uint32),
        ("generation", c_uint32),
        ("phase", c_uint32),
        ("rank", c_int32),
        ("size", c_int32),
        ("abandoned", c_uint32),
        ("table_hash", c_uint64),
        ("svc", ctypes.POINTER(ServicesStruct)),
        ("tls_upper_fs", c_int64),
        ("signal_above", c_void_p),
        ("protocol", c_uint32),
        ("allow_awaited", c_uint32),
        ("singleton", c_uint32),
        ("drain_seconds", c_uint32),
        ("cancelled", c_uint32),
        ("heavy_yield", c_uint32),
        ("has_program", c_uint32),
        ("job_dir", c_char * PATH_BYTES),
        ("checkpoint", c_char * PATH_BYTES),
        ("checkpoint_dir", c_char * PATH_BYTES),
    ]


class RowStruct(ctypes.Structure):
    """mpy_clock_row_t"""

    _fields_ = [
        ("cid", c_uint64),
        ("ggid", c_uint64),
        ("seq", c_uint64),
        ("target", c_uint64),
        ("nmembers", c_uint32),
        ("handle", c_uint32),
        ("members", ctypes.POINTER(c_int32)),
        ("name", c_char_p),
        ("reported", c_uint64),
    ]


class ClockStruct(ctypes.Structure):
    """mpy_clock_t"""

    _fields_ = [
        ("lock", c_uint32),
        ("version", c_uint32),
        ("needed", c_uint32),
        ("wake", c_uint32),
        ("retracted", c_uint32),
        ("nrows", c_uint32),
        ("protocol", c_uint32),
        ("rows", ctypes.POINTER(RowStruct)),
    ]


class UpperStruct(ctypes.Structure):
    """mpy_upper_t, up to the clock"""

    _fields_ = [
        ("magic", c_uint64),
        ("version", c_uint32),
        ("mpi_initialized", c_uint32),
        ("mpi_finalized", c_uint32),
        ("mpi_thread_required", c_int32),
        ("disabled", c_uint32),
        ("checkpoints", c_uint32),
        ("hooks", c_void_p * 3),
        ("code_begin", c_uint64),
        ("code_end", c_uint64),
        ("obstacle", c_char * 256),
        ("clock", ClockStruct),
    ]


STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "services": ServicesStruct,
    "lower": LowerStruct,
    "clock_row": RowStruct,
    "clock": ClockStruct,
    "upper": UpperStruct,
}


def getauxval(kind: int) -> int:
    """An entry of this process's auxiliary vector (getauxval(3)); 0: there is none."""
    function = ctypes.CDLL(None).getauxval
    function.argtypes = [ctypes.c_ulong]
    function.restype = ctypes.c_ulong
    return int(function(kind))


def lower() -> LowerStruct | None:
    """The lower block, or None if this process doesn't run under manapy."""
    address = getauxval(AT_BOUNDARY)
    if not address:
        return None
    block = LowerStruct.from_address(address)
    return block if block.magic == MAGIC and block.version == VERSION else None


def upper() -> UpperStruct | None:
    """The upper block, or None outside manapy and before the program's MPI library is loaded."""
    if lower() is None:
        return None
    block = UpperStruct.from_address(UPPER_ADDR)
    return block if block.magic == MAGIC else None


def request_checkpoint(block: LowerStruct) -> int:
    """Ask for a checkpoint: a ticket, or -1 without a coordinator."""
    return int(ctypes.CFUNCTYPE(c_int64)(block.svc.contents.request_checkpoint)())


def checkpoint_done(block: LowerStruct) -> int:
    """The last ticket that was served; negative if it failed."""
    return int(ctypes.CFUNCTYPE(c_int64)(block.svc.contents.checkpoint_done)())


def warn(text: str, callers: int = 1) -> None:
    """A RuntimeWarning at the line of the program that called manapy, `callers` functions above the one that warns."""
    import warnings  # imported here: few programs need it

    warnings.warn(f"manapy: {text}", RuntimeWarning, stacklevel=2 + callers)


def warn_not_launched(what: str) -> None:
    """Nothing happened, because manapy-launch did not start this process."""
    warn(f"{what}: this process does not run under manapy-launch", callers=2)
