"""DMTCP's application API for Python: ctypes bindings of the functions that dmtcp.h declares for programs.

    from manapy import dmtcp

    dmtcp.dmtcp_disable_ckpt()                    # no checkpoint while a file is half written
    ...
    dmtcp.dmtcp_enable_ckpt()
    if dmtcp.dmtcp_checkpoint() == dmtcp.DMTCP_AFTER_RESTART:
        ...

They bind to the engine under which the process runs: to the real libdmtcp under ``dmtcp_launch``, or to manapy's
(wrappers/dmtcp.c) under ``manapy-launch``. C programs written for DMTCP do not need this module: their weak symbols
bind by themselves. Without an engine each function does what the macro of dmtcp.h does, and raises no exception.

Sources: include/dmtcp.h and src/dmtcpplugin.cpp of DMTCP 2.6.0 and of its development version 5.0. Statements on
DMTCP's behaviour were observed with the latter. The constants here name the codes, which are the same in both.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import c_char_p, c_int, c_uint32
from typing import Any, NamedTuple

DMTCP_AFTER_CHECKPOINT = 1
DMTCP_AFTER_RESTART = 2
DMTCP_NOT_PRESENT = 3
DMTCP_IS_PRESENT = 4


class CoordinatorStatus(NamedTuple):
    """The result of dmtcp_get_coordinator_status. ``result``: DMTCP_IS_PRESENT, or DMTCP_NOT_PRESENT; then all other
    fields are 0."""

    result: int
    num_peers: int
    is_running: int


class LocalStatus(NamedTuple):
    """The result of dmtcp_get_local_status. ``result`` as in CoordinatorStatus."""

    result: int
    num_checkpoints: int
    num_restarts: int


def dmtcp_is_enabled() -> int:
    """1 under an engine, else 0. Under manapy it is also 0 in a forked child of a rank, because a child cannot be
    checkpointed."""
    return _int("dmtcp_is_enabled", 0)


def dmtcp_checkpoint() -> int:
    """Checkpoint the whole computation, and wait for it.

    DMTCP_AFTER_CHECKPOINT (1): the checkpoint is taken, and the process continues. DMTCP_AFTER_RESTART (2): the process
    was restarted from it. 0: it failed ("<= 0 on error", dmtcp.h); the program continues. DMTCP_NOT_PRESENT (3): no
    engine.

    manapy: 1 means that the checkpoint is published: complete on disk for all ranks. All ranks should make this call,
    as with manapy.checkpoint(); they share one checkpoint. If only some ranks call it, manapy takes the checkpoint 5 s
    after the first call. A thread that has disabled checkpoints itself gets 0 at once; under DMTCP it waits for ever.
    """
    return _int("dmtcp_checkpoint", DMTCP_NOT_PRESENT)


def dmtcp_disable_ckpt() -> int:
    """Disable checkpoints of this process until dmtcp_enable_ckpt. Returns 1, or DMTCP_NOT_PRESENT (3) without an
    engine.

    Calls are counted per thread: each needs its own dmtcp_enable_ckpt. Several threads may have checkpoints disabled at
    the same time. A request for a checkpoint waits; it is not refused. If a checkpoint is about to be written, the call
    waits until it is finished.

    manapy: `manapy checkpoint` and `manapy status` name the rank that has checkpoints disabled. MPI calls are allowed
    meanwhile: ranks that are ready for a checkpoint do not hold up such a rank (with DMTCP this may deadlock, says
    dmtcp.h). If several ranks disable checkpoints in turn, a checkpoint may be late: it needs a moment at which all
    ranks allow it.
    """
    return _int("dmtcp_disable_ckpt", DMTCP_NOT_PRESENT)


def dmtcp_enable_ckpt() -> int:
    """Undo one dmtcp_disable_ckpt of this thread. Returns 1, or DMTCP_NOT_PRESENT (3) without an engine.

    Without a dmtcp_disable_ckpt before, manapy returns 0; DMTCP ends the process with exit code 99.
    """
    return _int("dmtcp_enable_ckpt", DMTCP_NOT_PRESENT)


def dmtcp_get_coordinator_status() -> CoordinatorStatus:
    """The number of processes of the computation, and whether all run (1) or a checkpoint is in progress (0).

    manapy: the number of ranks, including those that have not called MPI_Init. The state is that which this rank knows;
    it is also 0 if the coordinator is lost.
    """
    return CoordinatorStatus(*_status("dmtcp_get_coordinator_status"))


def dmtcp_get_local_status() -> LocalStatus:
    """The number of checkpoints after which this process continued, and the number of its restarts.

    A checkpoint from which the process was restarted counts only as a restart.
    """
    return LocalStatus(*_status("dmtcp_get_local_status"))


def dmtcp_get_generation() -> int:
    """The number of checkpoints of the computation so far: 0 before the first. It includes the checkpoint from which
    the process was restarted.

    Failed checkpoints do not count. 0 without an engine; a C program must not call this function then, as dmtcp.h only
    has a weak symbol.
    """
    return _int("dmtcp_get_generation", 0, c_uint32)


def dmtcp_get_ckpt_filename() -> str | None:
    """The path of this process's checkpoint image, even if it does not exist yet. None without an engine.

    DMTCP: DIR/ckpt_PROGRAM_UNIQUEPID.dmtcp, replaced by each checkpoint. manapy: DIR/latest/rank-NNNNN.img, and
    DIR/latest links to the directory of the newest checkpoint; if DIR isn't the job directory (dmtcp_set_ckpt_dir),
    DIR/manapy-HASH/latest/rank-NNNNN.img. In a job on several hosts, the image lies in a folder of its host there
    (node-NNNNN).
    """
    return _text("dmtcp_get_ckpt_filename")


def dmtcp_get_uniquepid_str() -> str | None:
    """Name of this process, unique and the same after restarts: HOST-PID-TIME, HOST and TIME in hexadecimal. None
    without an engine."""
    return _text("dmtcp_get_uniquepid_str")


def dmtcp_get_ckpt_dir() -> str:
    """The directory of the next checkpoint: DMTCP's --ckptdir, manapy's job directory, or the argument of
    dmtcp_set_ckpt_dir, unchanged.

    After a restart it is the absolute directory of the checkpoint from which the process was restarted. Empty without
    an engine.
    """
    return _text("dmtcp_get_ckpt_dir") or ""


def dmtcp_set_ckpt_dir(directory: str | os.PathLike[str] | None) -> int:
    """Set the directory of later checkpoints. Returns DMTCP_IS_PRESENT (4) for any argument, or DMTCP_NOT_PRESENT (3)
    without an engine. None changes nothing.

    The directory is checked when the next checkpoint is taken. It is made (mode 0700) if only its last component is
    missing. If it cannot be used, this checkpoint fails and the program continues; DMTCP ends the process with exit
    code
    99. After a restart, checkpoints go to the directory that contains the checkpoint of the restart.

    manapy: a checkpoint of all ranks is one directory, so the call of one rank applies to all ranks. If several ranks
    call it, the last call counts. With DMTCP each process has its own directory. The checkpoint lies in
    DIR/manapy-HASH, so that several jobs may name the same DIR. The job directory has a link to it, so that all
    commands find it. A relative DIR is relative to the working directory at the time of the call; with DMTCP, at the
    time of the checkpoint.
    """
    function = _function("dmtcp_set_ckpt_dir")
    return (
        DMTCP_NOT_PRESENT
        if function is None
        else int(function(c_char_p(None if directory is None else os.fsencode(directory))))
    )


def _function(name: str) -> Any:
    """A function of the engine, or None. It is looked up for each call, because calls are rare.

    ctypes lets other threads run during the call.
    """
    return getattr(ctypes.CDLL(None), name, None)


def _int(name: str, absent: int, kind: type[c_int] | type[c_uint32] = c_int) -> int:
    function = _function(name)
    if function is None:
        return absent
    function.restype = kind
    return int(function())


def _text(name: str) -> str | None:
    function = _function(name)
    if function is None:
        return None
    function.restype = c_char_p
    text = function()
    return None if text is None else os.fsdecode(text)


def _status(name: str) -> tuple[int, int, int]:
    function = _function(name)
    if function is None:
        return DMTCP_NOT_PRESENT, 0, 0
    first, second = c_int(0), c_int(0)
    return int(function(ctypes.byref(first), ctypes.byref(second))), first.value, second.value
