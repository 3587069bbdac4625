"""One run of the user's script or mpirun command: in one attempt, or under `manapy run`.

This module supervises the run and takes checkpoints when they are due. At the end it saves the jobs of the script, and
kills the script before the script can go on. It also ends a run if one of its jobs is hung.

Invariants
 1. Leaving: all live jobs are checkpointed and *held* (their ranks stay stopped). Then the script and all processes
    below it are killed, except ranks and coordinators; then the ranks. So the next command of the script runs only if
    the job has ended by itself.
 2. A failed checkpoint never ends anything: the program goes on, and the checkpoint is tried again while there is
    time. A second Ctrl-C ends the wait for the last checkpoint, and so does the end of the allocation. A signal that
    was ignored before stays ignored.
 3. Threads wait for checkpoints, and try whether coordinators can be reached. The main thread does everything else, and
    writes the history.
 4. A job counts as saved if its checkpoint is published, and as ended if its job.json says so. A job that merely cannot
    be reached is neither.
 5. A job that has lost its coordinator (contact.py) cannot be saved. If it has a checkpoint, the run ends: to go on
    could cost all work since then.
 6. A hung job is saved only if its state is useful (remedy.py), and only if it reaches a safe moment. If the attempt
    ends for another reason meanwhile, the job does not count as hung.
 7. No query of the environment (Watch.look) delays the last checkpoint by more than LEAST: the checkpoint begins before
    the query, or ends the wait for its answer.
 8. A job that a user has stopped has not ended by itself, although its ranks exit with 0: the attempt then does not
    count as finished, whatever the script does afterwards.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from ..ckpt import command
from ..ckpt.store import job, levels, publish
from ..core import processes
from ..core.errors import GoneError, ManapyError, ManifestError
from . import descendants, steps, timing
from .contact import Contact
from .record import Chain, Event
from .remedy import Mover, Remedy, remedy
from .watching import Hung, Watching

TICK = 0.25  # seconds between looks at the script's steps
RETRY = 5.0  # seconds between attempts to save before leaving
STARTS = 30.0  # seconds until a step that starts must have become a job
KILLS = 20.0  # seconds until killed ranks and processes must have ended
GONE = 2.0  # seconds after the script's end in which a silent coordinator may be writing its job's end
GONE_TRIES = 2  # checkpoints in a row; a coordinator that is starting has no port for a moment
SETTLE = 40.0  # seconds for a coordinator to record the end of its ranks; Slurm may give them 30 (KillWait)
HASTE = 10.0  # instead of both, if the attempt has expired: after 30 s (KillWait) Slurm kills its supervisor
LEAST = 1.0  # seconds that an answer of the surroundings is waited for, whatever is due


@dataclass(frozen=True)
class Policy:
    """When checkpoints are taken, and whether hung jobs are ended. Times in seconds.

    ``interval`` None: computed from ``mtbf`` (mean time between failures), but at least ``least``; without ``mtbf``
    only at the end. With ``least``, checkpoints that others have asked for count, too. ``patience``: how long a verdict
    must hold; None: the jobs are not watched. ``move``: a job is moved if one host makes it slow and it is worth it.
    """

    interval: float | None = None
    mtbf: float | None = None
    least: float = 0.0
    margin: float = timing.MARGIN
    patience: float | None = None
    move: bool = False


class AllocationState(NamedTuple):
    """The state of the environment of a run: the deadline (seconds since the epoch), the reason to leave earlier,
    ``what`` ends at the deadline, and when everything will be killed, saved or not.
    """

    deadline: float | None = None
    leave: str = ""
    what: str = "the allocation"
    killed: float | None = None


class Watch(Protocol):
    """The environment of a run: a Slurm allocation, or only the user."""

    period: float  # seconds between looks

    def look(self, enough: Callable[[], bool] = lambda: False) -> AllocationState:
        """Ask for the current state, and wait for an answer until ``enough()`` is true. Never raises: if the state
        cannot be found out, returns the last one."""

    def on_signal(self, number: int) -> str:
        """The reason to leave after this signal; empty: look again."""

    def judge(self, outcome: Outcome) -> Outcome:
        """Correct the outcome by what is known of the environment."""

    def can_replace(self, host: str) -> bool:
        """Is there a good host for the next attempt instead of this one?"""

    def end_remains(self) -> None:
        """End the processes on other hosts that the script has left. Raises ManapyError."""


class Outcome(NamedTuple):
    """How a run has ended.

    ``how``: finished: by itself, with ``code``; left: saved before the deadline, to be continued; yielded: the same,
    before the deadline was near; stopped: a user has stopped one of its jobs; crashed: a rank died, on ``host``; hung:
    ended because a job was hung, on ``host`` if the cause lies there; expired: not saved in time; taken: ended from
    outside before it was saved. ``noticed``: when a failure was, in seconds since the epoch.
    """

    how: str
    code: int = 0
    reason: str = ""
    host: str = ""
    noticed: float = 0.0


@dataclass(eq=False)
class _Save:
    """Checkpoints of all live jobs, taken in threads. ``stuck``: a job is hung, so its checkpoint may find no safe
    moment. ``move``: how the attempt ends if the jobs are to be moved. ``results``, in the order of jobs: a path, or
    the reason of failure."""

    cause: str
    then: str
    stuck: bool = False
    move: Outcome | None = None
    jobs: list[job.Job] = field(default_factory=list)
    results: list[Path | str] | None = None
    seconds: list[float] = field(default_factory=list)
    gone: Path | None = None  # a job without coordinator

    def fail(self, error: Exception) -> None:
        """No checkpoint could be begun."""
        self.seconds = [0.0 for _ in self.jobs]
        self.results = [f"{which.dir}: internal error: {error!r}" for which in self.jobs]


class Attempt:
    """See the head of this file. ``say`` shows a line to the user."""

    def __init__(
        self,
        chain: Chain,
        attempt: int,
        command: Sequence[str],
        policy: Policy,
        watch: Watch,
        say: Callable[[str], None],
        env: Mapping[str, str],
    ) -> None:
        self.chain = chain
        self.attempt = attempt
        self.command = list(command)
        self.policy = policy
        self.watch = watch
        self.say = say
        self.env = {**env, "MANAPY_CHAIN": str(chain.dir), "MANAPY_CHAIN_ATTEMPT": str(attempt)}
        self.measured, self._copy = timing.measured(chain.events("checkpoint"))
        self._child = 0
        self._code: int | None = None  # the script's exit code, once it has ended
        self._code_since = 0.0
        self._leave = ""
        self._at_once = False
        self._signals = 0
        self._save: _Save | None = None
        self._final: _Save | None = None
        self._watching = None if policy.patience is None else Watching(chain, attempt, policy.patience, say)
        self._running: set[int] = set()  # steps whose ranks have run
        self._held: set[Path] = set()  # jobs whose ranks we have stopped
        self._gone: dict[Path, int] = {}  # checkpoints in a row for which this job had no coordinator
        self._contact = Contact()
        self._told_lost: set[Path] = set()  # jobs that go on without coordinator, because they have no checkpoint
        self._hung: Outcome | None = None  # to be returned once its job is saved, or cannot be
        self._mover = Mover(chain, attempt, say) if policy.move else None
        self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for end in self._wake:  # not sooner: a thread that still waits writes to it
            weakref.finalize(self, os.close, end)
        self._told_interval = 0.0
        self._seen = 0.0  # the time of checkpoints that others have asked for: `manapy-launch --interval`, for example

    def run(self, look: AllocationState) -> Outcome:
        """Run until the outcome is known. ``look``: the current state of the environment."""
        processes.adopt_orphans()
        with processes.handled(self._on_signal):
            signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
            try:
                # keep the object: subprocess reaps the process of a deleted one
                self._script = subprocess.Popen(self.command, env=self.env, start_new_session=True)
                self._child = self._script.pid
                outcome = self._loop(look)
                if self._watching is not None:
                    self._watching.close()
                haste = outcome.how == "expired"
                if outcome.how != "finished":
                    self._kill_script(self._coordinators(), HASTE if haste else KILLS)
                # after a signal Slurm ends everything, and this process, too
                if not (haste or self._leave) and (outcome.how != "finished" or outcome.code):
                    self._end_remains()
                self._await_coordinators(HASTE if haste else SETTLE)
                return outcome
            finally:
                signal.set_wakeup_fd(-1)

    def _on_signal(self, number: int, _: object) -> None:
        self._signals += 1
        reason = self.watch.on_signal(number)
        self._at_once |= bool(self._leave) and number == signal.SIGINT
        if reason and not self._leave:
            self._leave = reason

    # ---- the loop

    def _loop(self, look: AllocationState) -> Outcome:
        begin = looked = time.time()
        signals, retry = 0, 0.0
        while True:
            status = descendants.reap(self._child)
            if status is not None:
                self._code, self._code_since = os.waitstatus_to_exitcode(status), time.monotonic()
            if self._final is None and (outcome := self._ended()) is not None:
                return outcome
            if (crash := self._crash()) is not None:
                return crash
            if self._at_once:
                return Outcome("expired", reason="interrupted twice")
            now = time.time()
            lead = timing.lead(self.measured, (look.deadline or now) - begin, self.policy.margin, self._copy)
            leave = self._leave or look.leave
            early = bool(leave)
            on_time = now >= (look.deadline or math.inf) - timing.ON_TIME
            if early and not on_time and not self.chain.events("ending", self.attempt):  # it may be killed meanwhile
                self.chain.append("ending", self.attempt, reason=leave)
            if not leave and look.deadline is not None and now >= look.deadline - lead:
                leave = f"{look.what} ends at {time.strftime('%H:%M:%S', time.localtime(look.deadline))}"
            self._collect()
            live = self._live()
            self._note_copies(live)
            if (lost := self._lost(live)) is not None:
                return lost
            self._note_running()
            if (hung := self._look_whether_hung(live)) is not None:
                return hung
            if not leave and now >= retry and (slow := self._slow_host(look)) is not None:
                self._final = self._begin_save(slow.reason, "hold", move=slow)
            if self._final is not None and self._final.results is not None:
                self._collect()  # it may have ended a moment ago
                # all jobs have ended by themselves meanwhile
                if self._code is not None and not any(self._final.results):
                    self._final = self._hung = None
                    continue
                if not (problem := _problem(self._final)):
                    # a step has begun meanwhile; held jobs are not live
                    if self._starting() or self._live():
                        self._final = None
                        continue
                    if (crash := self._crash()) is not None:
                        return crash
                    self._end_held()
                    if (stopped := self._stopped()) is not None:
                        return stopped
                    left = Outcome("yielded" if early else "left", reason=self._final.cause)
                    return self._hung or self._final.move or left
                if self._hung is not None:
                    self.say(f"it cannot be saved: {problem}")
                    return self._hung
                self.say(f"the checkpoint failed: {problem}; {self._fallback()}")
                self._final, retry = None, now + RETRY
                if look.deadline is not None and now + RETRY > look.deadline:
                    return Outcome("expired", reason=problem)
            if leave and self._final is None and now >= retry and not self._starting():
                self.say(f"{leave}: saving the job")
                self._final = self._begin_save(leave, "hold")
            elif not leave and self._save is None and self._final is None and self._due(begin, look, now):
                self._save = self._begin_save("measure" if not self.measured else "interval", "continue")
            if signals != self._signals or now >= min(looked + self.watch.period, look.killed or math.inf):
                signals, looked = self._signals, now
                due = now if leave else (look.deadline or math.inf) - lead
                look = self.watch.look(self._urgent(signals, due))
                if look.killed is not None and now >= look.killed:
                    return Outcome("expired", reason=f"{look.what} has ended before the job was saved")
            select.select([self._wake[0]], [], [], TICK)
            self._drain_wake()

    def _urgent(self, signals: int, due: float) -> Callable[[], bool]:
        """Becomes true, after LEAST, with the next signal, when the last checkpoint has ended, or when it must begin
        (``due``, in seconds since the epoch). ``signals``: how many signals have been handled."""
        final, least = self._final, time.time() + LEAST

        def urgent() -> bool:
            now = time.time()
            over = now >= due if final is None else final.results is not None
            return now >= least and (over or self._signals != signals)

        return urgent

    def _drain_wake(self) -> None:
        try:
            while os.read(self._wake[0], 4096):
                pass
        except BlockingIOError:
            pass

    def _lost(self, live: Sequence[job.Job]) -> Outcome | None:
        """The outcome if one of the live jobs has lost its coordinator (invariant 5)."""
        self._contact.look(live)
        for which in live:
            gone = self._gone.get(which.dir, 0) >= GONE_TRIES
            if which.dir in self._told_lost or not (gone or self._contact.lost(which)):
                continue
            reason = f"the coordinator of {which.dir} is lost"
            if self.chain.events("checkpoint"):
                self.say(f"{reason}, so the job cannot be saved any more")
                host = "" if gone else str(which.record.get("hostname", ""))
                return Outcome("crashed", 1, reason, host, round(time.time(), 3))
            self._told_lost.add(which.dir)
            self.say(f"{reason}: the job cannot be saved any more, but goes on, because it has no checkpoint")
        return None

    def _look_whether_hung(self, live: Sequence[job.Job]) -> Outcome | None:
        """The outcome if one of the live jobs is hung and not worth saving. Begins to save one that is."""
        if self._watching is None or self._hung is not None:
            return None
        self._watching.look(live)
        found = self._watching.hung
        busy = self._final is not None and self._final.move is None  # one that is saved to be moved may hang meanwhile
        if found is None or busy or (what := remedy(found[1])) is None:
            return None
        self._record(*found, what)
        self._hung = Outcome("hung", 1, found[1].sentence, what.host, round(time.time(), 3))
        if not what.save or self._final is not None:
            return self._hung
        self._final = self._begin_save(self._hung.reason, "hold", stuck=True)
        return None

    def _slow_host(self, look: AllocationState) -> Outcome | None:
        """The outcome if a job is to be moved away from a host that makes it slow."""
        if self._mover is None or self._watching is None or not self.measured or self._hung or self._final:
            return None
        takes = max(self.measured[-3:]) + (self._copy or 0.0)
        slow = self._mover.look(self._watching.slow, look.deadline, takes, self.watch.can_replace)
        return Outcome("yielded", reason=f"{slow.host} is slow", host=slow.host) if slow is not None else None

    def _record(self, which: job.Job, hung: Hung, what: Remedy) -> None:
        self.say(f"this is certain: {'saving and ' * what.save}ending the job; the evidence is in {hung.evidence}")
        self.chain.append(
            "hung",
            self.attempt,
            dir=str(which.dir),
            sentence=hung.sentence,
            since=hung.since,
            evidence=hung.evidence,
            place=list(what.place),
            host=what.host,
        )

    def _ended(self) -> Outcome | None:
        """The outcome after the script has ended and the coordinators have recorded the ends of its jobs.

        If a rank has died, it is a crash, whatever the script's exit code is. Jobs may go on for a moment. If Slurm's
        SIGTERM has ended only the script, they go on until they are saved. A job whose coordinator is gone is lost.
        """
        if self._code is None:
            return None
        if live := self._live():
            waited = time.monotonic() - self._code_since
            if waited > SETTLE or (waited > GONE and not any(which.is_live() for which in live) and self._live()):
                return Outcome(
                    "crashed", 1, f"the coordinator of {live[0].dir} is lost", str(live[0].record.get("hostname", ""))
                )
            return None
        finished = Outcome("finished", self._code if self._code >= 0 else 128 - self._code)
        return self._crash() or self._stopped() or finished

    def _await_coordinators(self, seconds: float) -> None:
        """Wait until the coordinators have recorded the end of their ranks."""
        deadline = time.monotonic() + seconds
        while (live := self._live()) and any(which.is_live() for which in live) and time.monotonic() < deadline:
            descendants.reap(self._child)
            time.sleep(TICK / 5)

    def _coordinators(self) -> set[int]:
        here = socket.gethostname()
        return {int(j.record["pid"]) for j in self._jobs() if j.record.get("hostname") == here}

    def _crash(self) -> Outcome | None:
        for step in self._steps():
            if steps.current(step) and (fate := steps.fate(Path(step["dir"]))).kind == "crashed":
                return Outcome("crashed", 1, fate.reason, fate.host, fate.noticed)
        return None

    def _stopped(self) -> Outcome | None:
        """The outcome if a user has stopped a job of this attempt (invariant 8)."""
        for step in self._steps():
            run = steps.current(step)
            if run is None or run.dir in self._held or run.state not in steps.STOPPED:
                continue
            without = " without a checkpoint" * (run.state == "stopped")
            return Outcome("stopped", reason=f"step {step['step']} was stopped by the user{without}")
        return None

    def _due(self, begin: float, look: AllocationState, now: float) -> bool:
        """Is it time for a checkpoint before the end? The first one of a chain measures its time."""
        interval = self._interval(math.inf if look.deadline is None else look.deadline - now)
        if interval is None and look.deadline is None:  # nothing needs the measurement
            return False
        if not self.measured:
            whole = look.deadline - begin if look.deadline is not None else math.inf
            interval = min(timing.trial(whole), interval or math.inf)
        last = max(
            (
                float(e["time"])
                for e in self.chain.events(attempt=self.attempt)
                if e["event"] in ("checkpoint", "failed")
            ),
            default=begin,
        )
        if interval is None or now - max(last, self._seen) < interval or not (live := self._live()):
            return False
        if self.policy.least and self.measured:
            self._seen = min(now, *map(_newest, live))
        return now - self._seen >= interval

    def _interval(self, left: float) -> float | None:
        """Seconds between checkpoints. Prints them when a new measurement changes them by a tenth. With ``least`` the
        user has not asked for checkpoints, so the interval is printed only if one fits into the seconds that are
        left."""
        if self.policy.interval is not None or self.policy.mtbf is None:
            return self.policy.interval
        if not self.measured:
            # assume a second per checkpoint, to measure it soon
            return max(min(timing.young(1.0, self.policy.mtbf), timing.TRIAL_MAX), self.policy.least)
        cost = max(self.measured[-3:])
        interval = max(timing.daly(cost, self.policy.mtbf), self.policy.least)
        if abs(interval - self._told_interval) <= 0.1 * self._told_interval:
            return interval
        if not self.policy.least:
            self.say(
                f"a checkpoint takes {cost:.2f} s, and failures occur every {self.policy.mtbf:.0f} s:"
                f" one checkpoint every {interval:.0f} s (Daly's formula; Young's:"
                f" {timing.young(cost, self.policy.mtbf):.0f} s)"
            )
        elif interval < left:
            every = f"{interval / 60:.0f} min"
            self.say(f"a checkpoint takes {cost:.2f} s: one every {every} (--interval or --mtbf changes this)")
        self._told_interval = interval
        return interval

    # ---- steps and jobs

    def _steps(self) -> list[Event]:
        return self.chain.steps(self.attempt)

    def _jobs(self) -> list[job.Job]:
        """The jobs of this attempt's steps, as they are now."""
        return [
            found for step in self._steps() if step["verdict"] != "done" and (found := steps.current(step)) is not None
        ]

    def _note_running(self) -> None:
        """Record when a step's ranks have begun to run."""
        for step in self._steps():
            if step["step"] in self._running or (run := steps.current(step)) is None or run.state != "running":
                continue
            self._running.add(step["step"])
            self.chain.append("running", self.attempt, step=step["step"], since=run.record["changed"])

    def _live(self) -> list[job.Job]:
        """The jobs that run now."""
        return [j for j in self._jobs() if j.state in job.LIVE]

    def _starting(self) -> bool:
        """Has a step asked recently what to do, without having a job yet?"""
        return any(
            step["verdict"] != "done" and steps.current(step) is None and time.time() - step["time"] < STARTS
            for step in self._steps()
        )

    # ---- checkpoints

    def _begin_save(self, cause: str, then: str, stuck: bool = False, move: Outcome | None = None) -> _Save:
        save = _Save(cause, then, stuck, move, self._live())
        if then == "hold":  # before its end, which may come without an answer
            self._held |= {which.dir for which in save.jobs}
        try:
            threading.Thread(target=self._work, args=(save,), daemon=True).start()
        except RuntimeError as error:  # no more threads are allowed
            save.fail(error)
        return save

    def _work(self, save: _Save) -> None:
        """Take checkpoints in a thread (invariant 3)."""

        def one(which: job.Job) -> tuple[Path | str, float]:
            begin = time.monotonic()
            try:
                take = command.checkpoint_stuck if save.stuck else command.checkpoint
                result: Path | str = take(which, then=save.then)
            except ManapyError as error:
                result = "" if which.end() else str(error)
                if result and isinstance(error, GoneError):
                    save.gone = which.dir
            except Exception as error:  # else the main thread would wait for ever
                result = f"{which.dir}: internal error: {error!r}"
            return result, time.monotonic() - begin

        try:
            with ThreadPoolExecutor(max(len(save.jobs), 1)) as pool:
                done = list(pool.map(one, save.jobs))
        except Exception as error:  # for example, no more threads are allowed
            save.fail(error)
        else:
            save.seconds = [seconds for _, seconds in done]
            save.results = [result for result, _ in done]
        os.write(self._wake[1], b"\0")

    def _collect(self) -> None:
        """Record the results of finished checkpoints."""
        for save in (self._save, self._final):
            if save is None or save.results is None or not save.jobs:
                continue
            for which, result, seconds in zip(save.jobs, save.results, save.seconds, strict=True):
                if isinstance(result, Path):
                    self._note_checkpoint(save, which, result, seconds)
                elif result:
                    self._held.discard(which.dir)
                    self.chain.append(
                        "failed", self.attempt, cause=save.cause, reason=result, seconds=round(seconds, 3)
                    )
                    if save is self._save:
                        self.say(f"the checkpoint failed: {result}; {self._fallback()}")
            save.jobs = []
        if self._save is not None and self._save.results is not None:
            gone = self._save.gone
            self._gone = {} if gone is None else {gone: self._gone.get(gone, 0) + 1}
            self._save = None

    def _note_checkpoint(self, save: _Save, which: job.Job, path: Path, seconds: float) -> None:
        """Record a new checkpoint. ``seconds`` have passed until the answer: the last one is copied before that, others
        after it."""
        size, copied, only_local = 0, False, False
        try:
            manifest = publish.read_manifest(path)
            size, copied = manifest.file_bytes, manifest.levels.shared
            only_local = save.then == "hold" and levels.awaits_copy(manifest.record)
        except ManifestError as error:  # it is published all the same
            self.say(f"the size of a new checkpoint cannot be read ({error})")
        copies = steps.copies(job.readable([which.dir]))
        if save.then == "hold" and copied:
            seconds = max(seconds - sum(copy or 0.0 for copy in copies), 0.0)
        self.chain.append(
            "checkpoint",
            self.attempt,
            path=str(path),
            seconds=round(seconds, 3),
            bytes=size,
            cause=save.cause,
            **({"flush": copies[0]} if copies else {}),
            **({"only_local": True} if only_local else {}),
        )
        self.measured.append(seconds)
        if only_local:
            log = which.dir / "coordinator.log"
            self.say(
                f"{path} could not be copied: it is on local storage only, and may be lost with the nodes: see {log}"
            )

    def _note_copies(self, live: Sequence[job.Job]) -> None:
        """How long does a copy from local storage take? Each job reports the time of its last copy. The jobs make their
        last copies at the same time."""
        if copies := steps.copies(live):
            timed = [copy for copy in copies if copy is not None]
            self._copy = max(timed) if timed else self._copy or None

    def _fallback(self) -> str:
        taken = self.chain.events("checkpoint")
        if not taken:
            return "there is no earlier checkpoint; the job goes on"
        when = time.strftime("%H:%M:%S", time.localtime(taken[-1]["time"]))
        return f"the job goes on; the last checkpoint, of {when}, remains: {taken[-1]['path']}"

    # ---- the end

    def _end_held(self) -> None:
        """Invariant 1, from the state in which the ranks are held."""
        jobs = [j for j in self._jobs() if j.state in (*job.LIVE, "checkpointed")]
        spare: set[int] = set()
        here = socket.gethostname()
        for which in jobs:
            try:
                status = command.status(which)
            except ManapyError:
                continue
            spare |= {int(status["pid"])} | {
                int(rank["pid"]) for rank in status["ranks"] if rank.get("host") == here and rank.get("pid")
            }
        self._kill_script(spare, KILLS)
        for which in jobs:
            try:
                command.stop(which, checkpoint=False)
            except ManapyError:
                continue  # it has ended already

    def _end_remains(self) -> None:
        try:
            self.watch.end_remains()
        except ManapyError as error:
            self.say(f"cannot end what is left of this attempt ({error})")

    def _kill_script(self, spare: set[int], seconds: float) -> None:
        """Kill until no process below us is left except ``spare``."""
        deadline = time.monotonic() + seconds
        while descendants.kill_below(os.getpid(), spare) and time.monotonic() < deadline:
            descendants.reap(self._child)
            time.sleep(0.01)
        descendants.reap(self._child)


def _newest(which: job.Job) -> float:
    """The time of the newest checkpoint of a job; 0 if there is none, or it cannot be read."""
    try:
        found = publish.latest(which.dir)
        return publish.read_manifest(found).time if found is not None else 0.0
    except (ManapyError, OSError):
        return 0.0


def _problem(save: _Save) -> str:
    return next((result for result in save.results or [] if isinstance(result, str) and result), "")
