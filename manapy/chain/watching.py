"""The watch over the jobs of an attempt: one process for each job (`manapy _watch`) looks at its recording, so that
neither the memory nor a fault of the analysis can harm the supervisor.

Invariants
 1. A job is watched from BEGIN_SECONDS (or the patience, if that is shorter) after it was first seen to run: short
    jobs cost nothing, and a rank has no recording before its restore is done, however long that takes.
 2. New and withdrawn verdicts are printed and recorded. They have no other effect.
 3. A job counts as hung only if its watch would act on the verdict (trace/live/standing.py), and only until the watch
    withdraws the verdict.
 4. The end of a watch never ends a job. If a watch ends before its job does, a line says so once, and it is started
    again, after a pause that doubles each time.
 5. If the evidence of a verdict cannot be saved, manapy still acts on the verdict: the job counts as hung as soon as
    the evidence is written, or its watch has ended, or KEEPING seconds have passed.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..ckpt.store.job import Job
from ..core.errors import why
from .record import Chain

BEGIN_SECONDS = 10.0
AGAIN, AGAIN_MOST = 10.0, 600.0  # seconds until a watch that has ended is started again: at first, and at most
KEEPING = 300.0  # seconds for the evidence
LOG = "watch.log"  # in the chain's directory: errors of the watches


@dataclass(frozen=True)
class Hung:
    """A verdict to act on. ``cause``: as in `manapy why --json`; ``host``: of the reported rank, or ""; ``since``: when
    the fault began, seconds since the epoch."""

    sentence: str
    cause: str
    rank: int | None
    call: str
    host: str
    evidence: str
    since: float


@dataclass(frozen=True)
class Slow:
    """A host that makes a job slow, and has for the patience: ``share`` of its time is lost."""

    sentence: str
    host: str
    share: float


@dataclass(eq=False)
class _Watch:
    """The watch over one job. ``again``: when to start it again, and ``pause``: the pause before that. ``acting``: a
    verdict to act on whose evidence is being written, since ``acting_since``. Seconds of the monotonic clock."""

    job: Job
    since: float = field(default_factory=time.monotonic)
    process: subprocess.Popen[bytes] | None = None
    again: float = 0.0
    pause: float = field(default_factory=lambda: AGAIN)
    rest: bytes = b""  # of a line
    acting: Hung | None = None
    acting_since: float = 0.0
    hung: Hung | None = None
    slow: Slow | None = None


class Watching:
    """All watches of one attempt. ``say`` shows a line to the user; ``patience``: seconds."""

    def __init__(self, chain: Chain, attempt: int, patience: float, say: Callable[[str], None]) -> None:
        self._chain, self._attempt, self._patience, self._say = chain, attempt, patience, say
        self._watches: dict[Path, _Watch] = {}
        self._told = False

    def look(self, live: Iterable[Job]) -> None:
        """Watch these jobs, and take what the watches have reported."""
        for job in live:
            if job.state != "running":
                continue
            watch = self._watches.setdefault(job.dir, _Watch(job))
            now = time.monotonic()
            begins = now - watch.since >= min(BEGIN_SECONDS, self._patience) and now >= watch.again
            if watch.process is None and watch.hung is None and begins:
                self._start(watch)
        for watch in self._watches.values():
            if watch.process is not None:
                self._take(watch)
            if watch.acting is not None and time.monotonic() >= watch.acting_since + KEEPING:
                self._act(watch, f"it was not written in {KEEPING:.0f} s")

    @property
    def hung(self) -> tuple[Job, Hung] | None:
        """A job that is certainly hung, and has been for long enough, and why."""
        return next(((watch.job, watch.hung) for watch in self._watches.values() if watch.hung is not None), None)

    @property
    def slow(self) -> Slow | None:
        """The host that costs most, as the last look at its job has found it."""
        slows = [watch.slow for watch in self._watches.values() if watch.slow is not None]
        return max(slows, key=lambda slow: slow.share, default=None)

    def close(self) -> None:
        """End all watches."""
        for watch in self._watches.values():
            if watch.process is not None:
                self._end(watch)

    def _start(self, watch: _Watch) -> None:
        evidence = self._chain.dir / "evidence" / f"attempt-{self._attempt:03d}" / watch.job.dir.name
        options = ["--patience", f"{self._patience:.12g}s", "--evidence", str(evidence)]
        command = [os.path.abspath(sys.argv[0]), "_watch", str(watch.job.dir), *options]
        try:
            log = os.open(self._chain.dir / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._lost(watch, why(error))
            return
        try:
            watch.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        except OSError as error:
            self._lost(watch, str(error))
            return
        finally:
            os.close(log)
        assert watch.process.stdout is not None
        os.set_blocking(watch.process.stdout.fileno(), False)

    def _take(self, watch: _Watch) -> None:
        assert watch.process is not None and watch.process.stdout is not None
        with contextlib.suppress(BlockingIOError):
            while data := os.read(watch.process.stdout.fileno(), 1 << 16):
                *lines, watch.rest = (watch.rest + data).split(b"\n")
                for line in lines:
                    self._on(watch, json.loads(line))
            self._end(watch)
            reason = f"its watch has ended: see {self._chain.dir / LOG}"
            if watch.acting is not None:
                self._act(watch, reason)
            if watch.hung is None:
                self._lost(watch, reason if watch.job.is_live() else "")

    def _on(self, watch: _Watch, told: dict[str, Any]) -> None:
        verdict = told["verdict"]
        if told["kind"] == "slow":
            watch.slow = Slow(verdict["sentence"], told["host"], verdict["share"]) if verdict else None
            return
        known = {name: verdict[name] for name in ("state", "cause", "rank", "call", "sentence")}
        match told["kind"]:
            case "new":
                self._say(verdict["sentence"])
                self._chain.append("verdict", self._attempt, **known)
            case "back":
                watch.acting = watch.hung = None
                self._say(told["text"])
                self._chain.append("withdrawn", self._attempt, **known)
            case "act" if verdict["state"] == "hung":
                watch.acting_since = time.monotonic()
                watch.acting = Hung(
                    verdict["sentence"],
                    verdict["cause"],
                    verdict["rank"],
                    verdict["call"],
                    told["host"],
                    told["evidence"],
                    told["since"],
                )
            case "kept" if watch.acting is not None:
                self._act(watch, told["missing"])

    def _act(self, watch: _Watch, missing: str) -> None:
        """Mark the job as hung. ``missing``: why evidence is missing, or ""."""
        if missing:
            self._say(f"the evidence is incomplete: {missing}")
        watch.hung, watch.acting = watch.acting, None

    def _lost(self, watch: _Watch, reason: str) -> None:
        """Start the watch again later. ``reason``: why a job that goes on is not watched; "": it has ended."""
        watch.again = time.monotonic() + watch.pause
        watch.pause = min(2 * watch.pause, AGAIN_MOST)
        if reason and not self._told:
            self._told = True
            self._say(f"{watch.job.dir} is not watched: {reason}")

    @staticmethod
    def _end(watch: _Watch) -> None:
        """Kill and reap the process. The attempt may have reaped it before."""
        assert watch.process is not None and watch.process.stdout is not None
        watch.process.stdout.close()
        watch.process.kill()
        watch.process.wait()
        watch.process, watch.rest, watch.slow = None, b"", None
