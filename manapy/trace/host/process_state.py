"""The state of the ranks' processes by /proc: alive, stopped, busy or asleep. This works only for processes of this
host that are still the ones that recorded.

A process is identified by its id and its start time (proc(5), field 22 of stat). If another process has the id now, the
recorded process is dead. A process whose first thread has ended (pthread_exit in main) is listed as a zombie while its
other threads go on: the state of the most active one of these counts.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.proc import START, STATE, SYSTEM_TICKS, THREADS, USER_TICKS, stat_fields

if TYPE_CHECKING:
    from ..model.events import Trace  # imports numpy: not needed to ask whether a process lives

DEAD, STOPPED, ZOMBIE = "dead", ("T", "t"), "Z"  # in Rank.process
TRACED = "t"  # one of STOPPED: by a tracer or a debugger
INTERVAL = 0.2  # seconds over which processor time is measured, in ticks of 10 ms
BUSY = 0.05  # share of a processor; it is low because many spinning threads may leave little of it


@dataclass(frozen=True)
class ProcessState:
    """What was seen of a process.

    state: as in /proc/PID/stat, or "dead"; "": it can't be read.
    ticks: processor time of all threads, in clock ticks.
    wchan: where the main thread, or the one whose state this is, waits in the kernel, if this may be read.
    """

    state: str
    ticks: int = 0
    wchan: str = ""


def look(pid: int, start: int = 0) -> ProcessState:
    """Look at one process now. start: its start time; 0: not known."""
    base = Path("/proc") / str(pid)
    try:
        found = stat_fields(base)
    except (FileNotFoundError, ProcessLookupError):
        return ProcessState(DEAD)
    except OSError:
        return ProcessState("")
    if start and int(found[START]) != start:
        return ProcessState(DEAD)
    state, task = found[STATE], base
    if state == ZOMBIE and int(found[THREADS]) > 1:
        state, task = _living(base)
    return ProcessState(state, int(found[USER_TICKS]) + int(found[SYSTEM_TICKS]), _word(task / "wchan"))


def _living(base: Path) -> tuple[str, Path]:
    """Return the state and the folder of a thread that has not ended: one that runs, else one in an uninterruptible
    wait, else any. If there is none, the process is a zombie."""
    found = [(ZOMBIE, base)]
    with contextlib.suppress(OSError):
        for task in (base / "task").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                found.append((stat_fields(task)[STATE], task))
    order = ("R", "D", *STOPPED, "S")
    living = [one for one in found if one[0] not in (ZOMBIE, "X")]
    return min(living or found, key=lambda one: order.index(one[0]) if one[0] in order else len(order))


def _word(path: Path) -> str:
    """Return the text of a file of one line, or "" if it may not be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


@functools.cache
def pid_space() -> int:
    """Return the PID namespace of this process (an inode). Numbers of processes of others, in containers, mean nothing
    here. 0: not known."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def is_hidden(space: int) -> bool:
    """Return whether processes of this PID namespace have other numbers here. space: 0 if it is not known."""
    return 0 not in (space, pid_space()) and space != pid_space()


def here(trace: Trace) -> list[int]:
    """Return the ranks whose processes are on this host, and whose numbers are known here."""
    own = socket.gethostname()
    return [rank for rank, known in trace.ranks.items() if known.pid and known.host == own]


@dataclass(frozen=True)
class ProcessSample:
    """Processes of ranks, all looked at in one moment. at: seconds of the monotonic clock."""

    at: float
    seen: dict[int, ProcessState]


def sight(trace: Trace, ranks: Iterable[int] | None = None) -> ProcessSample:
    """Look at these ranks, or at all ranks of this host."""
    which = here(trace) if ranks is None else ranks
    return ProcessSample(
        time.monotonic(), {rank: look(trace.ranks[rank].pid, trace.ranks[rank].pid_start) for rank in which}
    )


def described(trace: Trace, before: ProcessSample, now: ProcessSample) -> Trace:
    """Return the trace with `process` of its ranks as they are now, and `cpu_share` since the look before.

    A tracer (strace) stops a process for a moment again and again. So a process is stopped by a tracer only if both
    looks have seen that, and it has used no processor in between.
    """
    known, took = dict(trace.ranks), now.at - before.at
    for rank, seen in now.seen.items():
        measured = rank in before.seen and seen.state != DEAD and took > 0
        share = (
            max(seen.ticks - before.seen[rank].ticks, 0) / os.sysconf("SC_CLK_TCK") / took if measured else float("nan")
        )
        state = seen.state if seen.state != TRACED else _traced(before.seen.get(rank), seen, took)
        known[rank] = replace(known[rank], process=state, cpu_share=share)
    return replace(trace, ranks=known)


def _traced(before: ProcessState | None, now: ProcessState, took: float) -> str:
    """Return the state of a process that is stopped by a tracer now; "" if one look is all there is. took: seconds
    between the looks."""
    if before is None or took <= 0:
        return ""
    return "R" if now.ticks > before.ticks else before.state


def examine(trace: Trace, ranks: Iterable[int] | None = None, interval: float = INTERVAL) -> Trace:
    """Return the trace with `process` and `cpu_share` of its ranks on this host. This takes `interval` seconds."""
    before = sight(trace, ranks)
    if any(seen.state != DEAD for seen in before.seen.values()):
        time.sleep(interval)
    return described(trace, before, sight(trace, before.seen))
