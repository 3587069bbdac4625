"""Other users get one line that says that the job belongs to another user. Root sees the job."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs import BIN, PATIENCE, Job, manapy

from manapy.trace.capture import format

pytestmark = pytest.mark.mpi

OWNER, OTHER = 65533, 65532  # user ids that no user has


# If Python is in a home directory that is closed to other users, a mount namespace has an open one there that contains
# nothing else.
OPEN = (
    'mount --bind "$2" "$3" && mount -t tmpfs -o mode=755 none "$1" && mkdir -p "$2" && mount --bind "$3" "$2" && '
    'shift 3 && exec "$@"'
)


def user(uid: int) -> list[str]:
    """The words to put before a command so that this user runs it."""
    become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    python = Path(sys.base_prefix)
    closed = next((str(folder) for folder in reversed(python.parents) if not folder.stat().st_mode & 0o001), None)
    return ["unshare", "--mount", "sh", "-c", OPEN, "sh", closed, str(python), "/mnt", *become] if closed else become


def may_run(uid: int) -> bool:
    """Through a shell, because setpriv itself still finds files as root does."""
    return (
        subprocess.run([*user(uid), "sh", "-c", '"$0" --version', BIN / "manapy"], capture_output=True).returncode == 0
    )


@pytest.fixture
def job() -> Iterator[Job]:
    """A job of OWNER. Its folder is accessible to all users."""
    if os.getuid() or shutil.which("setpriv") is None:
        pytest.skip("only root can be several users")
    if not may_run(OTHER):
        pytest.skip("other users may not run this installation")
    where = Path(tempfile.mkdtemp(dir="/tmp", prefix="manapy-user-"))
    where.chmod(0o755)
    os.chown(where, OWNER, OWNER)
    job = Job(where, mpirun=[*user(OWNER), BIN / "mpirun"], env={"HOME": str(where)})
    try:
        yield job
    finally:
        job.end()
        shutil.rmtree(where)
        shutil.rmtree(format.root(OWNER), ignore_errors=True)


def test_nobody_else_but_root_sees_anything(job: Job) -> None:
    job.start_python("trace/stuck.py", "sleep")
    job.wait_for("stuck")
    recording = format.root(OWNER) / format.job_name(job.dir)
    (before,) = {path.name for path in job.where.iterdir()} - {"job"}
    looks = [
        ["why"],
        ["why", "--watch"],
        ["why", "--watch", "--on-hang", "kill"],
        ["trace", "top", "--once"],
        ["trace", "report"],
    ]
    for command in [*looks, ["trace", "export", "--format", "json"], ["trace", "record", "--out", "r"]]:
        for which in (job.dir, recording):
            done = manapy(*command, which, inside=user(OTHER), cwd=Path("/"))
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), (command, done)
            assert (
                f"another user (uid {OWNER})" in done.stderr if which == job.dir else "Permission denied" in done.stderr
            ), (command, done)
    for command in ("checkpoint", "status", "stop"):
        done = manapy(command, job.dir, inside=user(OTHER), cwd=Path("/"))
        assert (done.returncode, done.stdout, done.stderr) == (
            1,
            "",
            f"manapy: {job.dir}: a job of another user (uid {OWNER}): only this user and root may send it commands\n",
        )
    assert {path.name for path in job.where.iterdir()} == {"job", before}
    assert job.process is not None and job.process.poll() is None

    said = json.loads(manapy("why", job.dir, "--json", timeout=PATIENCE).stdout)
    assert said["recording"] == str(recording) and [
        known["pid"] > 0 for known in json.loads(manapy("status", job.dir, "--json").stdout)["ranks"]
    ] == [True, True]
