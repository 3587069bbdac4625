"""There is no memory for copies of the program's messages (tests/programs/mpi/no_memory.c): the call or the checkpoint
fails, but not the job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from jobs import PROGRAMS, Job, manapy, oks


def test_the_call_fails_or_the_checkpoint(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    job = make_job(2, env={"MANAPY_DRAIN_SECONDS": "2"})  # after which the other rank is told
    go = job.where / "go"
    job.start(c_program(PROGRAMS / "mpi/no_memory.c"), go)
    job.wait_for(lambda text: text.count("limited") == 2)
    done = manapy("checkpoint", job.dir)
    assert done.returncode == 1
    # the message of the rank that reports first
    said = ("there is no memory for a message in flight", "another rank could not empty the network")
    assert any(line in done.stderr for line in said), done.stderr
    go.touch()
    job.wait_for(lambda text: text.count("free") == 2)
    job.checkpoint()
    job.kill()
    (job.where / "again").touch()
    output = job.restart().finish()
    assert oks(output) == 2 and "FAILED" not in output, output
