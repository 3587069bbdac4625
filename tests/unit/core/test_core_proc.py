"""What /proc says of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from manapy.core import proc


@pytest.fixture
def shell() -> Iterator[subprocess.Popen[str]]:
    """A shell with a child that sleeps; its standard output has said the child's id."""
    with subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait", "a b"], stdout=subprocess.PIPE, text=True) as found:
        yield found
        found.kill()


def test_relatives(shell: subprocess.Popen[str]) -> None:
    assert shell.stdout is not None
    child = int(shell.stdout.readline())
    try:
        assert proc.parent(child) == shell.pid
        above = list(proc.ancestors(child))
        assert above[:2] == [shell.pid, os.getpid()] and 1 not in above
        assert proc.children(shell.pid) == [child] == proc.descendants(shell.pid)
        assert proc.children(child) == []
    finally:
        os.kill(child, 9)


def test_names_and_start(shell: subprocess.Popen[str]) -> None:
    assert shell.stdout is not None
    child = int(shell.stdout.readline())
    try:
        assert proc.cmdline(shell.pid) == ["sh", "-c", "sleep 600 & echo $!; wait", "a b"]
        assert proc.comm(shell.pid) == "sh"
        first, second = proc.start_of(shell.pid), proc.start_of(child)
        assert first is not None and second is not None and first <= second
    finally:
        os.kill(child, 9)


def test_a_process_that_has_ended() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert proc.start_of(gone.pid) is None and proc.children(gone.pid) == [] and proc.descendants(gone.pid) == []
    for look in (proc.comm, proc.cmdline, proc.parent):
        with pytest.raises(OSError):
            look(gone.pid)


def test_a_zombie() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert proc.cmdline(child.pid) == [""] and child.pid not in proc.descendants(os.getpid())
    child.wait()


def test_it_imports_nothing_heavy() -> None:
    """Invariant 1."""
    code = (
        "import sys; from manapy.core import proc;"
        " print(*{'subprocess', 'socket', 'ctypes', 'asyncio'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
