"""`manapy why` on real jobs: it names the stuck rank and the cause, and accuses no rank of a job that makes
progress."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import verdicts
from jobs import BIN, PROGRAMS, Job, manapy
from waiting import until, until_gone

pytestmark = pytest.mark.mpi

RANKS = 3
BENCH = Path(__file__).resolve().parents[3] / "osu_bench" / "trace"


def why(job: Job, *options: str) -> tuple[int, dict[str, Any]]:
    """Return exit code and data."""
    code, said, _ = verdicts.why(job.dir, *options)
    return code, said


def hung(job: Job, *options: str, state: str = "hung") -> dict[str, Any]:
    """Return the verdict, as soon as it is HUNG."""
    (verdict,) = verdicts.until_hung(job, lambda: verdicts.why(job.dir, *options), state)
    return verdict


def late(job: Job, *options: str) -> dict[str, Any]:
    """Return the verdict, as soon as it is LATE."""
    return hung(job, *options, state="late")


def watch(job: Job, *options: str) -> subprocess.CompletedProcess[str]:
    """Run `manapy why --watch` until it ends, in the job's directory."""
    return manapy("why", job.dir, "--watch", *options, cwd=job.where)


@pytest.fixture
def job(tmp_path: Path) -> Any:
    job = Job(tmp_path, RANKS, mpirun=[BIN / "mpirun", "-disable-auto-cleanup"])
    try:
        yield job
    finally:
        job.end()


@pytest.mark.parametrize(
    ("kind", "state", "rank", "causes", "says"),
    [
        ("spin", "late", 1, ("compute",), "busy in user code"),
        ("sleep", "hung", 1, ("compute",), "asleep outside MPI, and has done nothing for"),
        ("thread", "late", 1, ("compute",), "has not called MPI_Recv from rank 0, tag 7"),
        ("skip", "hung", 1, ("missing call",), "never called MPI_Recv from rank 0, tag 7"),
        ("mismatch", "hung", 1, ("mismatched calls", "missing call"), "MPI_Barrier"),
        pytest.param("deadlock", "hung", None, ("deadlock",), "MPI_Recv from rank 1, tag 8", marks=pytest.mark.quick),
    ],
)
def test_the_rank_and_the_cause(
    job: Job, kind: str, state: str, rank: int | None, causes: tuple[str, ...], says: str
) -> None:
    job.start_python("trace/stuck.py", kind)
    job.wait_for("stuck")
    verdict = hung(job, state=state)
    assert verdict["rank"] == rank and verdict["cause"] in causes and says in verdict["sentence"], verdict


@pytest.mark.parametrize(
    ("kind", "rank", "cause", "says"),
    [
        (
            "collective",
            1,
            "compute",
            "has not called MPI_Start of MPI_Allreduce_init on MPI_COMM_WORLD (call 2 there, start 6)",
        ),
        ("messages", 1, "compute", "has not called MPI_Send to rank 2, tag 7"),
        ("fence", 1, "compute", "has not called MPI_Win_fence"),
        ("file", 1, "compute", "has not called MPI_File call on data (call 6 there)"),
        ("lock", 1, "compute", "has not called MPI_Win_unlock of rank 0"),
        ("locks", None, "deadlock", "MPI_Win_lock of rank 2"),
        (
            "overwritten",
            1,
            "compute",
            "has not called MPI_Start of MPI_Allreduce_init on MPI_COMM_WORLD (call 2 there, start 6)",
        ),
        ("post", 1, "compute", "has not called MPI_Win_post for rank 0 on the window"),
        ("complete", 1, "compute", "has not called MPI_Win_complete for rank 2 on the window"),
    ],
)
def test_calls_that_are_made_seldom(job: Job, kind: str, rank: int | None, cause: str, says: str) -> None:
    job.start_python("trace/stuck_calls.py", kind)
    job.wait_for("stuck")
    verdict = hung(job) if cause == "deadlock" else late(job)
    assert (verdict["rank"], verdict["cause"]) == (rank, cause) and says in verdict["sentence"], verdict


def test_a_watch_says_what_is_new_runs_a_command_and_ends_the_job(job: Job) -> None:
    job.start_python("trace/stuck.py", "sleep")
    job.wait_for("stuck")
    done = watch(job, "--patience", "0", "--run", 'echo "$MANAPY_SENTENCE" >> said', "--on-hang", "kill")
    assert done.returncode == 4, done.stderr
    assert "rank 1" in done.stdout and done.stdout.endswith("the job was ended\n")
    *earlier, last = (job.where / "said").read_text().splitlines()
    assert "it never called MPI_Recv from rank 0, tag 7" in last
    assert all(line.startswith("rank 1 (") and " is late, " in line for line in earlier)  # on a busy machine
    job.wait()


def on_hang(job: Job, what: str) -> tuple[int, str, str]:
    """Return exit code, output and errors of a watch that does `what` when the job is stuck."""
    done = watch(job, "--patience", "0", "--on-hang", what)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def test_a_job_that_is_stuck_is_saved_and_its_restart_is_stuck_at_the_same_place(job: Job) -> None:
    job.ranks = 2
    job.start_python("trace/stuck.py", "deadlock")
    job.wait_for("stuck")
    code, said, _ = on_hang(job, "checkpoint")
    assert code == 4 and "checkpoint: " in said
    saved = Path(said.split("checkpoint: ")[1].strip())
    job.kill()
    job.restart(saved)
    # Until the new ranks have started, the verdict is on the killed job.
    job.wait_for(lambda _: why(job)[1]["verdicts"][0]["cause"] != "dead process")
    assert hung(job)["cause"] == "deadlock"


