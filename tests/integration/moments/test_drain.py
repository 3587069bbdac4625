"""The drain of a checkpoint goes on while anything moves, and gives up when nothing more can come. A checkpoint that is
given up on another rank interrupts waits."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import emulated
import pytest
from compiling import build
from jobs import BIN, PATIENCE, PROGRAMS, Job, manapy, oks
from manapy.bench.shared.cluster import Cluster
from waiting import until

NODES = emulated.names(2)
BITS = 8e6  # of a slow link
NEVER = r"a message from rank 0 cannot be received \(was its communicator freed before\?\)"
PERIOD = 2  # seconds without progress after which a drain gives up


@pytest.fixture
def nodes() -> Iterator[Cluster]:
    with emulated.cluster(NODES, BITS) as nodes:
        yield nodes


@pytest.fixture
def slow_job(make_job: Callable[..., Job], nodes: Cluster) -> Job:
    """A job, not yet started, whose last rank is behind a slow link. In the ranks' votes no rank talks to the rank to
    which it sends."""
    env = {"UCX_TLS": "tcp,self", "UCX_RNDV_THRESH": "8192", "MANAPY_DRAIN_SECONDS": str(PERIOD)}
    return make_job(
        4, mpirun=emulated.mpirun(NODES[0], f"{NODES[0]}:3,{NODES[1]}:1"), inside=emulated.inside(NODES[0]), env=env
    )


def start(job: Job, megabytes: int, how: str) -> Path:
    """Start slow_message.py, and wait until all ranks wait for the returned file."""
    go = job.where / "go"
    job.start_python("moments/slow_message.py", str(megabytes), how, go)
    job.wait_for(lambda text: all(f"rank {rank}: tick" in text for rank in range(job.ranks)))
    return go


def ends_well(job: Job) -> None:
    assert oks(job.finish()) == job.ranks


@pytest.mark.slow
@pytest.mark.parametrize("how", ["asked", "unasked"])
def test_a_slow_message_is_waited_for(slow_job: Job, how: str) -> None:
    """The message takes several periods in which nothing is completed."""
    go = start(slow_job, 4 * PERIOD, how)
    slow_job.checkpoint()
    slow_job.kill()
    go.touch()
    ends_well(slow_job.restart())


def test_what_nobody_can_receive_is_given_up(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    """All ranks give up together, and the program goes on. The next checkpoint ends in the same way."""
    job = make_job(3, env={"MANAPY_DRAIN_SECONDS": str(PERIOD)})
    go = job.where / "go"
    job.start(c_program(PROGRAMS / "moments/never_received.c"), go)
    job.wait_for(lambda text: text.count("waiting") == job.ranks)
    for _ in range(2):
        done = manapy("checkpoint", job.dir)
        assert done.returncode == 1
        # the message of the rank that reports first
        assert re.search(f"rank 1: {NEVER}|rank [02]: another rank could not empty the network", done.stderr), (
            done.stderr
        )
    go.touch()
    ends_well(job)


# ---- checkpoints that another rank gives up

AT_ONCE = 25.0  # seconds; a wait that isn't interrupted takes much longer
# A coordinator that treats a step as failed as soon as a file exists.
IMPATIENT = """#!{python}
import asyncio, os, sys
from manapy.ckpt.coordinator import flow as _flow
from manapy.cli import main

begin = _flow.Flow._begin_step

async def look(flow):
    while flow.phase is _flow.Phase.{step} and not os.path.exists({file!r}):
        await asyncio.sleep(0.02)
    if flow.phase is _flow.Phase.{step}:
        flow.fail("the test wants it")

def begin_step(flow, phase, answer):
    step = begin(flow, phase, answer)
    if phase is _flow.Phase.{step}:
        flow.look = asyncio.ensure_future(look(flow))
    return step

_flow.Flow._begin_step = begin_step
sys.exit(main())
"""


def be_impatient(job: Job, step: str) -> Path:
    """Give the job, which isn't started yet, such a coordinator; returns the file."""
    abort, coordinator = job.where / "abort", job.where / "coordinator"
    coordinator.write_text(IMPATIENT.format(python=sys.executable, step=step, file=str(abort)))
    coordinator.chmod(0o755)
    job.env["MANAPY_COMMAND"] = str(coordinator)
    return abort


