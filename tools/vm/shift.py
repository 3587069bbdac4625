"""Programs under SHIFT in the machine, and SHIFT's messages about them.

    pair = start(vm, program, "-n", 500)       both ends of stamps.c (pairs.py), protected
    wait_event(pair, "fallback", 1)            waits until each queue pair has moved once

`inside()` is `manapy rdma run`, as a user runs it: each job then starts an agent of its own. Python takes seconds to
start in an emulated machine, so tests of later events share one agent (`environment`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import weakref
from pathlib import Path
from typing import Any

from .machine import PATIENCE, VM, GuestProcess, VMDied, VMError
from .pairs import Pair

MANAPY = Path(sys.executable).parent / "manapy"
BACKUPS = ",".join(f"rx{host}{rail}:rx{host}{(rail + 1) % 2}" for host in "ab" for rail in (0, 1))
THREE = ",".join(f"rx{host}0:rx{host}1:rx{host}2" for host in "ab")
LIBRARY = MANAPY.parent.parent / "lib/manapy/libmanapy_shift.so"
SHARED = "shared-agent"  # the job of all programs without a job of their own
# The mean time between two messages of a connection, in ms. Traffic without pauses takes all emulated processors for as
# long as retries take. With this pause all requests that fit into a queue are still outstanding when a path fails.
PAUSE = 10
# SHIFT says this if the agent, or the peer's set-up, takes seconds, as on a busy host. Those connections are protected
# later, and `start` waits for that.
SLOW = ("the key-value agent does not answer (Connection timed out)", "does not run under SHIFT")
_jobs = itertools.count()
_agents: weakref.WeakKeyDictionary[VM, GuestProcess] = weakref.WeakKeyDictionary()  # of SHARED


def inside(backups: str = BACKUPS, job: str | None = None, manapy: Path = MANAPY) -> list[str | Path]:
    """The words before a program."""
    return [manapy, "rdma", "run", "--group", job or f"shift{next(_jobs)}", "--backup", backups, "--"]


def agent(vm: VM) -> GuestProcess | None:
    """The shared agent, if it runs."""
    found = _agents.get(vm)
    with contextlib.suppress(VMDied):  # it has ended with an earlier boot of the machine
        if found is not None and vm.alive and found.poll() is None:
            return found
    return None


def end_agent(vm: VM) -> None:
    """End the shared agent, if it runs."""
    if (running := agent(vm)) is not None:
        running.kill()


def environment(vm: VM, backups: str = BACKUPS) -> dict[str, str]:
    """The environment that protects a program, as `manapy rdma run` makes it, with the shared agent. The agent is
    started if it doesn't run."""
    address = f"/tmp/manapy-shift-0/{SHARED}/agent"
    if agent(vm) is None:
        vm.run(f"rm -f {address}", check=True)  # of an agent that was killed
        _agents[vm] = vm.start([MANAPY, "rdma", "agent", "--group", SHARED])
        vm.run(f"until [ -S {address} ]; do sleep 0.05; done", check=True)
    return {
        "LD_PRELOAD": str(LIBRARY),
        "MANAPY_SHIFT_AGENT": address,
        "MANAPY_SHIFT_JOB": SHARED,
        "MANAPY_SHIFT_BACKUP": backups,
    }


def start(
    vm: VM,
    program: Path,
    *options: object,
    backups: str = BACKUPS,
    job: str | None = None,
    manapy: Path = MANAPY,
    pairs: int = 1,
    wait: float | None = None,
) -> Pair:
    """The checker of messages, connected and protected. `pairs`: number of queue pairs (its option -q). `job`: under
    `manapy rdma run` (of `manapy`) with an agent of its own. `wait`: seconds without a path that end a connection
    (MANAPY_SHIFT_WAIT). Messages come about every PAUSE ms on each queue pair, unless the options say otherwise."""
    queue_pairs = ["-q", pairs] if pairs > 1 else []
    env = {"MANAPY_SHIFT_VERBOSE": "1"} | ({} if wait is None else {"MANAPY_SHIFT_WAIT": f"{wait:.0f}"})
    before = [] if job is None else inside(backups, job, manapy)
    env |= {} if before else environment(vm, backups)
    endless = ["-n", 10**9, "--progress", 10, "--pause", PAUSE]
    pair = Pair.start(vm, program, *endless, *queue_pairs, *options, inside=before, env=env)
    wait_event(pair, "protected", pairs)
    return pair


def events(process: GuestProcess, name: str | None = None) -> list[dict[str, Any]]:
    """The events that SHIFT has reported in this process, oldest first; only those with this name."""
    prefix = "manapy shift: "
    lines = [line[len(prefix) :].partition(" ")[2] for line in process.stderr.splitlines() if line.startswith(prefix)]
    found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    return [event for event in found if name in (None, event["event"])]


def messages(process: GuestProcess) -> list[str]:
    """Lines on standard error that are not events."""
    return [line for line in process.stderr.splitlines() if '"event":' not in line]


def count(process: GuestProcess, name: str) -> int:
    """The number of events of this name in this process."""
    return process.stderr.count(f'"event":"{name}"')


def wait_event(pair: Pair, name: str, times: int = 1, timeout: float = PATIENCE) -> None:
    """Wait until both processes have reported the event so often. Raises VMError if they don't."""
    for process in pair.both:
        with process.vm.changed:
            process.vm.changed.wait_for(
                lambda process=process: count(process, name) >= times or process.poll() is not None, timeout
            )
        if count(process, name) < times:
            raise VMError(f"{name} not {times} times\n{process.report()}")


def finish(pair: Pair) -> None:
    """Both end without an error, and SHIFT has reported no problem except slowness. Raises VMError otherwise."""
    pair.stop_sending()
    for process in pair.both:
        process.wait_for("\nok\n")
        problems = [line for line in messages(process) if not any(slow in line for slow in SLOW)]
        if process.wait() != 0 or problems:
            raise VMError(f"ended with {process.returncode}, messages: {problems}\n{process.report()}")
