"""Telemetry: recorded MPI calls and RDMA traffic, and verdicts on jobs that are stuck or slow."""

from __future__ import annotations


def mark(phase: int) -> bool:
    """Mark that this thread begins phase `phase`, a number from 0 to 2**64 - 1. It may mean anything: an iteration, a
    micro-batch. Returns whether the mark is recorded.

    Later point-to-point calls have the phase in their record. The call costs some microseconds. Without a recorder, or
    while recording is paused (MPI.Pcontrol(0)), it returns False.
    """
    import ctypes

    from ..core import boundary

    block = boundary.lower()
    if block is not None:
        return bool(ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)(block.svc.contents.trace_mark)(phase))
    function = getattr(ctypes.CDLL(None), "manapy_trace_mark", None)  # a function of the preloaded recorder
    if function is None:
        return False
    function.argtypes = [ctypes.c_uint64]
    return bool(function(phase))
