"""The virtual machine in which SHIFT is measured (tools/vm). It is booted when the first job needs it, and is clean for
each job: all rails work, no program runs.

Everything in it is emulated: the figures only show orders of magnitude and comparisons with each other.
"""

from __future__ import annotations

import contextlib
import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...core import installation
from ...core.errors import ManapyError
from .commands import BenchError, LeftOutError
from .samples import NATIVE
from .tools import Tools, compile_one, rdma_source

HEADER = Path("/usr/include/infiniband/verbs.h")
JOB = "bench"
FLAGS = {"stamps": ("-pthread",), "give_up": ("-shared", "-fPIC", "-ldl")}


class MachineDiedError(BenchError):
    """The machine has died: sometimes an emulated kernel mistakes its own slowness for a hang."""


class Guest:
    """The machine, not booted yet. `work` is the directory in which both sides write: it contains the programs compiled
    for the machine."""

    def __init__(self, tools: Tools, work: Path) -> None:
        self._tools, self._work = tools, work
        self._machine: Any = None
        self._agent: Any = None
        self._shift: dict[str, str] = {}

    def part(self, name: str) -> Any:
        """A module of tools/vm; "" is the package."""
        place = next(
            (
                path
                for path in (self._tools.sources, self._tools.sources.parent / "tools")
                if (path / "vm" / "machine.py").exists()
            ),
            None,
        )
        if place is None:
            raise ManapyError("tools/vm is missing: this installation of manapy is incomplete")
        if str(place) not in sys.path:
            sys.path.insert(0, str(place))
        return importlib.import_module(f"vm.{name}" if name else "vm")

    @contextlib.contextmanager
    def used(self, *programs: str) -> Iterator[Any]:
        """The machine (vm.VM), with all rails working and no program running, also afterwards. Raises LeftOutError if
        this host can't boot it or lacks one of perftest's programs. Raises BenchError if something in it fails."""
        package = self.part("")
        self._look(package, programs)
        try:
            machine = self._booted(package)
            machine.repair()
            try:
                yield machine
            finally:
                for process in machine.running():
                    if process is not self._agent:
                        process.kill()
        except package.ImageError as error:
            raise LeftOutError(str(error)) from None
        except package.VMDied as error:
            raise MachineDiedError(_line(error)) from None
        except package.VMError as error:
            raise BenchError(_line(error)) from None

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Convert failures in the machine to BenchError."""
        try:
            yield
        except self.part("").VMError as error:
            raise BenchError(_line(error)) from None

    def environment(self, variant: str) -> dict[str, str]:
        """The environment of a program, natively or under SHIFT."""
        if variant == NATIVE:
            return {}
        if self._shift and self._agent.poll() is not None:
            said = (self._agent.stderr.strip().splitlines() or ["nothing"])[-1]
            self._shift = {}
            raise BenchError(f"the key-value agent ended with {self._agent.returncode}; it said: {said}")
        if not self._shift:
            rdma = f"{self._tools.manapy} rdma"
            # an agent that `run` starts would end with its command
            self._agent = self._machine.start(f"exec {rdma} agent --group {JOB}")
            ready = f"until {rdma} status {JOB} >/dev/null 2>&1; do sleep 0.1; done"
            lines = self._machine.run(
                f"{ready}; {rdma} run --group {JOB} --backup {self.part('shift').BACKUPS} -- env", check=True
            ).stdout.splitlines()
            self._shift = {
                name: value
                for name, _, value in (line.partition("=") for line in lines)
                if name.startswith("MANAPY_SHIFT_") or name == "LD_PRELOAD"
            }
            self._shift["MANAPY_SHIFT_VERBOSE"] = "1"
        return self._shift

    def listening(self, port: int) -> None:
        """Wait until a program listens on the port."""
        self._machine.listening(port)

    def program(self, name: str) -> Path:
        """A verbs program of osu_bench/ or of the tests, compiled."""
        target = self._work / name
        if not target.exists():
            compile_one(rdma_source(self._tools, f"{name}.c"), target, *FLAGS.get(name, ()), "-libverbs")
        return target

    def close(self) -> None:
        """Stop the machine."""
        if self._machine is not None:
            self._machine.stop()

    def _look(self, package: Any, programs: tuple[str, ...]) -> None:
        if installation.library("libmanapy_shift.so") is None:
            raise LeftOutError("this manapy was built without its RDMA part (apt install libibverbs-dev)")
        if reason := package.missing():
            raise LeftOutError(f"no virtual machine: {reason}")
        path = self.part("image").SYSTEM_PATH
        for name in programs:
            if shutil.which(name, path=path) is None:
                raise LeftOutError(f"no {name} (apt install perftest)")
        if shutil.which("rdma", path=path) is None:
            raise LeftOutError("no rdma (apt install iproute2)")
        if not HEADER.exists():
            raise LeftOutError(f"no {HEADER} (apt install libibverbs-dev)")

    def _booted(self, package: Any) -> Any:
        if self._machine is None:
            self._machine = package.VM([self._work], rails=3)
        if not self._machine.alive:
            self._shift = {}
            self._machine.boot()
        return self._machine


def _line(error: Exception) -> str:
    """The machine's messages are long: returns the first line, and the last one that a program printed."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("---")]
    said = [
        line
        for line in lines[1:]
        if line.startswith(("error:", "manapy shift: a ", "Completion with error", " Completion with error"))
    ]
    return " | ".join([lines[0] if lines else "?", *said[-1:]])[:300]
