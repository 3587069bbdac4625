"""Faults that happen to a job on emulated nodes: drawn from a seed, so that each way to keep the job alive gets the
same ones.

Invariants
 1. A fault refers to a rank of the job as it is at that moment, on whatever node. While no such rank runs, it waits.
 2. What a fault has broken outside the job (a link, a full file system, a busy processor) is mended after some time,
    and at the end.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from ...core.errors import ManapyError
from ..shared.cluster import Cluster

REPAIR_SECONDS = 15.0  # after which a lost host can be used again
TROUBLE_SECONDS = 6.0  # for which a neighbour is busy, a link slow, or the file system full
SLOW_BITS = 20e6  # per second, of a slow link
FAST_BITS = 100e9
WEIGHTS = {  # how often, compared with the others
    "rank killed": 4,
    "rank stopped": 2,
    "host lost": 2,
    "processors busy": 1,
    "link slow": 1,
    "file system full": 1,
    "newest image damaged, rank killed": 1,
    "coordinator killed": 1,
    "deadlock": 1,  # once in a job: one that comes again is the program's fault, and ends a chain
}
HARMLESS = ("processors busy", "link slow", "file system full")  # the job goes on by itself
UNNOTICED = ("rank stopped", "deadlock")  # nothing ends


class Fault(NamedTuple):
    """``at``: seconds after the start of the job."""

    at: float
    kind: str
    rank: int


class Target(NamedTuple):
    """A running job. ``ranks()``: its ranks' processes and hosts. ``directory``: of its checkpoints, or None."""

    ranks: Callable[[], Mapping[int, tuple[int, str]]]
    coordinator: Callable[[], int | None]
    directory: Path | None
    trap: Path


def draw(seed: int, seconds: float, mean: float, ranks: int) -> list[Fault]:
    """Faults within that many seconds; the times between them are distributed exponentially around ``mean`` seconds."""
    chance, at, faults, weights = random.Random(seed), 0.0, [], dict(WEIGHTS)
    while (at := at + chance.expovariate(1 / mean)) < seconds:
        (kind,) = chance.choices(list(weights), list(weights.values()))
        if kind == "deadlock":
            weights[kind] = 0
        # rank 0 is beside mpirun: that host is not lost
        faults.append(Fault(at, kind, chance.randrange(1 if kind == "host lost" else 0, ranks)))
    return faults


class FaultInjector:
    """Inflicts faults on one job, and mends what they have broken. ``disk``: the file system that is filled."""

    def __init__(self, nodes: Cluster, disk: Path, faults: list[Fault], target: Target) -> None:
        self._nodes, self._disk, self._target = nodes, disk, target
        self._left = list(faults)
        self._mend: list[tuple[float, Callable[[], None]]] = []
        self.happened: list[tuple[float, Fault]] = []  # with the moment (seconds after the start)

    def look(self, since: float) -> None:
        """Inflict and mend what is due, so many seconds after the start."""
        for due, mend in [entry for entry in self._mend if entry[0] <= since]:
            self._mend.remove((due, mend))
            mend()
        if self._left and self._left[0].at <= since and self._inflict(self._left[0], since):
            self.happened.append((since, self._left.pop(0)))

    def end(self) -> None:
        """Mend everything."""
        for _, mend in self._mend:
            mend()
        self._mend = []

    def _inflict(self, fault: Fault, since: float) -> bool:
        ranks = self._target.ranks()
        if fault.rank not in ranks:
            return False
        pid, host = ranks[fault.rank]
        match fault.kind:
            case "rank killed":
                _signal(pid, signal.SIGKILL)
            case "rank stopped":
                _signal(pid, signal.SIGSTOP)
            case "host lost":
                return host != self._nodes.names[0] and self._lose(host, since)
            case "processors busy":
                self._busy(since)
            case "link slow":
                self._nodes.shape(SLOW_BITS)
                self._mend.append((since + TROUBLE_SECONDS, lambda: self._nodes.shape(FAST_BITS)))
            case "file system full":
                self._fill(since)
            case "newest image damaged, rank killed":
                self._damage()
                _signal(pid, signal.SIGKILL)
            case "coordinator killed":
                if (coordinator := self._target.coordinator()) is not None:
                    _signal(coordinator, signal.SIGKILL)
            case "deadlock":
                self._target.trap.touch()
        return True

    def _lose(self, host: str, since: float) -> bool:
        """Cut a host's link, and kill all processes there, without a message to anyone."""
        self._link(host, "down")
        self._nodes.kill(host)
        self._mend.append((since + REPAIR_SECONDS, lambda: self._link(host, "up")))
        return True

    def _link(self, host: str, state: str) -> None:
        with contextlib.suppress(ManapyError):
            self._nodes.link(host, state)

    def _busy(self, since: float) -> None:
        burn = [sys.executable, "-c", "while True: pass"]
        hogs = [subprocess.Popen(burn) for _ in range(2 * (os.cpu_count() or 1))]

        def mend() -> None:
            for hog in hogs:
                hog.kill()
                hog.wait()

        self._mend.append((since + TROUBLE_SECONDS, mend))

    def _fill(self, since: float) -> None:
        filler = self._disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(1 << 20))
        self._mend.append((since + TROUBLE_SECONDS, filler.unlink))

    def _damage(self) -> None:
        """Flip a byte in the middle of an image of the newest checkpoint."""
        if self._target.directory is None or not (self._target.directory / "latest").exists():
            return
        image = max((self._target.directory / "latest").resolve().rglob("*.img"), key=lambda path: path.stat().st_size)
        with image.open("r+b") as file:
            file.seek(image.stat().st_size // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 0xFF]))


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def mean_loss(fault: Fault, interval: float, patience: float, loss: float) -> float:
    """Seconds that a fault costs at least, besides a new start: half an interval of work, and the time until it can be
    noticed."""
    if fault.kind in HARMLESS:
        return 0.0
    noticed = patience if fault.kind in UNNOTICED else loss if fault.kind == "host lost" else 0.0
    return noticed + interval * (1.5 if fault.kind.startswith("newest") else 0.5)
