"""Real agents, and programs that talk to them through the C client, for the tests of the RDMA agent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from manapy.rdma import client, place
from waiting import PATIENCE, until

MANAPY = [sys.executable, "-P", "-c", "import sys; from manapy.cli import main; sys.exit(main())"]


class Program:
    """kv_driver.c. The methods are its commands and return (result, text). `took` is the duration of the last command
    in ms."""

    def __init__(self, driver: Path, where: place.Place, job: str, env: dict[str, str]) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "SLURM_", "OMPI_"))}
        environment |= {"MANAPY_SHIFT_AGENT": str(where.address), "MANAPY_SHIFT_JOB": job, **env}
        self.process = subprocess.Popen(
            [str(driver)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.took = 0

    def __call__(self, command: str, *arguments: str | int | bytes) -> tuple[int, str]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(
            " ".join([command, *(a.hex() if isinstance(a, bytes) else str(a) for a in arguments)]) + "\n"
        )
        self.process.stdin.flush()
        took, result, text = self.process.stdout.readline().rstrip("\n").split(" ", 2)
        self.took = int(took)
        return int(result), text

    def get(self, key: str) -> bytes | None:
        """The value, or None if there is none. Raises on errors."""
        result, text = self("get", key)
        assert result >= 0, text
        return bytes.fromhex(text) if result else None

    def put(self, key: str, value: bytes) -> None:
        """Raises on errors."""
        assert self("put", key, value) == (0, "")

    def quit(self) -> int:
        """Close the handle and end."""
        assert self.process.stdin is not None
        self.process.stdin.write("quit\n")
        self.process.stdin.close()
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        """May be called any number of times."""
        self.process.kill()
        self.process.wait()


class Agent:
    """`manapy rdma agent` of the job `job` with its own MANAPY_SHIFT_DIR, so that several agents play several hosts."""

    def __init__(
        self, directory: Path, *options: str, job: str = "job", url: str | None = None, settings: str = ""
    ) -> None:
        """settings: Python code that runs first and changes constants of the agent."""
        self.dir, self.job = directory, job
        self.place = place.Place(directory / job, job)
        self.command = ["agent", "--group", job, *(["--kv", url] if url else []), *options]
        self._manapy = [*MANAPY[:-1], settings + "\n" + MANAPY[-1]]
        self.process: subprocess.Popen[str]
        self.start()

    def start(self) -> None:
        """May be called again."""
        self.log = self.dir.with_suffix(".log")
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*self._manapy, "rdma", *self.command],
                env={**os.environ, "MANAPY_SHIFT_DIR": str(self.dir)},
                stderr=log,
            )
        until(lambda: self.place.is_alive() or self.process.poll() is not None, "the agent's start")
        assert self.process.poll() is None, self.log.read_text()

    def status(self) -> dict[str, Any]:
        with client.Connection(self.place) as connection:
            return connection.status()

    def kill(self, number: int = signal.SIGKILL) -> None:
        """May be called any number of times."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
        self.process.wait(PATIENCE)
