"""The fields of /proc/PID/stat (proc(5))."""

from __future__ import annotations

from pathlib import Path

STATE, PARENT, USER_TICKS, SYSTEM_TICKS, START = 0, 1, 11, 12, 19  # in stat_fields()


def stat_fields(process: Path) -> list[str]:
    """The fields after the name (it may hold blanks); the state is the first. process: /proc/PID, or a task in it."""
    return (process / "stat").read_text().rpartition(")")[2].split()
