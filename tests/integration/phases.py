"""Requests for checkpoints that go on beside a test, and the phases in which one can be met."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from jobs import BIN, PATIENCE, Job, JobError
from manapy.ckpt import command
from manapy.ckpt.store import job as job_files
from manapy.cli.shared import naming
from manapy.core.errors import JobError as NoJob
from manapy.core.errors import ManapyError

STANDING = ("--background", "off")  # the images are written while the job is paused
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


class Asking:
    """A request for a checkpoint that a thread of this process makes: a command takes a quarter of a second of
    processor time. Has what tests use of a command's Popen."""

    def __init__(self, job: Job) -> None:
        self.returncode: int | None = None
        self._said = ("", "")
        self._thread = threading.Thread(target=self._ask, args=(job.dir,), daemon=True)
        self._thread.start()

    def _ask(self, directory: Path) -> None:
        try:
            self._said, self.returncode = (str(command.checkpoint(naming.job(str(directory)))), ""), 0
        except ManapyError as error:
            self._said, self.returncode = ("", f"manapy: {error}"), 1

    def poll(self) -> int | None:
        return self.returncode

    def communicate(self, timeout: float) -> tuple[str, str]:
        self._thread.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("checkpoint", timeout)
        return self._said

    def kill(self) -> None:
        """Nothing: the thread ends with the job, or with this process."""


Request = Asking | subprocess.Popen[str]


def request(job: Job, *options: str) -> Request:
    """Request a checkpoint. With options this is a command."""
    if not options:
        return Asking(job)
    return subprocess.Popen(
        [str(BIN / "manapy"), "checkpoint", str(job.dir), *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def request_until(job: Job, met: Callable[[], object]) -> Request:
    """Request a checkpoint that has to wait, and return the request when a condition is met. If a checkpoint is taken
    before, it came too early: request the next one."""
    asked = request(job)
    while not met():
        if asked.poll() is not None:
            code, _, errors = answer(asked)
            assert code == 0, errors
            asked = request(job)
        time.sleep(0.02)
    return asked


def answer(process: Request, timeout: float = PATIENCE) -> tuple[int, str, str]:
    """Exit code, output and errors of a request, which must return."""
    try:
        out, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise JobError("the request for a checkpoint was not answered") from None
    assert process.returncode is not None
    return process.returncode, out.strip(), errors.strip()


def is_one_line(errors: str) -> bool:
    """Is this one line that complains? On a busy machine lines of progress come before it."""
    *before, last = errors.splitlines() or [""]
    return last.startswith("manapy: ") and not any(line.startswith("manapy: ") for line in before)


def reach(job: Job, phase: str) -> tuple[Request, dict[str, Any], Path]:
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
