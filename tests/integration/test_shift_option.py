"""--shift of manapy-launch and manapy-restart on a host without RNICs. What it does where there are some is in tests/rdma/test_mpi.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import BIN, PROGRAMS, Job, manapy

REPORT = "import os, sys; sys.stdout.write(str([v for v in os.environ if 'SHIFT' in v]) + '\\n'); from mpi4py import MPI; sys.stdout.write(str('shift' in open('/proc/self/maps').read()) + '\\n')"

pytestmark = pytest.mark.skipif(any(Path("/sys/class/infiniband").glob("*")), reason="this host has RNICs")


def launch(shift: str, where: Path, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    """A job that says what it sees of SHIFT."""
    command = [BIN / "mpirun", "-n", str(ranks), BIN / "manapy-launch", "--dir", where / "job", f"--shift={shift}", sys.executable, "-c", REPORT]
    environment = {**os.environ, "MANAPY_SHIFT_DIR": str(where / "agents")}
    environment.pop("MANAPY_SHIFT_KV", None)
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, env=environment)


@pytest.mark.parametrize("shift", ["auto", "off"])
def test_nothing_happens(shift: str, tmp_path: Path) -> None:
    done = launch(shift, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["False", "False", "['MANAPY_SHIFT_DIR']", "['MANAPY_SHIFT_DIR']"]
    assert not (tmp_path / "agents").exists()


def test_required_and_impossible_is_one_line(tmp_path: Path) -> None:
    done = launch("require", tmp_path, ranks=4)
    assert done.returncode != 0 and "False" not in done.stdout
    assert [line for line in done.stderr.splitlines() if "manapy" in line] == ["manapy-launch: --shift require: this host has no RNIC"]


def test_restart(make_job: Callable[..., Job]) -> None:
    """The same for a new lower half; and the option gets there."""
    job = make_job(2).start("/bin/sh", "-c", f"exec {sys.executable} {PROGRAMS / 'heat2d.py'} --n 64 --steps 400 --every 20 --pause 0.03 --out field.npy", options=["--shift", "auto"])
    job.wait_for("step 40 ")
    job.checkpoint()
    job.kill()
    failed = manapy("restart", job.dir, "--mpirun", BIN / "mpirun", "--shift", "require")
    assert failed.returncode != 0
    assert [line for line in failed.stderr.splitlines() if "manapy" in line] == ["manapy-restart: --shift require: this host has no RNIC"]
    job.restart()
    assert job.wait() == 0


def test_what_a_rank_is_told(tmp_path: Path) -> None:
    """The backups and the agent, which stays as long as the rank does; ranks of one job share it, jobs don't."""
    agents = tmp_path / "a"
    environment = {**os.environ, "MANAPY_SHIFT_DIR": str(agents), "MANAPY_SHIFT_BACKUP": "m0:m1,m1:m0"}
    environment.pop("MANAPY_SHIFT_JOB", None)
    sleeper = subprocess.Popen(["sleep", "100"])
    try:
        answers = [manapy("_shift", "--dir", tmp_path / job, "--pid", str(sleeper.pid), env=environment).stdout.rstrip("\n").split("\t") for job in ("x", "x", "y")]
        assert answers[0] == answers[1] and [answer[0] for answer in answers] == ["OK"] * 3 and answers[0][3] == "m0:m1,m1:m0"
        assert answers[0][2].startswith("x-") and answers[2][2].startswith("y-")
        found = json.loads(manapy("rdma", "status", "--json", env=environment).stdout)
        assert sorted(status["job"] for status in found) == sorted({answer[2] for answer in answers})
    finally:
        sleeper.kill()
        sleeper.wait()
        for status in json.loads(manapy("rdma", "status", "--json", env=environment).stdout):
            os.kill(status["pid"], 15)


def test_unusable_names_are_an_answer(tmp_path: Path) -> None:
    done = manapy("_shift", "--dir", tmp_path / "x", "--pid", "1", env={"MANAPY_SHIFT_BACKUP": "a b"})
    assert done.returncode == 0 and done.stdout.startswith("ERROR\t") and done.stdout.count("\n") == 1
