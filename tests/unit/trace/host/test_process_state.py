"""What /proc shows of processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from traces import Builder

from manapy.core.proc import START, stat_fields
from manapy.trace.host import process_state, stacks
from manapy.trace.model.events import Op


def start_of(pid: int) -> int:
    return int(stat_fields(Path(f"/proc/{pid}"))[START])


@pytest.mark.parametrize(
    ("code", "state", "busy"), [("import time; time.sleep(99)", "S", False), ("while True: pass", "R", True)]
)
def test_asleep_and_busy_and_stopped_and_dead(code: str, state: str, busy: bool) -> None:
    child = subprocess.Popen([sys.executable, "-c", "print(flush=True)\n" + code], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline()
        job = Builder(1)
        job.call(0, Op.INIT, 1, 2)
        job.ranks[0] = replace(
            job.ranks[0], host=socket.gethostname(), pid=child.pid, pid_start=start_of(child.pid), process=""
        )
        trace = job.trace(10)

        def until(state: str, busy: bool | None = None) -> None:
            deadline = time.monotonic() + 60
            while (
                (seen := process_state.examine(trace).ranks[0]).process != state
                or busy is not None
                and (seen.cpu_share > 0.1) != busy
            ):
                assert time.monotonic() < deadline, seen

        until(state, busy)
        assert trace.ranks[0].process == ""  # the argument is not changed
        stacks.of(child.pid)
        child.send_signal(signal.SIGSTOP)
        until("T")
        child.kill()
        child.wait()
        until("dead")
        assert stacks.of(child.pid) == []
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def test_another_process_with_the_same_id_is_not_ours() -> None:
    assert process_state.look(os.getpid(), start_of(os.getpid())).state == "R"
    assert process_state.look(os.getpid(), start_of(os.getpid()) + 1).state == "dead"


def test_processes_of_other_hosts_are_left_alone() -> None:
    job = Builder(1)
    job.call(0, Op.INIT, 1, 2)
    job.ranks[0] = replace(job.ranks[0], host="elsewhere", pid=os.getpid(), process="")
    assert process_state.examine(job.trace(10)).ranks[0].process == ""
