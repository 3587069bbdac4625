"""Processes of this host that are not our children: is one alive, when does it end, which one is at the other end of a
socket. Also: the limit of our own descriptors, prctl(2) settings towards parent and children, and the signals by which
users and schedulers end this process."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .proc import STATE, stat_fields

if TYPE_CHECKING:
    import socket

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # see heeded()
RESERVED = 32  # descriptors reserved for commands, checkpoints and logs: connections of ranks must leave them free


def raise_limit() -> None:
    """Raise the soft limit of descriptors to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def is_scarce(fd: int) -> str:
    """Why a new descriptor must be closed again, or empty. New descriptors get the lowest free number."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if fd < soft - RESERVED:
        return ""
    return f"the coordinator can open only {soft} files: raise this limit on the host of rank 0 (ulimit -Hn)"


def watch(pid: int, ended: Callable[[], object]) -> None:
    """Call ``ended`` in the running loop when a process has ended, or soon if there is no such process.

    It is never called if the process cannot be watched.
    """
    import asyncio  # half of the time in which an agent of a node starts, and only coordinators watch

    loop = asyncio.get_running_loop()
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        loop.call_soon(ended)
        return
    except OSError:
        return
    if is_scarce(fd):
        os.close(fd)
        return

    def readable() -> None:
        loop.remove_reader(fd)
        os.close(fd)
        ended()

    loop.add_reader(fd, readable)


def peer(connected: socket.socket) -> tuple[int, int]:
    """Process id (0 if its namespace is not visible) and user id of the other end of a Unix socket (unix(7))."""
    import socket
    import struct

    data = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
    pid, uid, _ = struct.unpack("iII", data)
    return pid, uid


def adopt_orphans() -> None:
    """From now on descendants whose parent ends become children of this process, so that none is lost."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent() -> None:
    """From now on this process gets SIGKILL when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def is_alive(pid: int) -> bool:
    """Is the process there, and not a zombie?"""
    try:
        return stat_fields(Path(f"/proc/{pid}"))[STATE] not in "ZX"
    except (OSError, IndexError):
        return False


def heeded() -> list[signal.Signals]:
    """The signals to handle: those of SIGNALS that are not ignored (under nohup, SIGHUP is ignored)."""
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


@contextlib.contextmanager
def handled(handler: Callable[[int, object], object]) -> Iterator[None]:
    """Call ``handler`` for each of these signals meanwhile."""
    before = {number: signal.signal(number, handler) for number in heeded()}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