def ask(job: Job, *options: str) -> subprocess.Popen[str]:
    """Start manapy checkpoint, and don't wait for it."""
    command = [*map(str, job.inside), str(BIN / "manapy"), "checkpoint", str(job.dir), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_phase(job: Job, phase: str) -> None:
    until(lambda: job.status()["phase"] == phase, job.report)


def ticks(text: str) -> list[int]:
    return [text.count(f"rank {rank}: tick") for rank in range(8)]


def goes_on(job: Job) -> None:
    """All ranks go on at once."""
    before = ticks(job.output())
    job.wait_for(
        lambda text: all(now > then for now, then in zip(ticks(text)[: job.ranks], before, strict=False)),
        timeout=AT_ONCE,
    )


@pytest.mark.slow
def test_a_drain_is_interrupted(slow_job: Job, nodes: Cluster) -> None:
    """All ranks leave it while the message is on its way. The next checkpoint, over a faster link, contains the
    message."""
    abort = be_impatient(slow_job, "DRAIN")
    go = start(slow_job, 60, "asked")
    asked = ask(slow_job)
    wait_for_phase(slow_job, "draining messages")
    abort.touch()
    _, errors = asked.communicate(timeout=AT_ONCE)
    assert asked.returncode == 1 and "the test wants it" in errors
    goes_on(slow_job)
    abort.unlink()
    nodes.shape(20 * BITS)
    slow_job.checkpoint()
    slow_job.kill()
    go.touch()
    ends_well(slow_job.restart())


def test_a_stop_is_interrupted(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    """Rank 1's first thread runs hooks and can't be stopped, so both ranks go on. The next checkpoint succeeds."""
    job = make_job(2)
    abort, leave, end = be_impatient(job, "STOP"), job.where / "leave", job.where / "end"
    job.start(c_program(PROGRAMS / "moments/handler_above.c"), leave, end)
    job.wait_for("inside")
    asked = ask(job)
    wait_for_phase(job, "stopping")
    abort.touch()
    _, errors = asked.communicate(timeout=AT_ONCE)
    assert asked.returncode == 1 and "the test wants it" in errors
    abort.unlink()
    leave.touch()
    job.wait_for(lambda text: text.count("outside") == job.ranks)
    job.checkpoint()
    job.kill()
    end.touch()
    ends_well(job.restart())


@pytest.mark.slow
def test_a_thread_that_cannot_be_stopped(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    """The checkpoint fails after a while, and the job goes on."""
    job = make_job(2)
    leave, end = job.where / "leave", job.where / "end"
    job.start(c_program(PROGRAMS / "moments/handler_above.c"), leave, end)
    job.wait_for("inside")
    done = manapy("checkpoint", job.dir)
    assert done.returncode == 1
    assert re.search(r"rank 1: thread \d+ can't be stopped: it stays in a signal handler", done.stderr), done.stderr
    leave.touch()
    end.touch()
    ends_well(job)


def test_the_wait_for_children_is_interrupted(make_job: Callable[..., Job]) -> None:
    """Rank 0 has a child that doesn't end, and reports it at STOP. Rank 1 is waiting for its own child then."""
    job = make_job(2)
    late, end = job.where / "late", job.where / "end"
    sleeps = "#include <unistd.h>\nint main(void) { return (int)sleep(60); }\n"
    sleeper = build(job.where / "sleeper", sleeps, "-static")
    job.start_python("moments/late_children.py", late, end, sleeper)
    job.wait_for(lambda text: all(f"rank {rank}: begins" in text for rank in range(2)))
    asked = ask(job, "--child-grace", "10m")
    wait_for_phase(job, "waiting for a safe moment")
    late.touch()
    _, errors = asked.communicate(timeout=PATIENCE)
    assert asked.returncode == 1 and re.search(
        r"rank 0: child process \d+ is Python's multiprocessing resource tracker", errors
    ), errors
    goes_on(job)
    (job.where / "end-children").touch()
    job.wait_for(lambda text: all(f"rank {rank}: without children" in text for rank in range(2)))
    job.checkpoint()
    job.kill()
    end.touch()
    ends_well(job.restart())
