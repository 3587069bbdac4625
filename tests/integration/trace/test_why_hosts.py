"""`manapy why` and `manapy trace` on a job of several hosts: emulated nodes, each with its own name, network and
/dev/shm. No ssh works between them. The agents of the job reach them, or another remote shell (RSH)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import emulated
import pytest
import verdicts
from emulated import NODES, TOOLS, inside
from jobs import BIN, PATIENCE, PROGRAMS, Job, manapy
from waiting import until

PIPELINE = BIN.parent / "lib" / "manapy" / "osu_bench" / "trace" / "pipeline.py"
RSH = str(TOOLS / "nodes-launch")
HERE, THERE = NODES
RANKS = 3  # rank 0 is on the first node, ranks 1 and 2 on the other


@pytest.fixture
def make_job_there(make_job: Callable[..., Job], nodes: None) -> Callable[[int], Job]:
    """Return a function that makes a job with so many ranks. All except the first one are on the other node."""
    return lambda ranks: make_job(
        ranks,
        mpirun=[*emulated.mpirun(HERE, f"{HERE}:1,{THERE}:{ranks - 1}"), "-disable-auto-cleanup"],
        inside=inside(HERE),
        env={"UCX_TLS": "tcp,self"},
    )


@pytest.fixture
def job(make_job_there: Callable[[int], Job]) -> Job:
    return make_job_there(RANKS)


def why(job: Job, which: Path | None = None, *options: str) -> tuple[int, dict[str, Any], str]:
    """Ask on the first node. Returns exit code, data, and additional messages."""
    return verdicts.why(which or job.dir, *options, inside=inside(HERE))


def hung(job: Job, state: str = "hung", *options: str) -> dict[str, Any]:
    """Return the verdict, as soon as it is HUNG. The only other verdicts allowed are on ranks that MPI ends because one
    has died."""
    first, *others = verdicts.until_hung(job, lambda: why(job, None, *options), state)
    assert all(other["cause"] == first["cause"] == "dead process" for other in others), (first, others)
    return first


def test_a_rank_stuck_on_the_other_host(job: Job, tmp_path: Path) -> None:
    """Its process is seen on that host, through the agent and by a remote shell. The records kept on disk give the same
    verdict for all hosts. No rank is accused because its host can't be reached."""
    job.start_python("trace/stuck.py", "spin")
    job.wait_for("stuck")
    verdict = hung(job, "late")
    assert verdict["rank"] == 1 and verdict["cause"] == "compute", verdict
    assert f"rank 1 ({THERE})" in verdict["sentence"] and "busy in user code" in verdict["sentence"], verdict

    verdict = hung(job, "late", "--rsh", RSH)
    assert verdict["rank"] == 1 and verdict["cause"] == "compute", verdict

    done = manapy("trace", "record", job.dir, "--for", "1s", "--out", tmp_path / "saved", inside=inside(HERE))
    assert f"of {RANKS} ranks" in done.stdout, (done.stdout, done.stderr)
    code, said, _ = why(job, tmp_path / "saved")
    assert code == 3 and said["verdicts"][0]["rank"] == 1, said

    shown = json.loads(manapy("trace", "top", job.dir, "--json", inside=inside(HERE)).stdout)
    assert [(row["rank"], row["host"]) for row in shown["ranks"]] == [(0, HERE), (1, THERE), (2, THERE)], shown
    assert shown["ranks"][1]["state"] == "awaited" and shown["verdicts"][0]["rank"] == 1, shown

    code, said, errors = why(job, None, "--rsh", "false")
    assert code == 1 and all(verdict["rank"] is None for verdict in said["verdicts"]), said
    assert f"{THERE} cannot be reached; nothing is known of its ranks: false ended with 1" in errors
    assert said["unreachable"] == {THERE: "false ended with 1"}, said
    assert "rank 1, which has no trace" in said["verdicts"][0]["sentence"], said


