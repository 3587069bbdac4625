"""Processes of this host as /proc shows them (proc(5)).

Invariants
 1. Every command starts with this module, so it imports nothing that takes time.
 2. A process may end at any moment: a function says what it returns then, or raises OSError.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

STATE, PARENT, USER_TICKS, SYSTEM_TICKS, THREADS, START = 0, 1, 11, 12, 17, 19  # in stat_fields()


def stat_fields(process: Path) -> list[str]:
    """The fields after the name (it may hold blanks); the state is the first. process: /proc/PID, or a task in it."""
    return (process / "stat").read_text().rpartition(")")[2].split()


def comm(pid: int) -> str:
    """The name of a process, of at most 15 characters. Raises OSError."""
    return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")


def cmdline(pid: int) -> list[str]:
    """The program and its arguments; [""] of a zombie. Raises OSError."""
    return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").removesuffix("\0").split("\0")


def start_of(pid: int) -> int | None:
    """When a process was started, in ticks since the start of the host; None if it is gone. Distinguishes processes
    with the same id."""
    try:
        return int(stat_fields(Path(f"/proc/{pid}"))[START])
    except (OSError, IndexError, ValueError):
        return None


def boot_id() -> str:
    """Distinguishes boots of this host; "" if the kernel does not give it."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def parent(pid: int) -> int:
    """The parent of a process. Raises OSError."""
    return int(stat_fields(Path(f"/proc/{pid}"))[PARENT])


def ancestors(pid: int) -> Iterator[int]:
    """The parent of a process, its parent, and so on; without init. Raises OSError."""
    while (pid := parent(pid)) > 1:
        yield pid


def children(pid: int) -> list[int]:
    """The children of a process, by the kernel's list of them: quick, but it may lack some while they come and go."""
    found: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, listed.read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``, parents first; zombies left out. Looks at every process of the host."""
    below: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = stat_fields(Path(f"/proc/{entry}"))
                if fields[STATE] not in "ZX":
                    below.setdefault(int(fields[PARENT]), []).append(int(entry))
    found: list[int] = []
    queue = [pid]
    while queue:
        next_ones = below.get(queue.pop(0), [])
        found += next_ones
        queue += next_ones
    return found