def test_a_job_whose_ranks_are_in_a_collective_that_one_never_comes_to_is_not_saved_but_said_why(job: Job) -> None:
    job.start_python("trace/stuck_calls.py", "fence", "asleep")
    job.wait_for("stuck")
    code, _, said = on_hang(job, "checkpoint")
    assert code == 1 and "no checkpoint can be made in 20 s: rank 1 has computed for" in said


def test_a_job_with_a_stopped_rank_is_not_saved_but_said_why(job: Job) -> None:
    job.start_python("trace/stuck.py", "healthy")
    job.wait_for("going on")
    pid = job.pids()[2]
    os.kill(pid, signal.SIGSTOP)
    code, _, said = on_hang(job, "checkpoint")
    assert (
        code == 1
        and f"no checkpoint can be made: rank 2 ({os.uname().nodename})" in said
        and f"{pid} is stopped" in said
    )
    os.kill(pid, signal.SIGCONT)
    (job.where / "end").touch()
    job.finish()


def test_kill_ends_the_job_that_is_stuck_and_no_other(job: Job, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Job(tmp_path / "other", 2, mpirun=job.mpirun)
    try:
        for one in (job, other):
            one.start_python("trace/stuck.py", "healthy")
        for one in (job, other):
            one.wait_for("going on")
        pids = job.pids()
        os.kill(pids[2], signal.SIGSTOP)
        code, said, _ = on_hang(job, "kill")
        assert code == 4 and said.endswith("the job was ended\n")
        assert job.wait() != 0
        until_gone(pids)
        (other.where / "end").touch()
        other.finish()
    finally:
        other.end()


def test_kill_ends_a_job_that_is_only_recorded(job: Job) -> None:
    job.spawn(
        [
            BIN / "manapy",
            "trace",
            "run",
            "--name",
            job.dir,
            "--",
            *job.mpirun,
            "-n",
            "3",
            sys.executable,
            PROGRAMS / "trace/stuck.py",
            "sleep",
        ]
    )
    try:
        job.wait_for("stuck")
        code, _, said = on_hang(job, "checkpoint")
        assert code == 2 and "only a job under manapy-launch can be checkpointed" in said
        code, said, _ = on_hang(job, "kill")
        assert code == 4 and said.endswith("the job was ended\n")
        assert job.wait() != 0
    finally:
        job.process.terminate()


def test_a_training_job_without_a_word_on_its_schedule(job: Job) -> None:
    job.ranks = 4
    fault = "spin:rank=2,iteration=5,micro=3,phase=backward"
    job.start(
        sys.executable, BENCH / "pipeline.py", "--schedule", "pp=4,micro=8", "--iterations", "10", "--fault", fault
    )
    job.wait_for("fault spin")
    for options in ((), ("--schedule", "pp=4,micro=8")):
        verdict = late(job, *options)
        place = (verdict["rank"], verdict["phase"], verdict["micro"], verdict["iteration"])
        assert place == (2, "backward", 3, 5), verdict


def stop(job: Job, pid: int) -> None:
    """Stop rank 2. Returns when the verdict says so."""
    os.kill(pid, signal.SIGSTOP)
    verdict = hung(job)
    assert (verdict["rank"], verdict["cause"]) == (2, "stopped process"), verdict


def test_stopped_going_on_and_killed(job: Job) -> None:
    job.start_python("trace/stuck.py", "healthy")
    job.wait_for("going on")
    # All messages go from one rank to the next. No rank is stuck, and they do not show whether one is slow.
    for _ in range(2):
        code, said = why(job)
        assert (code, said["state"]) == (1, "unknown") and said["verdicts"][0]["sentence"].startswith(
            "nobody is stuck"
        ), said
        job.checkpoint()
    pid = job.pids()[2]
    stop(job, pid)
    os.kill(pid, signal.SIGCONT)
    until(lambda: why(job)[0] != 4, "another verdict")
    stop(job, pid)  # so that all wait for it when it is killed: otherwise another rank may have ended the job
    os.kill(pid, signal.SIGKILL)
    verdict = hung(job)
    assert (verdict["rank"], verdict["cause"]) == (2, "dead process"), verdict


def test_a_rank_that_writes_is_late_and_that_is_taken_back(job: Job) -> None:
    """The rank writes twice. The second time the verdict isn't printed again. No process is killed."""
    job.start_python("trace/late.py")
    job.wait_for("late")
    done = watch(job, "--every", "200ms", "--patience", "0", "--on-hang", "kill", "--run", "touch seen")
    assert done.returncode != 4 and "Traceback" not in done.stderr, (done.stdout, done.stderr)
    said = [line for line in done.stdout.splitlines() if " late, outside MPI for " in line]
    assert len(said) == 2, done.stdout
    assert said[0].startswith(f"rank 0 ({os.uname().nodename}) is late") and "has not called MPI_Barrier" in said[0]
    assert said[1].startswith("withdrawn: rank 0 goes on after ") and said[1].endswith(said[0])
    job.finish()


def test_a_command_that_takes_too_long_is_ended(job: Job) -> None:
    job.start_python("trace/stuck.py", "deadlock")
    job.wait_for("stuck")
    done = watch(job, "--every", "200ms", "--run", "sleep 1000", "--run-limit", "500ms", "--on-hang", "kill")
    assert done.returncode == 4 and "'sleep 1000' was ended: it took longer than " in done.stderr, done.stderr
    job.wait()
