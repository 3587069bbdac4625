"""Ending all descendants of a process, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from manapy.chain import descendants
from manapy.core import proc
from manapy.core.processes import is_alive
from waiting import until

PATIENCE = 60.0


@pytest.fixture
def tree(tmp_path: Path) -> subprocess.Popen[bytes]:
    """A shell that runs a shell that sleeps. If one of the processes dies alone, the next command creates a file."""
    inner = f"sleep 600 & echo $! > {tmp_path}/sleep; wait; touch {tmp_path}/inner"
    outer = f"sh -c '{inner}' & echo $! > {tmp_path}/shell; wait; touch {tmp_path}/outer"
    found = subprocess.Popen(["sh", "-c", outer], start_new_session=True)
    until(
        lambda: len(list(tmp_path.glob("s*"))) == 2 and all(p.read_text().endswith("\n") for p in tmp_path.glob("s*")),
        "the processes",
    )
    return found


def test_parents_come_first(tree: subprocess.Popen[bytes], tmp_path: Path) -> None:
    shell, sleep = int((tmp_path / "shell").read_text()), int((tmp_path / "sleep").read_text())
    assert proc.descendants(tree.pid) == [shell, sleep]
    below = proc.descendants(os.getpid())
    assert below.index(tree.pid) < below.index(shell) < below.index(sleep)
    assert descendants.kill_below(tree.pid, set())
    until(lambda: not is_alive(shell) and not is_alive(sleep), "they are killed")
    assert tree.wait(PATIENCE) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["outer", "shell", "sleep"], (
        "the inner shell came to its next command"
    )
    assert not descendants.kill_below(tree.pid, set())


def test_spares(tree: subprocess.Popen[bytes], tmp_path: Path) -> None:
    shell, sleep = int((tmp_path / "shell").read_text()), int((tmp_path / "sleep").read_text())
    assert descendants.kill_below(tree.pid, {sleep})
    until(lambda: not is_alive(shell), "it is killed")
    assert is_alive(sleep)
    os.kill(sleep, signal.SIGKILL)
    tree.wait(PATIENCE)


def test_orphans_are_adopted() -> None:
    """The test uses another process, because adopting can't be undone."""
    code = (
        "import os, subprocess, sys, time\nfrom manapy.chain import descendants\n"
        "from manapy.core import proc, processes\nprocesses.adopt_orphans()\n"
        "child = subprocess.Popen(['sh', '-c', '(exec setsid sleep 600) & exit 5'])\n"
        "status = None\n"
        "while status is None: status = descendants.reap(child.pid); time.sleep(0.01)\n"
        "while len(proc.descendants(os.getpid())) != 1: time.sleep(0.01)\n"
        "(orphan,) = proc.descendants(os.getpid())\n"
        "assert descendants.kill_below(os.getpid(), {orphan}) is False\n"
        "assert descendants.kill_below(os.getpid(), set()) is True\n"
        "while proc.descendants(os.getpid()): time.sleep(0.01)\n"
        "descendants.reap(0)\n"
        "print(os.waitstatus_to_exitcode(status), os.path.exists(f'/proc/{orphan}'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "5 False\n", done.stderr


def test_names_with_parentheses(tmp_path: Path) -> None:
    """/proc/PID/stat holds the program's name unescaped."""
    odd = tmp_path / "a) Z 1 (b"
    odd.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(odd), "600"])
    try:
        assert child.pid in proc.descendants(os.getpid())
    finally:
        child.kill()
        child.wait()
