"""Slurm's side of a chain: the state of an allocation, and the jobs that follow it. Uses only Slurm's commands.

Facts about Slurm that this module relies on (squeue(1), scontrol(1), sbatch(1); tried with 22.05):
- EndTime of a running job is its deadline, also after `scontrol update` and within the grace time of a preemption. When
  Slurm ends the job, EndTime becomes this time, by the clock of slurmctld.
- `scontrol requeue` of a running batch job kills it (SIGTERM, after KillWait SIGKILL) and queues it again under its id.
- The last task of a job array has the array's id as its SLURM_JOB_ID, and a command takes this id for all tasks.
- While a requeued job is still completing, squeue's number of its nodes is that of the nodes that have not completed.
- squeue writes 1024 nodes as 1K, unless it gets --noconvert.
- squeue writes times in the zone of TZ. At the end of summer time an hour of local time comes twice.
- The tasks of a step live on if its srun is killed. scancel of a step sends SIGTERM, and SIGKILL 2 s later.
- A job that the scheduler has requeued itself, after a lost node or a preemption, comes back the same way.
"""

from __future__ import annotations

import calendar
import contextlib
import math
import os
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from ..core.errors import ManapyError, UsageError
from ..core.processes import is_alive
from . import timing
from .attempt import AllocationState, Outcome

ANSWER_SECONDS = 60.0
LOOK_SECONDS = 0.25  # between looks whether something else is more urgent than an answer
PERSIST_SECONDS = 300.0  # slurmctld starts again, or another host takes over
PAUSE, PAUSE_MAX = 1.0, 15.0  # seconds between two tries; twice as long each time
SHOWN = {
    "JobState": "State",
    "EndTime": "EndTime",
    "PreemptTime": "PreemptTime",
    "Restarts": "RestartCnt",
    "Requeue": "Requeue",
    "TimeLimit": "TimeLimit",
    "TimeMin": "MinTime",
}
WIDTH = 32  # of a column of squeue
# what scancel says of a job or step that has ended (slurm_errno.c)
GONE = ("Invalid job id specified", "already completing or completed")
CANCELLED = ("CANCELLED", "DEADLINE")
# in a node's state as sinfo gives it (sinfo(1), NODE STATE CODES)
LEAVING = ("drain", "drng", "maint", "reboot", "@", "^")
UNWELL = ("down", "fail", "*", *LEAVING)


T = TypeVar("T")


class SlurmError(ManapyError):
    """A Slurm command failed; has the command's own message."""


class TooFewNodes(ManapyError):
    """Without the nodes that are to be excluded a job could never start."""


def command(*arguments: str | Path) -> str:
    """Run a Slurm command. Returns its standard output. Raises SlurmError."""
    name = str(arguments[0])
    # not for sbatch: a job would inherit it
    zone = {"TZ": "UTC0"} if name == "squeue" else {}
    try:
        process = subprocess.Popen(
            [str(a) for a in arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**_clean(), **zone},
        )
    except FileNotFoundError:
        raise SlurmError(
            f"{name}: no such program: is this a Slurm cluster? (Debian: apt install slurm-client)"
        ) from None
    with process:
        output, errors = _answer(process, name)
    if process.returncode:
        said = [line for line in errors.splitlines() if line.strip()]
        cause = [line for line in said if "error:" in line][-1:] or said[:1] or [f"exit code {process.returncode}"]
        raise SlurmError(f"{name}: {cause[0].removeprefix(f'{name}: ').removeprefix('error: ')}")
    return output.strip()


def _answer(process: subprocess.Popen[str], name: str) -> tuple[str, str]:
    """Output and errors of a command. Raises SlurmError if it takes too long."""
    begin = time.monotonic()
    while True:
        try:
            return process.communicate(timeout=LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            if (waited := time.monotonic() - begin) > ANSWER_SECONDS or _enough.get()():
                process.kill()
                raise SlurmError(f"{name} did not answer within {waited:.0f} s") from None


_enough: ContextVar[Callable[[], bool]] = ContextVar("enough", default=lambda: False)


@contextlib.contextmanager
def waiting_until(enough: Callable[[], bool]) -> Iterator[None]:
    """In the body of the `with`: do not wait for answers any longer once ``enough()`` is true."""
    token = _enough.set(enough)
    try:
        yield
    finally:
        _enough.reset(token)


def persistently(call: Callable[[], T], seconds: float = PERSIST_SECONDS) -> T:
    """Call something until it no longer raises SlurmError. After ``seconds`` raise the last one."""
    end, pause = time.monotonic() + seconds, PAUSE
    while True:
        try:
            return call()
        except SlurmError:
            if time.monotonic() + pause > end:
                raise
        time.sleep(pause)
        pause = min(2 * pause, PAUSE_MAX)


def _clean() -> dict[str, str]:
    """Our environment without the variables of this job: a job that is submitted here must not use them as its own."""
    return {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("SLURM_", "SLURMD_", "SQUEUE_", "MANAPY_CHAIN")) or k == "SLURM_CONF"
    }


