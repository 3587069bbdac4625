"""Kinds of memory and of descriptors that are saved in a way of their own, or refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from jobs import Job

WAITING = """
import ctypes, mmap, os, sys, time
def wait(say="ready", suffix=""):
    print(say, flush=True)
    while not os.path.exists(os.environ["STATE_GO"] + suffix): time.sleep(0.005)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
"""


def begin(job: Job, *command: str | Path, options: tuple[str, ...] = ()) -> Path:
    """Start a job, and wait until it says "ready". It goes on when the returned file exists."""
    go = job.where / "go"
    job.env["STATE_GO"] = str(go)
    job.start(*command, options=options)
    job.wait_for("ready")
    return go


def through_restart(job: Job, text: str, options: tuple[str, ...] = ()) -> str:
    """The output of a Python program that is checkpointed and killed where it waits, and restarted."""
    go = begin(job, sys.executable, "-c", WAITING + text, options=options)
    job.checkpoint()
    job.kill()
    job.restart()
    go.touch()
    return job.finish()


# ---- descriptors ----


def test_expirations_of_a_timer_that_nobody_has_read(make_job: Callable[..., Job]) -> None:
    """The kernel counts those of the past only when somebody asks."""
    output = through_restart(
        make_job(1),
        """
class Timer(ctypes.Structure): _fields_ = [(name, ctypes.c_long) for name in ("every", "every_ns", "first", "ns")]
fd = libc.timerfd_create(1, 0)
assert libc.timerfd_settime(fd, 0, ctypes.byref(Timer(0, 1000000, 0, 1000000)), None) == 0
time.sleep(1)
wait()
print("expired", int.from_bytes(os.read(fd, 8), "little"))
""",
    )
    assert int(output.split("expired ")[1]) >= 900


# ---- memory ----
