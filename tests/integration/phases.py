"""Requests for checkpoints that go on beside a test, and the phases in which one can be met."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from jobs import BIN, PATIENCE, Job, JobError
from manapy.ckpt import command
from manapy.ckpt.store import job as job_files
from manapy.core.errors import JobError as NoJob

STANDING = ("--background", "off")  # the images are written while the job stands
BESIDE = ("--background", "auto", "--dirty", "off")  # all of each image is written beside the running job
BEFORE = ["checking", "waiting for a safe moment", "stopping", "draining messages"]
PHASES = {  # by options
    STANDING: [*BEFORE, "writing", "publishing", "resuming"],
    BESIDE: ["stopping", "capturing", "saving", "publishing"],
}


def needs_way(way: str) -> None:
    """Skip the test if the kernel cannot find changed pages in this way."""
    command = [str(BIN / "manapy-launch"), "--dirty", way, "no such program"]
    if "this kernel cannot" in subprocess.run(command, capture_output=True, text=True).stderr:
        pytest.skip(f"the kernel cannot do --dirty {way}")


def request(job: Job, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(BIN / "manapy"), "checkpoint", str(job.dir), *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answer(process: subprocess.Popen[str], timeout: float = PATIENCE) -> tuple[int, str, str]:
    """Exit code, output and errors of a request, which must return."""
    try:
        out, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise JobError(f"manapy checkpoint did not return; it said {process.communicate()[1]}") from None
    return process.returncode, out.strip(), errors.strip()


def is_one_line(errors: str) -> bool:
    """Is this one line that complains? On a busy machine lines of progress come before it."""
    *before, last = errors.splitlines() or [""]
    return last.startswith("manapy: ") and not any(line.startswith("manapy: ") for line in before)


def reach(job: Job, phase: str) -> tuple[subprocess.Popen[str], dict[str, Any], Path]:
    """A request whose checkpoint was just seen in this phase, the job's status at that moment, and the last published
    checkpoint.

    Asks again if the phase went by too fast. The job is held.
    """
    last = job.checkpoint()
    for _ in range(60):
        asked, where = request(job), job_files.read(job.dir)
        while asked.poll() is None:
            with contextlib.suppress(NoJob):
                status = command.status(where)
                if status["phase"] == phase:
                    return asked, status, last
        code, path, errors = answer(asked)
        assert code == 0, errors
        last = Path(path)
    raise JobError(f"phase {phase} was never seen")


def restart_after(job: Job, status: dict[str, Any], options: Sequence[str]) -> None:
    """Restart from the latest checkpoint; status: of the job that has ended. The remains of the interrupted checkpoint
    disappear."""
    job.killed = int(status["pid"])
    job.restart(options=options).wait_until_it_runs()
    assert not list(job.dir.glob("tmp-*"))