def show(job: str) -> dict[str, str]:
    """The state of a job (of a whole array: of its first task), by scontrol's names. Raises SlurmError.

    It asks only for fields that no user fills in: scontrol's own output mixes them with names, comments and paths,
    which may contain anything.
    """
    columns = ",".join(f"{column}:{WIDTH}" for column in SHOWN.values())
    lines = command(
        "squeue", "--noheader", "--states=all", "--array", "--sort=i", f"--jobs={job}", f"--Format={columns}"
    ).splitlines()
    first = lines[0] if lines else ""
    return {name: text for i, name in enumerate(SHOWN) if (text := first[i * WIDTH : (i + 1) * WIDTH].strip())}


def exclude(job: str, nodes: Sequence[str]) -> bool:
    """Let a queued job start on none of these nodes, and on none of those that it has excluded so far. Returns whether
    there was a new one. Raises SlurmError, and TooFewNodes if its partition has not enough other nodes."""
    shown = command("squeue", "--noheader", "--noconvert", "--states=all", f"--jobs={job}", "--format=%D|%P|%x")
    shown_nodes, partition, so_far = (shown.splitlines() or ["||"])[0].split("|")
    had = os.environ.get("SLURM_JOB_NUM_NODES", "") if job == own_job() else ""
    needed = max((int(number) for number in (shown_nodes, had) if number.isdigit()), default=0)
    known = hostnames(so_far) if so_far else []
    new = [node for node in nodes if node not in known]
    if not new:
        return False
    here = command("sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%N").split()
    left = {*here} - {*known, *new}
    if len(left) < needed:
        raise TooFewNodes(
            f"only {len(left)} of the nodes of partition {partition} would be left, and the job needs {needed}"
        )
    command("scontrol", "update", f"JobId={job}", f"ExcNodeList={','.join([*known, *new])}")
    return True


