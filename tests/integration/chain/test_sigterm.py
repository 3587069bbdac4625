"""SIGTERM from outside. In a chain it announces the end of an allocation, and must not end a program that has no
handler for it. Elsewhere everything behaves as natively."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from jobs import BIN, PROGRAMS, Job
from phases import answer, request


def start_in_chain(job: Job, *arguments: str) -> Job:
    """manapy run -- mpirun ... terminated.py. It gives up at the second crash in a row."""
    chain = [BIN / "manapy", "run", "--dir", job.where / "chain", "--max-crashes", "2", "--"]
    job.spawn(
        [
            *chain,
            BIN / "mpirun",
            "-n",
            str(job.ranks),
            BIN / "manapy-launch",
            "--dir",
            job.dir,
            sys.executable,
            PROGRAMS / "steps/terminated.py",
            *arguments,
        ]
    )
    job.wait_for("ready")
    return job


def terminate_ranks(job: Job) -> None:
    """Send SIGTERM to each rank. No rank ends because of it."""
    for pid in job.pids():
        os.kill(pid, signal.SIGTERM)


def later(job: Job) -> Callable[[str], bool]:
    """A condition: the job has made some more steps than now."""
    now = job.output().count("step")
    return lambda text: text.count("step") > now + 5


def test_a_chain_goes_on_until_it_is_saved(make_job: Callable[..., Job]) -> None:
    job = start_in_chain(make_job(2))
    try:
        before = job.pids()
        terminate_ranks(job)
        job.wait_for(later(job))
        job.checkpoint()
        os.kill(before[1], signal.SIGKILL)  # a crash, after which the chain continues
        job.wait_for(later(job))
        assert not set(before) & set(job.pids())
        terminate_ranks(job)  # restarted ranks behave the same
        job.wait_for(later(job))
        (job.where / "STOP").touch()
        assert job.wait() == 1, job.report()  # rank 0 has ended itself by SIGTERM: the second crash
        assert "\nok\n" in job.output(), job.report()
    finally:
        (job.where / "STOP").touch()  # for job.end: the remaining ranks end themselves


def is_halted(pid: int) -> bool:
    """A checkpoint has halted the first thread of a rank: it blocks SIGTERM only then."""
    blocked = int(re.findall(r"^SigBlk:\t(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.M)[0], 16)
    return bool(blocked >> signal.SIGTERM - 1 & 1)


def test_it_may_arrive_during_a_checkpoint(make_job: Callable[..., Job]) -> None:
    job = start_in_chain(make_job(2))
    try:
        pids, hits = job.pids(), 0
        for _ in range(10):
            asked = request(job)
            while asked.poll() is None and not is_halted(pids[0]):
                pass
            if asked.poll() is None:
                hits += 1
                terminate_ranks(job)
            assert answer(asked)[0] == 0, job.report()
        job.wait_for(later(job))
        assert hits and job.pids() == pids
    finally:
        (job.where / "STOP").touch()
    assert job.wait() == 1, job.report()  # as above


def test_handlers_of_the_program_run_in_chains_too(make_job: Callable[..., Job]) -> None:
    job = start_in_chain(make_job(2), "own")
    os.kill(job.pids()[0], signal.SIGTERM)
    assert job.finish().endswith("ok\n")


def test_outside_chains_it_ends_a_rank(make_job: Callable[..., Job]) -> None:
    job = make_job(2).start_python("steps/terminated.py")
    job.wait_for("ready")
    terminate_ranks(job)
    assert job.wait() != 0
    assert "ok" not in job.output()
