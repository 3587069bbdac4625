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

from manapy.core.proc import START, STATE, THREADS, stat_fields
from manapy.trace.host import process_state, stacks
from manapy.trace.host.process_state import ProcessSample, ProcessState
from manapy.trace.model.events import Op
from waiting import until


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


# The main thread ends by pthread_exit without the interpreter's lock, and another thread goes on.
FIRST_ENDS = """
import ctypes, os, threading, time
def go_on():
    while os.path.exists("go on"):
        {work}
    os._exit(0)
threading.Thread(target=go_on).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.mark.parametrize(("work", "state"), [("time.sleep(0.05)", "S"), ("pass", "R")])
def test_a_process_whose_first_thread_has_ended_lives_while_others_go_on(work: str, state: str, tmp_path: Path) -> None:
    (tmp_path / "go on").touch()
    child = subprocess.Popen([sys.executable, "-c", FIRST_ENDS.format(work=work)], cwd=tmp_path)
    try:
        until(lambda: stat_fields(Path(f"/proc/{child.pid}"))[STATE] == "Z", "the end of the first thread")
        assert int(stat_fields(Path(f"/proc/{child.pid}"))[THREADS]) > 1
        start = start_of(child.pid)
        until(lambda: process_state.look(child.pid, start).state == state, state)
        if state == "R":
            before = process_state.look(child.pid, start).ticks
            until(lambda: process_state.look(child.pid, start).ticks > before, "processor time")
        (tmp_path / "go on").unlink()
        until(lambda: process_state.look(child.pid, start).state == "Z", "the end of all threads")
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (("t", 5), ("t", 5), "t"),  # a debugger
        (("t", 5), ("t", 9), "R"),
        (("R", 5), ("t", 9), "R"),
        (("S", 5), ("t", 5), "S"),
        (None, ("t", 5), ""),
        (("t", 5), ("S", 5), "S"),
        (("R", 5), ("T", 5), "T"),
    ],
)
def test_a_process_that_a_tracer_stops_for_a_moment_is_not_stopped(
    before: tuple[str, int] | None, now: tuple[str, int], said: str
) -> None:
    job = Builder(1)
    job.call(0, Op.INIT, 1, 2)

    def look(at: float, seen: tuple[str, int]) -> ProcessSample:
        return ProcessSample(at, {0: ProcessState(*seen)})

    later = look(2.0, now)
    earlier = later if before is None else look(1.0, before)
    assert process_state.described(job.trace(10), earlier, later).ranks[0].process == said
