"""The stack of a suspect's process: its Python stack by py-spy if that is installed, else the kernel's information. No
verdict depends on it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from . import process_state

LINES = 12  # largest number of lines
SECONDS = 10.0  # time limit of py-spy


def of(pid: int, start: int = 0) -> list[str]:
    """Return evidence, one line each. Empty if nothing can be learned (no such process, or no permission)."""
    seen = process_state.look(pid, start)
    if seen.state == process_state.DEAD:
        return []
    # for a running process, the kernel shows only its last interrupt
    return _python(pid) or (_kernel(pid, seen) if seen.state != "R" else [])


def _python(pid: int) -> list[str]:
    """Return the innermost frames of each Python thread."""
    beside = Path(sys.executable).parent / "py-spy"
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        return []
    try:
        done = subprocess.run(
            [program, "dump", "--nonblocking", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = [line.strip() for line in done.stdout.splitlines() if line.startswith((" ", "Thread"))]
    return [f"py-spy: {line}" for line in lines[:LINES]] if not done.returncode else []


def _kernel(pid: int, seen: process_state.ProcessState) -> list[str]:
    found = []
    if seen.wchan not in ("", "0"):
        found.append(f"process {pid} waits in the kernel's {seen.wchan}")
    try:
        stack = [
            line.partition("] ")[2].partition("+")[0]
            for line in (Path("/proc") / str(pid) / "stack").read_text().splitlines()
        ]
    except OSError:
        stack = []
    if stack := [name for name in stack if name]:
        found.append(f"kernel stack: {' < '.join(stack[:6])}")
    return found
