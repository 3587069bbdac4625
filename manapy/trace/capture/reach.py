"""Two ways to a collector (`manapy _collect`) on another host: its standard input and output.

 - Through the coordinator of a job under manapy-launch and the agent of that host (ckpt/collectors.py). Every line is
   authenticated. This needs a job that runs.
 - Through a remote shell: ssh, or srun in a Slurm allocation. The data comes from this user, as far as the remote shell
   can be trusted, and no port is open.

Invariants
 1. The collector ends when it is closed here, whatever has happened to this process.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

from ...ckpt import command
from ...ckpt.store.job import Job
from ...core import installation
from ...core.errors import ManapyError, explained


class LostError(ManapyError):
    """A host cannot be reached. The message is the reason."""


class CollectorChannel(Protocol):
    """A way to one collector. Its methods raise LostError, and read() raises TimeoutError."""

    def write(self, request: bytes) -> None:
        """Send a request."""

    def read(self, deadline: float) -> bytes:
        """Wait for the next bytes of the answer, until this moment of the monotonic clock."""

    def reason(self, otherwise: str) -> str:
        """Return why it answers no more, or `otherwise` if nothing is known."""

    def close(self) -> None:
        """End the collector."""


class ThroughAgent:
    """The agent of a host of this job."""

    def __init__(self, job: Job, host: str) -> None:
        with _as_lost():
            self._collector = command.Collector(job, host)

    def write(self, request: bytes) -> None:
        """See CollectorChannel."""
        with _as_lost():
            self._collector.write(request)

    def read(self, deadline: float) -> bytes:
        """See CollectorChannel."""
        with _as_lost():
            return self._collector.read(max(deadline - time.monotonic(), 0.001))

    def reason(self, otherwise: str) -> str:
        """See CollectorChannel."""
        return otherwise

    def close(self) -> None:
        """See CollectorChannel."""
        self._collector.close()


@contextlib.contextmanager
def _as_lost() -> Iterator[None]:
    try:
        yield
    except ManapyError as error:
        raise LostError(str(error)) from error


def remote_shell() -> list[str]:
    """Return the command of the remote shell: srun in a Slurm allocation, else ssh. A host's name and a command are
    appended to it."""
    if allocation := os.environ.get("SLURM_JOB_ID"):
        return ["srun", "--overlap", f"--jobid={allocation}", "--nodes=1", "--ntasks=1", "--quiet", "--nodelist"]
    return ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]


class ThroughShell:
    """A remote shell. A host name that looks like an option of it is refused: the name may come from job.json, which
    may be another user's."""

    def __init__(self, shell: Sequence[str], host: str) -> None:
        if host.startswith("-"):
            raise LostError("not a host name")
        # the path is the same as here; quoted, because ssh passes the command to a shell
        program = shlex.quote(str(installation.executable("manapy") or "manapy"))
        self._name = shell[0]
        self._errors = tempfile.TemporaryFile()
        with explained(LostError, self._name):
            # In its own session, Ctrl-C does not reach it. It ends only this process, which still uses the data.
            self._process = subprocess.Popen(
                [*shell, host, program, "_collect"],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )

    def write(self, request: bytes) -> None:
        """See CollectorChannel."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request)
        except OSError as error:
            raise LostError(self.reason(str(error))) from error

    def read(self, deadline: float) -> bytes:
        """See CollectorChannel."""
        assert self._process.stdout is not None
        out = self._process.stdout.fileno()
        if not select.select([out], [], [], max(deadline - time.monotonic(), 0))[0]:
            raise TimeoutError
        if not (data := os.read(out, 1 << 20)):
            raise LostError(self.reason("the connection was closed"))
        return data

    def reason(self, otherwise: str) -> str:
        """Return the last line that the remote shell wrote, or its exit status."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if code := self._process.wait(1):
                otherwise = f"{self._name} ended with {code}"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), otherwise)

    def close(self) -> None:
        """See CollectorChannel."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
