"""DMTCP's application API for Python: ctypes bindings of the functions that dmtcp.h declares for programs.

    from manapy import dmtcp

    dmtcp.dmtcp_disable_ckpt()                    # no checkpoint while a file is half written
    ...
    dmtcp.dmtcp_enable_ckpt()
    if dmtcp.dmtcp_checkpoint() == dmtcp.DMTCP_AFTER_RESTART:
        ...

They bind to whatever engine the process runs under: to the real libdmtcp under ``dmtcp_launch``, to manapy's
(wrappers/dmtcp.c) under ``manapy-launch``. C programs written for DMTCP need nothing of this: their weak symbols bind
by themselves. Without an engine each function does and returns what the macro of dmtcp.h does in its place, without an
exception.

Sources: include/dmtcp.h and src/dmtcpplugin.cpp of DMTCP 2.6.0 and of its development version 5.0; what is said of
DMTCP's behaviour was seen with the latter. Both have the same codes, which the constants here name.
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
    """What dmtcp_get_coordinator_status fills in. ``result``: DMTCP_IS_PRESENT or DMTCP_NOT_PRESENT; then the rest is
    0."""

    result: int
    num_peers: int
    is_running: int


class LocalStatus(NamedTuple):
    """What dmtcp_get_local_status fills in. ``result`` as in CoordinatorStatus."""

    result: int
    num_checkpoints: int
    num_restarts: int


def dmtcp_is_enabled() -> int:
    """1 under an engine, else 0; under manapy also 0 in a forked child of a rank, which can't be checkpointed."""
    return _int("dmtcp_is_enabled", 0)


def dmtcp_checkpoint() -> int:
    """Checkpoint the whole computation, and wait for it.

    DMTCP_AFTER_CHECKPOINT (1): it is taken and the process goes on. DMTCP_AFTER_RESTART (2): the process comes back
    from it. 0: it failed ("<= 0 on error", dmtcp.h); the program goes on as before. DMTCP_NOT_PRESENT (3): no engine.

    manapy: 1 means published: complete on disk for all ranks. The call is meant to be made by all ranks, as
    manapy.checkpoint(), and they share one checkpoint; a call by some only is served 5 s after the first. A thread that
    has disabled checkpoints itself gets 0 at once, where DMTCP waits for ever.
    """
    return _int("dmtcp_checkpoint", DMTCP_NOT_PRESENT)


def dmtcp_disable_ckpt() -> int:
    """No checkpoint of this process until dmtcp_enable_ckpt. 1; DMTCP_NOT_PRESENT (3) without an engine.

    Counted per thread: it may be called again, and as many calls of dmtcp_enable_ckpt belong to it. Several threads may
    have checkpoints disabled at once. A request waits; it is not refused. If a checkpoint is about to be written the
    call waits until that is over.

    manapy: `manapy checkpoint` and `manapy status` say which rank is waited for. MPI calls are free in between: a rank
    that has checkpoints disabled isn't held up by others that stand ready for a checkpoint (with DMTCP that may
    deadlock, says dmtcp.h). What several ranks do by turns may put a checkpoint off for long: it needs a moment at
    which all allow it.
    """
    return _int("dmtcp_disable_ckpt", DMTCP_NOT_PRESENT)


def dmtcp_enable_ckpt() -> int:
    """Take one dmtcp_disable_ckpt of this thread back. 1; DMTCP_NOT_PRESENT (3) without an engine.

    Without a dmtcp_disable_ckpt before, manapy returns 0; DMTCP ends the process with exit code 99.
    """
    return _int("dmtcp_enable_ckpt", DMTCP_NOT_PRESENT)


def dmtcp_get_coordinator_status() -> CoordinatorStatus:
    """How many processes belong to the computation, and whether all are running (1), not in a checkpoint (0).

    manapy: the number of ranks, whether they have all called MPI_Init or not; 0 also when the coordinator is lost. It
    is this rank's view.
    """
    return CoordinatorStatus(*_status("dmtcp_get_coordinator_status"))


def dmtcp_get_local_status() -> LocalStatus:
    """How many checkpoints this process has gone on after, and how many restarts are behind it.

    A checkpoint that it was restarted from counts as a restart only.
    """
    return LocalStatus(*_status("dmtcp_get_local_status"))


def dmtcp_get_generation() -> int:
    """Checkpoints of the computation up to here: 0 before the first; the one that the process was restarted from is
    among them.

    Failed ones don't count. 0 without an engine, where dmtcp.h has a weak symbol only and a C program must not call it.
    """
    return _int("dmtcp_get_generation", 0, c_uint32)


def dmtcp_get_ckpt_filename() -> str | None:
    """Path of this process's checkpoint image, whether there is one yet or not. None without an engine.

    DMTCP: DIR/ckpt_PROGRAM_UNIQUEPID.dmtcp, replaced by each checkpoint. manapy: DIR/latest/rank-NNNNN.img, and
    DIR/latest is a link to the newest checkpoint's directory; if DIR isn't the job directory (dmtcp_set_ckpt_dir),
    DIR/manapy-HASH/latest/rank-NNNNN.img.
    """
    return _text("dmtcp_get_ckpt_filename")


def dmtcp_get_uniquepid_str() -> str | None:
    """Name of this process, unique and the same after restarts: HOST-PID-TIME, HOST and TIME in hexadecimal. None
    without an engine."""
    return _text("dmtcp_get_uniquepid_str")


def dmtcp_get_ckpt_dir() -> str:
    """Where the next checkpoint goes: DMTCP's --ckptdir or manapy's job directory, or what dmtcp_set_ckpt_dir was
    given, as it was given.

    After a restart it is the directory of the checkpoint that the process comes from, absolute. Empty without an
    engine.
    """
    return _text("dmtcp_get_ckpt_dir") or ""


def dmtcp_set_ckpt_dir(directory: str | os.PathLike[str] | None) -> int:
    """Where later checkpoints go. DMTCP_IS_PRESENT (4) for whatever it is given, also for None, which changes nothing;
    DMTCP_NOT_PRESENT (3) without an engine.

    The directory is looked at when the next checkpoint is taken, and made (mode 0700) if only its last component is
    missing. If it can't be used, that checkpoint fails and the program goes on; DMTCP ends the process with exit code
    99. After a restart checkpoints go to where the one lies that the process comes from.

    manapy: a checkpoint of all ranks is one directory, so one rank's call is for all of them, and if several name
    directories the last one counts; with DMTCP each process has its own. It lies in DIR/manapy-HASH, so that several
    jobs may name the same DIR, and the job directory has a link to it: all commands find it there. A relative DIR is
    meant from the working directory of this moment; with DMTCP, from that of the checkpoint.
    """
    function = _function("dmtcp_set_ckpt_dir")
    return DMTCP_NOT_PRESENT if function is None else int(function(c_char_p(None if directory is None else os.fsencode(directory))))


def _function(name: str) -> Any:
    """A function of the engine (ctypes lets other threads run during a call), or None. Looked up each time: no call is
    frequent."""
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
