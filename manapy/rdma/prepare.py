"""What a program needs before it starts with libmanapy_shift.so in front of its libibverbs: backups for its RNICs, and
an agent. For `manapy rdma run` and for manapy-launch."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..core.errors import AgentError, UsageError
from . import client, devices, place, protocol

LINGER_SECONDS = 30.0  # how long an agent that nobody has started by hand stays after its last program
TTL_SECONDS = 10.0  # how long keys outlive their host
AUTO = "auto"


def backups(wanted: str | None = None) -> tuple[str, str | None]:
    """The value of MANAPY_SHIFT_BACKUP: as wanted, else as in the environment, else by topology; and, if no RNIC can
    stand in for another, why it is "". Raises UsageError for what can't be names of devices."""
    wanted = wanted or os.environ.get("MANAPY_SHIFT_BACKUP") or AUTO
    if wanted != AUTO:
        if not all(protocol.is_device(name) for name in re.split("[,:]", wanted)):
            raise UsageError(f"--backup: '{wanted}' is not DEV,DEV... or DEV:BACKUP:BACKUP,...")
        return wanted, None
    found = devices.scan()
    if chosen := devices.backup_list(found):
        return chosen, None
    names = ", ".join(device.name for device in found) or "there is none"
    return "", f"no RNIC on this host can be a backup of another ({names})"


def store_url(where: place.Place) -> str:
    """Of the job's keys: MANAPY_SHIFT_KV, else those of one host."""
    return os.environ.get("MANAPY_SHIFT_KV") or where.default_url


def agent(where: place.Place, url: str, linger: float = LINGER_SECONDS, ttl: float = TTL_SECONDS, pid: int | None = None, guarded: Path | None = None) -> str | None:
    """An agent of the job serves this host, and stays as long as process `pid`, or this one. guarded: directory of the
    manapy job of which `pid` is a rank, to be checkpointed when traffic falls back. Returns what it complains about
    (its store can't be reached yet), or None. Raises AgentError, or UsageError if it uses another store."""
    said = None
    whose = os.getpid() if pid is None else pid
    for last in (False, False, True):  # an agent that is about to end is replaced
        said = place.start(where, url, linger, ttl, whose) or said
        try:
            with client.Connection(where) as connection:
                connection.ask("STAY", whose)
                if guarded is not None:
                    connection.ask("GUARD", str(pid), str(guarded))
                served = connection.status()["store"]
        except AgentError:
            if last:
                raise
            continue
        if served != url:
            raise UsageError(f"the agent of job {where.job} on this host keeps its keys in {served}, not in {url}: give this job another name (--job)")
        return said
    raise AssertionError("unreachable")
