"""Three ways to bring a job to its end although faults happen: `manapy run`; a script that starts it again from its
newest checkpoint; and a script that starts it again from the beginning.

Invariants
 1. The scripts do what a careful person would write in a few lines: they start the job again when it has ended with an
    error, or has printed nothing for the patience that `manapy run` has, too. They know nothing of hosts.
 2. All processes of a job run on the emulated nodes. To end it is to kill all that runs there.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from ...ckpt.store import job
from ...core import proc
from ...core.errors import JobError
from ..shared.cluster import ENVIRONMENT, Cluster
from ..shared.commands import Command, Setting
from .faults import Target

INTERVAL, PATIENCE, LOSS = 3.0, 5.0, 5  # seconds; LOSS: until a host that does not answer counts as lost
STARTS = 20.0  # seconds for the first step, after which a script starts the job again
RANKS = 3
KEEP = ("--keep", "2")  # checkpoints: most of the memory changes between two of them
MANAPY, SCRIPT, BEGINNING = "manapy", "script with checkpoints", "script"
_STEP = re.compile(rb"^step (\d+)$", re.MULTILINE)
_DONE = re.compile(rb"^done (\w+)$", re.MULTILINE)


class RecoveryMethod(ABC):
    """A job that is kept alive. ``step``: the last one; ``starts``: how often it was started; ``checksum``: once it has
    ended well."""

    def __init__(self, setting: Setting, nodes: Cluster, folder: Path, work: Command) -> None:
        self.setting, self.nodes, self.folder = setting, nodes, folder
        folder.mkdir()
        self.trap = folder / "trap"
        self.work = [*work, "--trap", str(self.trap)]
        self.log = setting.fresh("log")  # not on the file system that faults fill
        self.step, self.starts, self.checksum = 0, 0, ""
        self._read = 0
        self._printed = 0.0
        self._begun = False  # the present run has printed a step
        self._process: subprocess.Popen[bytes] | None = None

    def look(self, since: float) -> bool:
        """Start the job if that is due, and read what it has printed; True at its end. ``since``: seconds since the
        first look."""
        if self._process is None:
            self._start(since)
        self._take(since)
        assert self._process is not None
        code = self._process.poll()
        if code == 0 and self.checksum:
            return True
        if code is not None or since - self._printed > self._quiet():
            self.end()
            self._start(since)
        return False

    def end(self) -> None:
        """Invariant 2."""
        while any([self.nodes.kill(name) for name in self.nodes.names]):
            pass
        if self._process is not None:
            self._process.wait()

    def target(self) -> Target:
        """Return the target of faults."""
        return Target(self.ranks, self.coordinator, self.directory, self.trap)

    @property
    def directory(self) -> Path | None:
        """The directory of the checkpoints."""
        return None

    @abstractmethod
    def command(self) -> Command:
        """Return the command that runs next, on the first node."""

    def ranks(self) -> Mapping[int, tuple[int, str]]:
        """The ranks' processes and hosts, as far as they run."""
        words = [*self.nodes.inside(self.nodes.names[0]), self.setting.tools.manapy, "status", "--json"]
        shown = subprocess.run([*map(str, words), str(self.directory)], capture_output=True, text=True)
        status = json.loads(shown.stdout) if shown.returncode == 0 else {}
        return {
            rank["rank"]: (rank["pid"], rank["host"]) for rank in status.get("ranks", ()) if rank["state"] == "running"
        }

    def coordinator(self) -> int | None:
        """Its process."""
        with contextlib.suppress(JobError):
            return None if self.directory is None else int(job.read(self.directory).record["pid"])
        return None

    def mpirun(self, *words: str | Path, hosts: bool = True) -> Command:
        """mpirun for words, with one rank on each of the first nodes, or with the hosts of HYDRA_HOST_FILE."""
        chosen = ["-hosts", ",".join(f"{name}:1" for name in self.nodes.names[:RANKS])] if hosts else []
        return [self.setting.tools.mpirun, *self.nodes.launcher, *chosen, "-n", str(RANKS), *words]

    def _quiet(self) -> float:
        """How long the job may print nothing."""
        return PATIENCE if self._begun else STARTS

    def _start(self, since: float) -> None:
        variables = {**ENVIRONMENT, "MANAPY_LOSS_SECONDS": str(LOSS)}
        words = [
            *self.nodes.inside(self.nodes.names[0]),
            "env",
            *(f"{name}={value}" for name, value in variables.items()),
            *self.command(),
        ]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                list(map(str, words)), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder
            )
        self.starts += 1
        self._printed, self._begun = since, False

    def _take(self, since: float) -> None:
        with self.log.open("rb") as log:
            log.seek(self._read)
            text = log.read()
        text = text[: text.rfind(b"\n") + 1]
        self._read += len(text)
        if steps := _STEP.findall(text):
            self.step, self._printed, self._begun = int(steps[-1]), since, True
        if done := _DONE.findall(text):
            self.checksum = done[-1].decode()


class Manapy(RecoveryMethod):
    """`manapy run`, with a spare host. Nothing needs to be started again."""

    @property
    def directory(self) -> Path:
        """The directory of the job."""
        return self.folder / "chain" / "step-001"

    def command(self) -> Command:
        """See RecoveryMethod."""
        options = ["--interval", f"{INTERVAL}s", "--patience", f"{PATIENCE}s", "--max-crashes", "1000"]
        hosts = ",".join(f"{name}:1" for name in self.nodes.names)
        program = self.mpirun(self.setting.tools.launch, *KEEP, *self.work, hosts=False)
        return [
            *(
                self.setting.tools.manapy,
                "run",
                "--dir",
                self.folder / "chain",
                *options,
                "--hosts",
                hosts,
                "--",
                *program,
            )
        ]

    def _quiet(self) -> float:
        return self.setting.limit


class Script(RecoveryMethod):
    """manapy-launch and manapy-restart, without anybody who watches."""

    @property
    def directory(self) -> Path:
        """The directory of the job."""
        return self.folder / "job"

    def command(self) -> Command:
        """See RecoveryMethod. A restart that has made no step is not tried again: the job begins anew."""
        options = ["--interval", f"{INTERVAL}s", *KEEP]
        if (self.directory / "latest").exists() and (self._begun or not self.starts):
            return self.mpirun(self.setting.tools.restart, *options, self.directory)
        if self.directory.exists():
            self.directory.rename(self.folder / f"job-of-start-{self.starts}")
        return self.mpirun(self.setting.tools.launch, "--dir", self.directory, *options, *self.work)


class Beginning(RecoveryMethod):
    """Without manapy."""

    def command(self) -> Command:
        """See RecoveryMethod."""
        library = f"LD_LIBRARY_PATH={self.setting.tools.library.parent}"
        return ["env", library, *self.mpirun(*self.work)]

    def ranks(self) -> Mapping[int, tuple[int, str]]:
        """See RecoveryMethod: each node has one rank."""
        found = {}
        for number, name in enumerate(self.nodes.names[:RANKS]):
            for pid in self.nodes.pids(name):
                try:
                    words = proc.cmdline(pid)
                except OSError:
                    continue
                if words[0] == str(self.setting.tools.python):
                    found[number] = (pid, name)
        return found


WAYS: dict[str, type[RecoveryMethod]] = {MANAPY: Manapy, SCRIPT: Script, BEGINNING: Beginning}