def own_job() -> str:
    """The id of the job that this process runs in, ARRAY_TASK for a task of an array; "" outside of Slurm."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID", "")


def was_cancelled(job: str) -> bool:
    """Was a job that has ended cancelled? Slurm forgets this after some minutes (MinJobAge)."""
    try:
        return show(job).get("JobState") in CANCELLED
    except SlurmError:
        return False


def seconds(limit: str) -> float | None:
    """A time limit as Slurm shows it ([[days-]hours:]minutes:seconds); None: no limit."""
    days, _, clock = limit.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in parts) or len(parts) not in (2, 3):
        return None
    hours, minutes, rest = map(int, ["0", *parts][-3:])
    return int(days or 0) * 86400.0 + hours * 3600 + minutes * 60 + rest


def _epoch(text: str) -> float | None:
    try:
        return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return None


def node_states(nodes: str) -> dict[str, str]:
    """State by node, for a node list as Slurm writes it. Raises SlurmError."""
    lines = command("sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N %T").splitlines()
    return dict(line.split(" ", 1) for line in lines if " " in line)


def hostnames(nodes: str) -> list[str]:
    """The names in a node list as Slurm writes it, in order. Raises SlurmError."""
    return command("scontrol", "show", "hostnames", nodes).split()


def present(job: str) -> list[str]:
    """The nodes of a running job, in order; without those that Slurm has removed from it. Raises SlurmError."""
    return hostnames(command("squeue", "--noheader", f"--jobs={job}", "--format=%N"))


def start_on(node: str, words: Sequence[str | Path], log: Path) -> subprocess.Popen[bytes]:
    """Start a command on a node of this job, beside all other steps. It does not end with its srun."""
    with log.open("ab") as stream:
        return subprocess.Popen(
            ["srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--mpi=none", *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env={**_clean(), "SLURM_JOB_ID": os.environ["SLURM_JOB_ID"]},
            start_new_session=True,
        )


def is_unwell(state: str) -> bool:
    """Is a node in this state no longer usable?"""
    return any(word in state for word in UNWELL)


def _left(job: str) -> list[str]:
    """The job's steps whose srun has run on this host, and has ended. A user may look at the job with another srun.
    Raises SlurmError."""
    here = socket.gethostname().partition(".")[0]
    shown = command("scontrol", "--oneliner", "show", "step", job)
    sruns = re.findall(r"^StepId=(\S+\.\d+) .*SrunHost:Pid=(\S+):(\d+)$", shown, re.MULTILINE)  # not .batch
    return [step for step, host, pid in sruns if host.partition(".")[0] == here and not is_alive(int(pid))]


class Allocation:
    """The job this process runs in (attempt.Watch). ``budget_end``: when the chain's time is used up, or None;
    ``period``: seconds between looks. ``used``: the nodes that the script uses, if these are not all (spares.py);
    ``freed``: if some of those must be freed, the text that look() gives as reason to leave;
    ``ended``: the last reason to leave that on_signal() gave; from then on look() gives it, too.
    ``when_cancelled``: look() calls this once, if it finds after a signal that the job was cancelled;
    ``can_replace``: see attempt.Watch."""

    def __init__(self, budget_end: float | None, period: float) -> None:
        self.period = period
        self.job = own_job()
        self.nodes = os.environ.get("SLURM_JOB_NODELIST", "")
        if not self.job or not self.nodes:
            raise ManapyError(
                "this is not a Slurm batch job (SLURM_JOB_ID is not set); submit the script with sbatch, or with "
                "`manapy slurm chain`"
            )
        self.used: list[str] = []
        self.freed = ""
        self.ended = ""
        self.when_cancelled: Callable[[], object] | None = None
        self.can_replace: Callable[[str], bool] = lambda host: False
        self._budget_end = budget_end
        self._restarts = ""
        self._promised = math.inf  # the last deadline while the job ran
        self._last = AllocationState(budget_end)

    def look(self, enough: Callable[[], bool] = lambda: False) -> AllocationState:
        """See attempt.Watch."""
        if self.ended and self.when_cancelled is not None:
            with waiting_until(enough):
                cancelled = self.cancelled()
            if cancelled:
                self.when_cancelled()
                self.when_cancelled = None
        try:
            with waiting_until(enough):
                job, states = show(self.job), self.states()
        except SlurmError:
            # the controller does not answer for a while: its last answer still holds
            return self._last._replace(leave=self._last.leave or self.ended)
        leaving = [
            f"{name} ({state})"
            for name, state in states.items()
            if any(word in state for word in LEAVING) and name in (self.used or [name])
        ]
        end = _epoch(job.get("EndTime", ""))
        ends = [known for known in (end, self._budget_end) if known is not None]
        leave, killed = "", self._last.killed  # the EndTime of a job that Slurm ends is now: KillWait comes after it
        if job.get("JobState") == "RUNNING":
            killed = end
            self._restarts, self._promised = job.get("Restarts", ""), min(ends, default=math.inf)
        if _epoch(job.get("PreemptTime", "")) is not None:
            leave = "a job of higher priority needs the nodes"
        elif leaving:
            leave = self.freed = f"{', '.join(leaving)} must be freed"
        self._last = AllocationState(min(ends, default=None), leave or self.ended, killed=killed)
        return self._last

    def on_signal(self, number: int) -> str:
        """SIGTERM: Slurm ends the job (limit, preemption, scancel). SIGUSR1, SIGUSR2 and SIGHUP: the warning of
        `sbatch --signal`, which may come much too early; so ask for the deadline again."""
        if number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            return ""
        self.ended = f"Slurm sent {signal.Signals(number).name}"
        return self.ended

    def states(self) -> dict[str, str]:
        """State by node, of all nodes that the allocation had at its begin. Raises SlurmError."""
        return node_states(self.nodes)

    def all_nodes(self) -> list[str]:
        """The nodes that the allocation had at its begin, in order; none if their names cannot be found out."""
        try:
            return hostnames(self.nodes)
        except SlurmError:
            return []

    def present(self) -> list[str]:
        """The nodes that the allocation still has. Raises SlurmError."""
        return present(self.job)

    def end_remains(self) -> None:
        """End the steps that have survived their srun: with a rank that is hung or stopped, or on a node that does not
        answer. They would keep the processors of all their nodes. Raises SlurmError."""
        for step in _left(self.job):
            try:
                command("scancel", step)
            except SlurmError as error:
                if not any(text in str(error) for text in GONE):
                    raise

    def unwell(self) -> list[str]:
        """The nodes of this allocation that are no longer usable."""
        try:
            return [name for name, state in self.states().items() if is_unwell(state)]
        except SlurmError:
            return []

    def cancelled(self) -> bool:
        """Was the job cancelled? While Slurm ends it, its state is only COMPLETING. Then it is cancelled if the end
        came before the deadline, and there was no requeue, preemption or lost node.
        """
        job = self._shown()
        if job.get("JobState") != "COMPLETING":
            return job.get("JobState") in CANCELLED
        return (
            not self._at_limit(job)
            and job.get("Restarts") == self._restarts
            and _epoch(job.get("PreemptTime", "")) is None
            and not self.unwell()
        )

    def judge(self, outcome: Outcome) -> Outcome:
        """See attempt.Watch. If a rank died, or srun or the script failed, because Slurm ends the job or takes its
        nodes, it is no crash, and not the script's own end: the attempt was taken, or, at the time limit, has expired.
        If the script fails because one of the nodes that it uses was lost, it is a crash."""
        failed = outcome.how == "finished" and outcome.code != 0
        if failed and self.used and (lost := [node for node in self.unwell() if node in self.used]):
            outcome = Outcome("crashed", outcome.code, f"{', '.join(lost)} can no longer be used")
        if outcome.how != "crashed" and not failed:
            return outcome
        if self.taken_back():
            return outcome._replace(how="taken", reason="Slurm has requeued the job")
        leave = self.look().leave
        if outcome.how == "finished":  # only a signal ends a script: it may fail by itself while a node is drained
            leave = self.ended
            if not leave:
                return outcome
        if leave == self.ended and self._at_limit(self._shown()):
            why = outcome.reason or f"exit code {outcome.code}"
            return outcome._replace(how="expired", reason=f"the allocation has ended ({why})")
        return outcome._replace(how="taken", reason=leave) if leave else outcome

    def taken_back(self) -> bool:
        """Has Slurm itself requeued the job, so that it will end this run?"""
        job = self._shown()
        return job.get("JobState") in ("PENDING", "REQUEUED") or (
            job.get("JobState") == "COMPLETING" and job.get("Restarts") != self._restarts
        )

    def _shown(self) -> dict[str, str]:
        """The state of the job; empty if Slurm does not answer."""
        try:
            return show(self.job)
        except SlurmError:
            return {}

    def _at_limit(self, job: Mapping[str, str]) -> bool:
        """Has the job reached its time limit? Slurm's own time of its end decides, if Slurm has ended it: the clock of
        this node may be another one."""
        end = _epoch(job.get("EndTime", "")) if job.get("JobState") == "COMPLETING" else None
        return (time.time() if end is None else end) >= self._promised - timing.ON_TIME

    def requeueable(self) -> bool:
        """May the job be requeued? (sbatch --requeue, JobRequeue of slurm.conf) If Slurm does not answer, a try at the
        end will tell."""
        try:
            return persistently(lambda: show(self.job)).get("Requeue") == "1"
        except SlurmError:
            return True


def header(script: str) -> list[str]:
    """The #SBATCH lines of a script: those before its first command, as sbatch(1) has it."""
    found = []
    for line in script.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            found.append(line)
    return found


