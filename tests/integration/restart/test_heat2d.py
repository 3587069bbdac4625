"""The main purpose of manapy: a solver is checkpointed, killed and continued, and no bit of its result changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import BIN, Job, manapy
from solver import LAST, SOLVER, after, goes_further, step


def solve(job: Job, *options: str) -> Path:
    """Start the solver. It stays in its last steps until the returned file exists, so a test has as much time as it
    needs."""
    go = job.hold(LAST)
    job.start_python("steps/heat2d.py", *SOLVER, "--out", "field.npy", options=options)
    return go


def residuals(job: Job) -> dict[int, str]:
    """The residuals by step over all runs. A step that two runs report must be equal in both."""
    found: dict[int, str] = {}
    for run in range(len(job.runs)):
        for line in job.output(run).splitlines():
            words = line.split()
            if line.startswith("step ") and len(words) == 4:
                assert found.setdefault(int(words[1]), words[3]) == words[3], f"step {words[1]} differs between runs"
    return found


def test_undisturbed_under_manapy(make_job: Callable[..., Job], undisturbed: bytes) -> None:
    job = make_job(4).start_python("steps/heat2d.py", *SOLVER, "--out", "field.npy")
    job.finish()
    assert (job.where / "field.npy").read_bytes() == undisturbed


def test_checkpoint_and_go_on(make_job: Callable[..., Job], undisturbed: bytes) -> None:
    job = make_job(4)
    go = solve(job)
    for _ in range(3):
        goes_further(job)
        checkpoint = job.checkpoint()
        assert (job.dir / "latest").resolve() == checkpoint
        assert manapy("verify", checkpoint).returncode == 0
    go.touch()
    job.finish()
    assert (job.where / "field.npy").read_bytes() == undisturbed


@pytest.mark.parametrize("restart", [pytest.param("command", marks=pytest.mark.quick), "mpirun"])
def test_kill_and_restart(make_job: Callable[..., Job], undisturbed: bytes, restart: str) -> None:
    """Each rank has a thread of numpy's."""
    job = make_job(4, env={"OPENBLAS_NUM_THREADS": "2"})
    go = solve(job)
    job.wait_for(after(200))
    job.checkpoint()
    goes_further(job)
    job.kill()
    assert not (job.where / "field.npy").exists()
    go.touch()
    (job.restart_by_command() if restart == "command" else job.restart()).finish()
    assert (job.where / "field.npy").read_bytes() == undisturbed
    residuals(job)


def test_what_killed_ranks_leave(make_job: Callable[..., Job]) -> None:
    """The MPI library's shared memory remains in /dev/shm. The end of the test's job removes it."""
    job = make_job(2)
    solve(job)
    job.wait_for(after(1))
    job.kill()
    left = set(job.left)
    assert left and all(file.exists() for file in left)
    job.end()
    assert not any(file.exists() for file in left)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_ten_generations(make_job: Callable[..., Job], undisturbed: bytes) -> None:
    job = make_job(4)
    go = solve(job)
    last = 0
    for generation in range(10):
        goes_further(job, last)
        checkpoint = job.checkpoint()
        assert checkpoint.name == f"ckpt-{generation + 1:06d}"
        last = step(job.output())
        job.kill()
        job.restart()
    go.touch()
    job.finish()
    assert (job.where / "field.npy").read_bytes() == undisturbed
    assert sorted(residuals(job)) == list(range(20, 1001, 20))


def test_exit_after_checkpoint(make_job: Callable[..., Job], undisturbed: bytes) -> None:
    job = make_job(4)
    go = solve(job)
    job.wait_for(after(200))
    job.checkpoint("--then", "exit")
    assert job.wait() == 0
    assert not (job.where / "field.npy").exists()
    go.touch()
    job.restart().finish()
    assert (job.where / "field.npy").read_bytes() == undisturbed


def test_older_checkpoint_and_prune(make_job: Callable[..., Job], undisturbed: bytes) -> None:
    job = make_job(2)
    go = solve(job, "--dirty", "off")
    first = None
    for _ in range(3):
        goes_further(job)
        path = job.checkpoint()
        first = first or path
    job.kill()
    assert first is not None
    job.restart(first)
    go.touch()
    job.finish()
    assert (job.where / "field.npy").read_bytes() == undisturbed
    assert manapy("prune", job.dir, "--keep", "1").returncode == 0
    assert [p.name for p in sorted(job.dir.glob("ckpt-*"))] == ["ckpt-000003"]


DEBIAN_MPIRUN = Path("/usr/bin/mpirun.mpich")


@pytest.mark.skipif(not DEBIAN_MPIRUN.exists(), reason="Debian's MPICH is not installed (apt install mpich)")
def test_under_another_mpich_and_back(make_job: Callable[..., Job], undisturbed: bytes) -> None:
    job = make_job(2)
    go = solve(job)
    job.wait_for(after(200))
    job.checkpoint()
    job.kill()
    for mpirun in (DEBIAN_MPIRUN, BIN / "mpirun"):
        job.mpirun = [mpirun]
        job.restart()
        job.wait_for(after(0))
        mapped = {
            line.split()[-1] for pid in job.pids()[:1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
        }
        library = os.path.realpath(
            "/usr/lib/x86_64-linux-gnu/libmpich.so.12"
            if mpirun == DEBIAN_MPIRUN
            else BIN.parent / "lib" / "libmpi.so.12"
        )
        assert library in mapped
        job.checkpoint()
        if mpirun == DEBIAN_MPIRUN:
            job.kill()
    go.touch()
    job.finish()
    assert (job.where / "field.npy").read_bytes() == undisturbed
