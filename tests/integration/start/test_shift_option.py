"""--shift of manapy-launch and manapy-restart on a host without RNICs. tests/rdma/test_mpi.py tests it with RNICs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import BIN, PROGRAMS, Job, launch, manapy
from manapy.rdma import client
from rdma_ranks import BACKUPS, ask_for_agent, place_of, program

REPORT = (
    "import os, sys; sys.stdout.write(str([v for v in os.environ if 'SHIFT' in v]) + '\\n'); from mpi4py import MPI; "
    "sys.stdout.write(str('shift' in open('/proc/self/maps').read()) + '\\n')"
)

pytestmark = pytest.mark.skipif(any(Path("/sys/class/infiniband").glob("*")), reason="this host has RNICs")


def report(shift: str, where: Path, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    """A job that reports what it sees of SHIFT."""
    environment = {**os.environ, "MANAPY_SHIFT_DIR": str(where / "agents")}
    environment.pop("MANAPY_SHIFT_KV", None)
    return launch(
        "--dir", where / "job", f"--shift={shift}", sys.executable, "-c", REPORT, ranks=ranks, env=environment
    )


@pytest.mark.parametrize("shift", ["auto", "off"])
def test_nothing_happens(shift: str, tmp_path: Path) -> None:
    done = report(shift, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["False", "False", "['MANAPY_SHIFT_DIR']", "['MANAPY_SHIFT_DIR']"]
    assert not (tmp_path / "agents").exists()


def test_required_and_impossible_is_one_line(tmp_path: Path) -> None:
    done = report("require", tmp_path, ranks=4)
    assert done.returncode != 0 and "False" not in done.stdout
    assert [line for line in done.stderr.splitlines() if "manapy" in line] == [
        "manapy-launch: --shift require: this host has no RNIC"
    ]


def test_restart(make_job: Callable[..., Job]) -> None:
    """The same for a new lower half; the option is passed on to it."""
    job = make_job(2).start(
        "/bin/sh",
        "-c",
        f"exec {sys.executable} {PROGRAMS / 'steps/heat2d.py'} --n 64 --steps 400 --every 20 --pause 0.03"
        " --out field.npy",
        options=["--shift", "auto"],
    )
    job.wait_for("step 40 ")
    job.checkpoint()
    job.kill()
    failed = manapy("restart", job.dir, "--mpirun", BIN / "mpirun", "--shift", "require")
    assert failed.returncode != 0
    assert [line for line in failed.stderr.splitlines() if "manapy" in line] == [
        "manapy-restart: --shift require: this host has no RNIC"
    ]
    job.restart()
    assert job.wait() == 0


def test_what_a_rank_is_told_without_a_coordinator(tmp_path: Path) -> None:
    """It is told the backups and the agent, which stays as long as the rank does. The ranks of one job share an agent;
    different jobs don't. The coordinator is lost, so the agents are processes of their own."""
    environment = {"MANAPY_SHIFT_DIR": str(tmp_path / "a")}
    sleeper = subprocess.Popen(["sleep", "100"])
    try:
        for name in "xy":
            (tmp_path / name).mkdir()
            (tmp_path / name / "secret").write_bytes(bytes(32))
        answers = [ask_for_agent(tmp_path / name, pid=sleeper.pid, env=environment) for name in "xxy"]
        assert (
            answers[0] == answers[1]
            and [answer[0] for answer in answers] == ["OK"] * 3
            and answers[0][3] == BACKUPS["MANAPY_SHIFT_BACKUP"]
        )
        assert answers[0][2].startswith("x-") and answers[2][2].startswith("y-")
        found = json.loads(manapy("rdma", "status", "--json", env=environment).stdout)
        assert sorted(status["job"] for status in found) == sorted({answer[2] for answer in answers})
        assert {status["store"].partition(":")[0] for status in found} == {"sqlite"}
    finally:
        sleeper.kill()
        sleeper.wait()
        for status in json.loads(manapy("rdma", "status", "--json", env=environment).stdout):
            os.kill(status["pid"], 15)


def test_a_coordinator_that_cannot_be_asked_is_an_answer(tmp_path: Path) -> None:
    """Perhaps it lives: another agent would not find the keys of other hosts."""
    answer = ask_for_agent(tmp_path / "x", env={"MANAPY_SHIFT_DIR": str(tmp_path / "a")})
    assert answer[0] == "ERROR" and str(tmp_path / "x" / "secret") in answer[1] and "No such file" in answer[1]


def test_unusable_names_are_an_answer(tmp_path: Path) -> None:
    answer = ask_for_agent(tmp_path / "x", env={"MANAPY_SHIFT_BACKUP": "a b"})
    assert answer[0] == "ERROR" and len(answer) == 2 and "\n" not in answer[1]


def solving(make_job: Callable[..., Job]) -> Job:
    """A job that runs until it is killed."""
    options = "--n 64 --steps 100000 --every 20 --pause 0.03".split()
    job = make_job(2).start_python("steps/heat2d.py", *options)
    job.wait_for("step 20 ")
    return job


def test_failover_is_followed_by_a_checkpoint(
    make_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's agent asks for the checkpoint of a real job; the test reports that traffic has fallen back. Many events
    at once are one occasion, and other events are none."""
    monkeypatch.setenv("MANAPY_SHIFT_DIR", str(tmp_path / "a"))
    job = solving(make_job)
    where = place_of(ask_for_agent(job.dir, "--guard"))
    with program(where) as ask, client.Connection(where) as watching:
        assert ask('EVENT {"event": "protected", "qp": 1}') == "OK"
        for qp in range(5):
            assert ask(f'EVENT {{"event": "fallback", "qp": {qp}}}') == "OK"
        said = next(event for event in watching.watch(0) if event["event"].startswith("checkpoint"))
        assert said["event"] == "checkpoint", said
        assert ask('EVENT {"event": "fallback", "qp": 7}') == "OK"  # the same occasion
    with client.Connection(where) as watching:
        again = next(event for event in watching.watch(said["seq"]) if event["event"].startswith("checkpoint"))
    assert again["said"] == said["said"]
    assert [path.name for path in sorted(job.dir.glob("ckpt-*"))] == ["ckpt-000001"] and said["said"].endswith(
        "/ckpt-000001"
    )
    job.kill()
    job.restart()
    job.wait_for("residual")
    job.kill()


def test_a_recent_checkpoint_will_do(make_job: Callable[..., Job]) -> None:
    job = solving(make_job)
    first = job.checkpoint()
    assert manapy("checkpoint", job.dir, "--unless-within", "10m").stdout.strip() == str(first)
    second = manapy("checkpoint", job.dir, "--unless-within", "0s").stdout.strip()
    assert second != str(first)
    refused = manapy("checkpoint", job.dir, "--unless-within", "1m", "--then", "exit")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    job.kill()
