"""What other users see of a job: that it isn't theirs, in one line; root sees it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs import BIN, PATIENCE, Job, manapy

from manapy.trace import format

pytestmark = pytest.mark.mpi

OWNER, OTHER = 65533, 65532  # user ids that nobody has


def user(uid: int) -> list[str]:
    """Words that a command is put behind."""
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


@pytest.fixture
def job() -> Iterator[Job]:
    """Of OWNER. Its folder lies where everybody comes to."""
    if os.getuid() or shutil.which("setpriv") is None:
        pytest.skip("only root can be several users")
    where = Path(tempfile.mkdtemp(dir="/tmp", prefix="manapy-user-"))
    where.chmod(0o755)
    os.chown(where, OWNER, OWNER)
    job = Job(where, mpirun=[*user(OWNER), BIN / "mpirun"], env={"HOME": str(where)})
    try:
        if subprocess.run([*user(OTHER), BIN / "manapy", "--version"], capture_output=True).returncode:
            pytest.skip("other users may not run this installation")
        yield job
    finally:
        job.end()
        shutil.rmtree(where)
        shutil.rmtree(format.root(OWNER), ignore_errors=True)


def test_nobody_else_but_root_sees_anything(job: Job) -> None:
    job.start_python("stuck.py", "sleep")
    job.wait_for("stuck")
    recording = format.root(OWNER) / format.job_name(job.dir)
    (before,) = {path.name for path in job.where.iterdir()} - {"job"}
    looks = [["why"], ["why", "--watch"], ["why", "--watch", "--on-hang", "kill"], ["trace", "top", "--once"], ["trace", "report"]]
    for command in [*looks, ["trace", "export", "--format", "json"], ["trace", "record", "--out", "r"]]:
        for which in (job.dir, recording):
            done = manapy(*command, which, inside=user(OTHER), cwd=Path("/"))
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), (command, done)
            assert f"another user (uid {OWNER})" in done.stderr if which == job.dir else "Permission denied" in done.stderr, (command, done)
    for command in ("checkpoint", "status", "stop"):
        done = manapy(command, job.dir, inside=user(OTHER), cwd=Path("/"))
        assert (done.returncode, done.stdout, done.stderr) == (1, "", f"manapy: {job.dir}: a job of another user (uid {OWNER}), to which nobody else but root may say anything\n")
    assert {path.name for path in job.where.iterdir()} == {"job", before}
    assert job.process is not None and job.process.poll() is None

    said = json.loads(manapy("why", job.dir, "--json", timeout=PATIENCE).stdout)
    assert said["recording"] == str(recording) and [known["pid"] > 0 for known in json.loads(manapy("status", job.dir, "--json").stdout)["ranks"]] == [True, True]