def test_stopped_and_killed_on_the_other_host(job: Job) -> None:
    job.start_python("trace/stuck.py", "healthy")
    job.wait_for("going on")
    code, said, errors = why(job)
    assert (code, said["state"]) == (1, "unknown") and said["verdicts"][0]["sentence"].startswith("nobody is stuck"), (
        said,
        errors,
    )
    assert not errors, "clocks were compared"
    os.kill(job.pids()[2], signal.SIGSTOP)
    verdict = hung(job)
    assert (verdict["rank"], verdict["cause"]) == (2, "stopped process"), verdict
    os.kill(job.pids()[2], signal.SIGKILL)
    # Wait until the coordinator has noted which rank died first. MPI may at once end another rank of that host, and the
    # agent, which ends with the job, may notice both together: then nobody can tell, and rank 2 is named as the one
    # that may have ended the job.
    until(lambda: any(_names(said, 2) for said in why(job, None, "--rsh", RSH)[1]["verdicts"]), job.report)


def _names(said: dict[str, Any], rank: int) -> bool:
    """Does the verdict say that this rank is dead, or that it may have ended the job?"""
    may_have = [text for text in said["evidence"] if "it may have ended the job" in text]
    return (said["rank"], said["cause"]) == (rank, "dead process") or any(f"rank {rank} " in text for text in may_have)


def test_without_manapy_launch_hosts_are_named(job: Job) -> None:
    """A command on a host without processes of the job sees the whole job."""
    name = job.where / "traced"
    program = [sys.executable, PROGRAMS / "trace/stuck.py", "sleep"]
    job.spawn(
        [
            *job.inside,
            BIN / "manapy",
            "trace",
            "run",
            "--family",
            "mpich",
            "--name",
            name,
            "--",
            *job.mpirun[len(job.inside) :],
            "-n",
            str(RANKS),
            *program,
        ]
    )
    job.wait_for("stuck")
    (verdict,) = verdicts.until_hung(job, lambda: verdicts.why(name, "--hosts", ",".join(NODES), "--rsh", RSH))
    assert verdict["rank"] == 1 and "asleep outside MPI" in verdict["sentence"], verdict


def test_a_rank_that_waits_for_its_processor_on_the_other_host(
    make_job_there: Callable[[int], Job], tmp_path: Path
) -> None:
    """It shares its processor with busy processes. Its waits are sampled on its host, and the command on the first node
    reports them. Neither the rank nor the network to it is called slow."""
    plan = "pp=2,micro=4"
    job = make_job_there(2)
    job.start(
        sys.executable,
        PIPELINE,
        "--schedule",
        plan,
        "--iterations",
        "1000000",
        "--hidden",
        "256",
        "--fault",
        verdicts.starve(1),
    )
    job.wait_for("fault ")
    with verdicts.watched(tmp_path / "said", "--schedule", plan, job.dir, inside=inside(HERE)) as told:
        job.wait_for(lambda _: any(verdict["state"] == "slow" for verdict in told()))
    # On a busy machine it gets so little of its processor that it is late, too.
    causes = {(verdict["state"], verdict["cause"]) for verdict in told() if verdict["state"] != "late"}
    assert causes == {("slow", "starved processor")}, told()
    assert {verdict["rank"] for verdict in told() if verdict["state"] == "late"} <= {1}, told()
    assert any(f"rank 1 ({THERE}) waits for a processor" in verdict["sentence"] for verdict in told()), told()


@pytest.mark.parametrize(("ranks", "plan"), [(3, "pp=3,micro=1"), (2, "pp=2,micro=4")])
def test_a_link_that_becomes_slow(ranks: int, plan: str, make_job_there: Callable[[int], Job]) -> None:
    """During training the network between the nodes becomes slow. Ranks 1 and 2 are on one node and aren't affected.
    With several micro-batches each message waits for the previous one."""
    job = make_job_there(ranks)
    # a message has 256 KB
    job.start(
        sys.executable, PIPELINE, "--schedule", plan, "--iterations", "1000000", "--hidden", "128", "--batch", "512"
    )
    job.wait_for(lambda text: text.count("\n") > 30)
    subprocess.run([TOOLS / "nodes", "shape", "4mbit", "32kb", *NODES], check=True)
    deadline = time.monotonic() + PATIENCE
    while True:
        _, said, _ = why(job, None, "--rsh", RSH, "--schedule", plan)
        found = [
            verdict
            for verdict in said["verdicts"]
            if verdict["cause"] == "network" and {verdict["rank"], verdict["peer"]} == {0, 1}
        ]
        if found:
            break
        assert time.monotonic() < deadline, (said, job.report())
    assert said["state"] == "slow" and "the network between rank" in found[0]["sentence"], said
