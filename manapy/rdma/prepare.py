"""Prepares the start of a program with libmanapy_shift.so in front of its libibverbs: backups for its RNICs, and an
agent. For `manapy rdma run` and manapy-launch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from ..core.errors import AgentError, UsageError
from . import client, devices, kv_protocol, place

LINGER_SECONDS = 30.0  # how long an agent that was started automatically stays after its last program
TTL_SECONDS = 10.0  # how long keys remain after their host has died
AUTO = "auto"


def backups(wanted: str | None = None) -> tuple[str, str | None]:
    """The value of MANAPY_SHIFT_BACKUP: ``wanted``, else the environment's, else by topology.

    If no RNIC can be a backup, the value is "", and the second result is the reason. Raises UsageError for names that
    cannot be devices.
    """
    wanted = wanted or os.environ.get("MANAPY_SHIFT_BACKUP") or AUTO
    if wanted != AUTO:
        if not all(kv_protocol.is_device(name) for name in re.split("[,:]", wanted)):
            raise UsageError(f"--backup: '{wanted}' is not DEV,DEV... or DEV:BACKUP:BACKUP,...")
        return wanted, None
    found = devices.scan()
    if chosen := devices.backup_list(found):
        return chosen, None
    names = ", ".join(device.name for device in found) or "there is none"
    return "", f"no RNIC on this host can be a backup of another ({names})"


def store_url(where: place.Place) -> str:
    """The URL of the job's store: MANAPY_SHIFT_KV, else the store of this host."""
    return os.environ.get("MANAPY_SHIFT_KV") or where.default_url


def agent(
    where: place.Place,
    url: str,
    linger: float = LINGER_SECONDS,
    ttl: float = TTL_SECONDS,
    pid: int | None = None,
    guarded: Path | None = None,
) -> str | None:
    """Make sure that an agent of the job, a process of its own, serves this host as long as process `pid` (default:
    this process) lives. More: reach()."""
    whose = os.getpid() if pid is None else pid
    return reach(where, url, whose, guarded, lambda: place.start(where, url, linger, ttl, whose))


def hosted_agent(where: place.Place, url: str, pid: int, guarded: Path | None, ask: Callable[[], None]) -> str | None:
    """The same, with the agent that a job of manapy-launch has on this host (host.py). ask() makes the job start it. It
    takes the place of an agent that has another store, such as that of the job's last run. More: reach()."""

    def start() -> None:
        if not _serves(where, url):
            ask()

    return reach(where, url, pid, guarded, start)


def _serves(where: place.Place, url: str) -> bool:
    try:
        with client.Connection(where) as connection:
            return bool(connection.status()["store"] == url)
    except AgentError:
        return False


def reach(where: place.Place, url: str, pid: int, guarded: Path | None, start: Callable[[], str | None]) -> str | None:
    """Have the agent of the job on this host stay for a process. start() starts it if there is none.

    guarded: directory of the manapy job of which `pid` is a rank, to be checkpointed after a fallback. Returns the
    agent's complaint (its store cannot be reached yet), or None. Raises AgentError, or UsageError if the agent uses
    another store.
    """
    said = None
    for last in (False, False, True):  # replace an agent that is about to end
        said = start() or said
        try:
            with client.Connection(where) as connection:
                connection.ask("STAY", pid)
                if guarded is not None:
                    connection.ask("GUARD", pid, str(guarded))
                served = connection.status()["store"]
        except AgentError:
            if last:
                raise
            continue
        if served != url:
            raise UsageError(
                f"the agent of job {where.job} on this host keeps its keys in {served}, not in {url}: give this job "
                "another name (--group)"
            )
        return said
    raise AssertionError("unreachable")