def words(options: str, comments: bool = False) -> list[str]:
    """The words of sbatch's options. Raises UsageError."""
    try:
        return shlex.split(options, comments)
    except ValueError as error:
        raise UsageError(f"{options.strip()}: {error}") from None


def submit(batch: Path, options: Sequence[str]) -> str:
    """Submit a script by sbatch. Returns the job's id. Raises SlurmError."""
    return command("sbatch", "--parsable", *options, batch).splitlines()[-1].partition(";")[0]


def submit_after(job: str, batch: Path, options: Sequence[str]) -> str:
    """Submit a script that starts when a job has ended, unless one is queued already. Returns the id of that job. Tries
    it persistently. Raises SlurmError.

    Slurm may accept a job and not answer, or whoever has submitted it may have died before he noted it. So this looks
    before each try. Slurm may accept that job after such a look, too: if two are queued, the younger one is cancelled.
    """

    def attempt() -> str:
        if not (queued := _queued_after(job, batch)):
            submitted = submit(batch, [*options, f"--dependency=afterany:{job}"])
            queued = _queued_after(job, batch) or [submitted]
        for younger in queued[1:]:
            command("scancel", "--state=PENDING", younger)
        return queued[0]

    return persistently(attempt)


def _queued_after(job: str, batch: Path) -> list[str]:
    """The user's queued jobs that start this script when a job has ended: their ids, oldest first. Raises
    SlurmError."""
    lines = command("squeue", "--noheader", "--me", "--states=PENDING", "--format=%A|%E|%o").splitlines()
    found = [
        id
        for id, dependency, script in (line.split("|", 2) for line in lines if line.count("|") >= 2)
        if re.search(rf"\bafterany:{job}\b", dependency) and script.startswith(str(batch))
    ]
    return sorted(found, key=int)
