"""The observed activity of processes that are busy, and of one that does nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import waiting

from manapy.trace.host.activity import (
    COMPUTES,
    MOVES,
    NOTHING,
    READY,
    STORAGE,
    WRITES,
    Activity,
    ActivitySample,
    Suspect,
    done,
)

BUSY = "while True: pass"
PROGRAMS = {
    "asleep": "import time; time.sleep(999)",
    "busy": BUSY,
    "a thread": (
        f"import threading, time; threading.Thread(target=exec, args=({BUSY!r},), daemon=True).start(); time.sleep(999)"
    ),
    "a child": f"import os, time; child = os.fork()\nif not child: exec({BUSY!r})\ntime.sleep(999)",
    "writes": "import os, time\nwhile True: os.write(file.fileno(), b'x'); time.sleep(0.05)",
}


@pytest.mark.parametrize(
    ("program", "what"),
    [("asleep", NOTHING), ("busy", COMPUTES), ("a thread", COMPUTES), ("a child", COMPUTES), ("writes", WRITES)],
)
def test_threads_and_children_count(program: str, what: str) -> None:
    code = f"import tempfile\nfile = tempfile.TemporaryFile()\nprint(flush=True)\n{PROGRAMS[program]}"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert child.stdout is not None and child.stdout.readline()
        activity = Activity()
        deadline = time.monotonic() + 60
        while (
            seen := activity.look({7: Suspect(child.pid)})[7]
        ).what != what:  # before it sleeps it is busy, and before it is busy it waits for a processor
            assert time.monotonic() < deadline, seen
            time.sleep(0.05)
        if what == NOTHING:
            assert activity.look({7: Suspect(child.pid)})[7].still > seen.still > 0
        else:
            assert seen.still == 0
        if program == "busy":
            assert (
                Activity().look({7: Suspect(child.pid, inside=frozenset({child.pid}))})[7].what == NOTHING
            )  # its only thread counts as inside MPI
    finally:
        _end(child)


@pytest.mark.parametrize(
    "program",
    [
        "while True: time.sleep(1)",
        "if not os.fork():\n  while True: time.sleep(2); os.write(end[1], b'x')\nwhile True: os.read(end[0], 1)",
    ],
)
def test_who_naps_or_reads_a_slow_pipe_does_not_do_nothing(program: str) -> None:
    code = f"import os, time\nend = os.pipe()\nprint(flush=True)\n{program}"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert child.stdout is not None and child.stdout.readline()
        watched = Activity()
        for _ in range(3):
            assert Activity().look({7: Suspect(child.pid)})[7].what != NOTHING
            assert watched.look({7: Suspect(child.pid)})[7].what != NOTHING
    finally:
        _end(child)


def test_who_computes_on_a_busy_processor_gets_little_of_it() -> None:
    """A process and its child are on the same processor, and the child, which has the lowest priority, mostly waits."""
    code = (
        f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})\n"
        f"child = os.fork()\nif child: print(child, flush=True)\nelse: os.nice(19)\n{BUSY}"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        waiting.until(lambda: os.getpriority(os.PRIO_PROCESS, child) == 19, "the child's priority")
        seen = [Activity().look({7: Suspect(child)})[7].what for _ in range(6)]
        assert set(seen) <= {COMPUTES, READY}, seen
    finally:
        _end(parent)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a process with its descendants."""
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    assert child.stdout is not None
    child.stdout.close()


def test_of_a_process_that_is_not_there_nothing_is_known() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert Activity().look({0: Suspect(child.pid), 1: Suspect(1, start=1)}) == {}


def test_who_is_ready_to_run_at_both_looks_and_has_not_run_had_no_processor() -> None:
    thread = 1, 1
    asleep, ready = ActivitySample(0.0, ran={thread: 5}), ActivitySample(0.0, ran={thread: 5}, ready={thread})
    assert done(ready, ActivitySample(1.0, ran={thread: 5}, ready={thread})) == READY
    assert done(asleep, ActivitySample(1.0, ran={thread: 5}, ready={thread})) == NOTHING  # it has just woken up
    assert done(ready, ActivitySample(1.0, ran={thread: 10**9}, ready={thread})) == COMPUTES


def test_waiting_for_a_processor_counts_if_it_has_run() -> None:
    thread = 1, 1
    ready = ActivitySample(0.0, ran={thread: 0}, waited={thread: 0}, ready={thread})
    ran, waited = {thread: 2 * 10**7}, {thread: 9 * 10**8}
    assert done(ready, ActivitySample(1.0, ran=ran, waited=waited, ready={thread})) == COMPUTES
    assert done(ready, ActivitySample(1.0, ran=ran, waited=waited)) == MOVES  # it sleeps now
    assert done(ready, ActivitySample(1.0, ran=ran, waited=ran, ready={thread})) == MOVES


def test_a_short_wait_for_storage_of_a_process_that_computes_is_none() -> None:
    thread = 1, 1
    before = ActivitySample(0.0, ran={thread: 0}, waited={thread: 0}, ready={thread})
    little, much = {thread: 2 * 10**7}, {thread: 9 * 10**8}
    assert done(before, ActivitySample(1.0, ran=little, waited=much), stored=True) == COMPUTES
    assert done(before, ActivitySample(1.0, ran=much, waited=little), stored=True) == COMPUTES
    assert done(before, ActivitySample(1.0, ran=little, waited=little), stored=True) == STORAGE
    assert done(before, ActivitySample(1.0, ran={thread: 0}, waited={thread: 0}), stored=True) == STORAGE
