"""A chain of Slurm jobs: submitting it, and what happens in each allocation.

Invariants
 1. Until the chain is over, another allocation follows each allocation, however it has ended. In requeue mode the same
    job runs again (Slurm itself does this after a lost node or a preemption). In dependency mode the successor is
    queued before the script begins. While processes of an earlier allocation still work on the chain (their node has
    lost only its connection to Slurm), an allocation waits. If the wait does not end within the allocation, the next
    allocation continues it. The same is done for errors of the file system that may pass (ESTALE, ENOSPC).
 2. A cancelled job has no successor: scancel ends the chain. Its successors are cancelled while its state is saved,
    because it may be killed at any time. A user who stops a job of the script (manapy stop) ends the chain, too.
 3. A signal does not end the guard directly: it ends the current attempt. Between attempts it is kept for the next one.
 4. The script is copied once. A later change of its file has no effect.
 5. Each task of a job array has a chain of its own. A job that continues a task is not an array, but the script gets
    the variables of the task.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..core.errors import ManapyError, explained, why
from ..core.processes import handled
from . import policy, record, slurm, spares, timing
from .attempt import Outcome
from .lock import BusyError
from .record import Chain
from .supervisor import EXIT_STOPPED, FORCED, Supervisor

REQUEUE_SECONDS = 3600.0  # to try it; at the time limit Slurm ends this
BUSY_SECONDS = 60.0  # between two lines that say what an allocation waits for
REQUEUED_SECONDS = 120.0  # until Slurm has killed a job that it has requeued
ESCAPED = "surrogateescape"  # so that bytes that are no UTF-8 stay what they are
PASSING_SECONDS, PASSING_PAUSE = 300.0, 2.0  # to try again what fails before an attempt, and between two tries
PASSING = (
    errno.EAGAIN,
    errno.EDQUOT,
    errno.EHOSTDOWN,
    errno.EIO,
    errno.ENFILE,
    errno.ENOLCK,
    errno.ENOMEM,
    errno.ENOSPC,
    errno.ENOTCONN,
    errno.EREMOTEIO,
    errno.ESHUTDOWN,
    errno.ESTALE,
    errno.ETIMEDOUT,
)
HASTE_SECONDS = 20.0  # to change queued jobs at the end; after 30 s (KillWait) Slurm kills this
EXIT_GAVE_UP = EXIT_STOPPED  # also of a job that was cancelled, and while Slurm requeues it
MADE = ("chain.json", "script", "batch.sh")  # what prepare() makes in the directory of a chain
JOBS = ("attempt", "successor")  # events with the id of a job of the chain
ARRAY = (
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_ARRAY_TASK_COUNT",
    "SLURM_ARRAY_TASK_MIN",
    "SLURM_ARRAY_TASK_MAX",
    "SLURM_ARRAY_TASK_STEP",
)
T = TypeVar("T")


# ---- submission


def read_script(path: Path) -> str:
    """The text of a script, in whatever encoding its comments are."""
    return path.read_text(errors=ESCAPED)


def prepare(
    directory: Path,
    script: str,
    arguments: Sequence[str],
    options: Sequence[str],
    sbatch: Sequence[str],
    mode: str,
    more: int = 0,
    array: Mapping[str, str] | None = None,
) -> Chain:
    """Make a chain's directory with a copy of the script and the batch script that starts `manapy slurm guard`.
    ``options``: of guard; ``sbatch``: options for every submission; ``more``: spare nodes; ``array``: the
    variables of a task of a job array, if it is one (invariant 5). Raises ManapyError."""
    if not script.startswith("#!"):
        raise ManapyError("the script must begin with '#!' and an interpreter (such as #!/bin/bash), as sbatch demands")
    header, sbatch = slurm.header(script), list(sbatch)
    if array:
        header, sbatch = _without_array_lines(header), _without_array(sbatch)
    needs: dict[str, Any] = {"spares": spares.shape(header, sbatch, more)._asdict()} if more else {}
    if not _is_given("--chdir|-D", header, sbatch):
        needs["chdir"] = str(Path.cwd())
    if array:
        needs["environment"] = dict(array)
    directory = directory.absolute()
    if record.is_chain(directory):
        there = record.read(directory)
        can_go_on = there.record["kind"] == "slurm" and (there.over() or {}).get("event") != "finished"
        hint = f"; continue: {again(there)}" if can_go_on else ""
        raise ManapyError(f"{directory} contains a chain already{hint}")
    if taken := [directory / name for name in MADE[1:] if os.path.lexists(directory / name)]:
        raise ManapyError(f"{taken[0]} exists already: give the chain a directory of its own (--dir)")
    command = [str(directory / "script"), *arguments]
    fixed = {"kind": "slurm", "command": command, "cwd": str(Path.cwd()), "sbatch": sbatch, "mode": mode}
    chain = record.create(directory, {**fixed, **needs})
    guard = [os.path.abspath(sys.argv[0]), "slurm", "guard", "--dir", str(directory), *options]
    lines = [
        "#!/bin/sh",
        *header,
        *(f"#SBATCH {option}" for option in ("--requeue", "--open-mode=append")),
        f'exec {shlex.join(guard)} "$@"',  # sbatch batch.sh --force
    ]
    try:
        (chain.dir / "script").write_text(script, errors=ESCAPED)
        (chain.dir / "script").chmod(0o700)
        (chain.dir / "batch.sh").write_text("\n".join(lines) + "\n", errors=ESCAPED)
        (chain.dir / "batch.sh").chmod(0o600)  # whatever the umask is
    except BaseException:  # without its script it could not go on
        withdraw(chain)
        raise
    return chain


def withdraw(chain: Chain) -> None:
    """Remove what prepare() has made. All else in the directory is the user's."""
    for name in MADE:
        (chain.dir / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # the user's
        chain.dir.rmdir()


def submit(chain: Chain, estimate: float | None, margin: float) -> tuple[str, float | None]:
    """Submit the first job. Returns its id and its time limit in seconds (None: no limit). If the user has set none
    (names_time), Slurm shows that of the partition: a job that names none may get less.

    If the limit is too short for even one checkpoint, the job is cancelled. Raises ManapyError.
    """
    job = slurm.submit(chain.dir / "batch.sh", ["--hold", *_sbatch(chain)])
    try:
        shown = slurm.show(job)
        limit = slurm.seconds(shown.get("TimeMin", "")) or slurm.seconds(shown.get("TimeLimit", ""))
        needed = timing.shortest(estimate, margin)
        if limit is not None and limit < needed:
            what = (
                f"a checkpoint takes {estimate:.0f} s"
                if estimate is not None
                else "the time of a checkpoint is unknown (--checkpoint-time)"
            )
            raise ManapyError(
                f"an allocation of {limit:.0f} s is too short for even one checkpoint: {what}, so at least "
                f"{needed:.0f} s are needed (sbatch --time)"
            )
        slurm.command("scontrol", "release", job)
    except BaseException:
        slurm.command("scancel", job)
        raise
    return job, limit


def names_time(chain: Chain) -> bool:
    """Has the user set a time limit for the jobs of this chain?"""
    header = slurm.header(read_script(chain.dir / "script"))
    return "SBATCH_TIMELIMIT" in os.environ or _is_given("--time|-t", header, chain.record["sbatch"])


def _is_given(names: str, header: Sequence[str], sbatch: Sequence[str]) -> bool:
    """Is one of these options of sbatch (as a regular expression) among those of the script or of the command?"""
    return any(re.search(rf"(^|\s)({names})", text) for text in (*header, *sbatch))


def _sbatch(chain: Chain) -> list[str]:
    """The options of every submission."""
    needs = chain.record.get("spares")
    return [*chain.record["sbatch"], *(spares.Shape(**needs).options() if needs else [])]


def again(chain: Chain) -> str:
    """The command that continues the chain, in any directory."""
    where = [f"--chdir={there}"] if (there := chain.record.get("chdir")) else []
    return shlex.join(["sbatch", *where, *_sbatch(chain), str(chain.dir / "batch.sh")])


def estimate(chain: Chain, given: float | None) -> float | None:
    """Seconds of a checkpoint, and of its copy if it is copied from local storage: the given value, or as this chain
    has measured."""
    measured, copy = timing.measured(chain.events("checkpoint"))
    return given if given is not None or not measured else max(measured[-3:]) + (copy or 0.0)


# ---- in an allocation


def task_directory(directory: Path) -> Path:
    """The directory of this task: each task of a job array has its own chain."""
    task = os.environ.get("SLURM_ARRAY_TASK_ID")
    return directory if task is None else directory / f"task-{task}"


def open_in_job(directory: Path | None, command: Sequence[str], options: Sequence[str], mode: str) -> Chain:
    """The chain of this job. Raises ManapyError.

    A job that was submitted with plain sbatch makes its chain in its first allocation; ``command`` is the script.
    """
    if directory is not None and record.is_chain(task_directory(directory)):
        return record.read_own(task_directory(directory))
    array = {name: os.environ[name] for name in ARRAY if name in os.environ}
    if directory is not None and record.is_chain(directory):  # a task of an array, for the first time
        parent = record.read_own(directory)
        return prepare(
            task_directory(directory),
            read_script(parent.dir / "script"),
            parent.record["command"][1:],
            options,
            parent.record["sbatch"],
            parent.record["mode"],
            parent.record.get("spares", {}).get("more", 0),
            array,
        )
    if not command:
        raise ManapyError(
            f"{directory}: not the directory of a chain"
            if directory
            else 'the script is missing: manapy slurm guard -- "$0" "$@"'
        )
    where = task_directory(
        directory
        or Path.cwd() / f"manapy-chain-{os.environ.get('SLURM_ARRAY_JOB_ID', os.environ.get('SLURM_JOB_ID', ''))}"
    )
    if record.is_chain(where):
        return record.read_own(where)
    with explained(ManapyError):
        script = read_script(Path(command[0]))
    return prepare(where, script, command[1:], options, [], mode, array=array)


def _without_array(options: Sequence[str]) -> list[str]:
    """Options of sbatch without those that make a job array."""
    kept, value = [], False
    for option in options:
        name, equals, _ = option.partition("=")
        if value:
            value = False
        elif len(name) > len("--a") and "--array".startswith(name):  # sbatch takes --arr, too
            value = not equals
        elif option.startswith("-a"):
            value = option == "-a"
        else:
            kept.append(option)
    return kept


def _without_array_lines(header: Sequence[str]) -> list[str]:
    """#SBATCH lines without the options that make a job array. Lines that have none stay as they are."""
    lines = []
    for line in header:
        options = slurm.words(line.removeprefix("#SBATCH"), comments=True)
        kept = _without_array(options)
        if kept == options:
            lines.append(line)
        elif kept:
            lines.append(f"#SBATCH {shlex.join(kept)}")
    return lines


class PassingError(ManapyError):
    """An error that may pass has lasted for PASSING_SECONDS."""


def patiently(call: Callable[[], T], say: Callable[[str], None], ended: Callable[[], object] = lambda: False) -> T:
    """Call something again while it fails because of an error of the file system that may pass, at most for
    PASSING_SECONDS or until ``ended()``. Otherwise a short failure of a file server would end a chain. Raises the last
    error."""
    end, told = time.monotonic() + PASSING_SECONDS, False
    while True:
        try:
            return call()
        except (ManapyError, OSError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(cause, OSError) or cause.errno not in PASSING:
                raise
            text = why(error) if isinstance(error, OSError) else str(error)
            if time.monotonic() >= end or ended():
                raise PassingError(text) from error
            if not told:
                say(f"{text}: trying again")
                told = True
        time.sleep(PASSING_PAUSE)


def guard(supervisor: Supervisor, budget: float | None, poll: float, force: bool = False) -> int:
    """Run one allocation of a chain. Returns the exit code of the batch job. ``force``: run the script once even beyond
    the limits, in the first allocation of this job. Raises ManapyError."""
    chain = supervisor.chain
    before = patiently(lambda: chain.events("attempt"), supervisor.say)
    if force := force and not any(event["id"] == slurm.own_job() for event in before):
        chain.append("note", chain.attempts(), text=FORCED)
    left = None if budget is None or force else time.time() + max(budget - policy.used(chain), 0)
    allocation = slurm.Allocation(left, poll)
    allocation.when_cancelled = lambda: _end_early(supervisor, allocation.job)
    with handled(lambda number, _: allocation.on_signal(number)):
        return _in_turn(supervisor, allocation, force)


def _in_turn(supervisor: Supervisor, allocation: slurm.Allocation, force: bool) -> int:
    """Use the allocation as soon as nothing else works on the chain (invariant 1). A job that does not belong to the
    chain does not wait: the same chain was started twice. Raises ManapyError."""
    chain, later = supervisor.chain, None
    while True:
        try:
            begun = patiently(lambda: _begin(supervisor, allocation, force), supervisor.say, lambda: allocation.ended)
            return begun if isinstance(begun, int) else _attempts(supervisor, allocation, begun)
        except BusyError as error:
            if not any(event["id"] == allocation.job for event in chain.events() if event["event"] in JOBS):
                raise
            supervisor.say(f"{error}; this allocation waits")
        except PassingError as error:  # nothing has begun, so nothing is recorded
            supervisor.say(f"{error}: the next allocation tries again")
            leave = later or _requeue_later(chain, allocation, supervisor.say)
            return slurm.persistently(lambda: _leave(supervisor, allocation, leave), REQUEUE_SECONDS)
        leave = later = later or _requeue_later(chain, allocation, supervisor.say)
        if why := _wait(allocation, BUSY_SECONDS):
            supervisor.say(f"{why}: the next allocation waits on")
            return slurm.persistently(lambda: _leave(supervisor, allocation, leave), REQUEUE_SECONDS)


def _wait(allocation: slurm.Allocation, seconds: float) -> str:
    """Wait, but not longer than the allocation can be used. Returns the reason to leave it, or an empty string."""
    end = time.monotonic() + seconds
    while True:
        look = allocation.look()
        last = math.inf if look.killed is None else look.killed - timing.SETTLE
        if look.leave or time.time() >= last:
            return look.leave or "the allocation ends"
        if time.monotonic() >= end:
            return ""
        pause = min(time.monotonic() + allocation.period, end)
        while time.monotonic() < pause and time.time() < last and not allocation.ended:
            time.sleep(0.1)


def _begin(supervisor: Supervisor, allocation: slurm.Allocation, force: bool) -> int | Callable[[], int]:
    """The steps before the first attempt of an allocation. Returns the function to call at its end; or the exit code,
    if there is nothing to do. Raises ManapyError, OSError."""
    chain, say = supervisor.chain, supervisor.say
    supervisor.take()
    over = chain.over()
    if over is not None and over["event"] == "finished":
        say(f"{chain.dir}: this chain has finished with exit code {over['code']}: nothing is left to do")
        return int(over["code"])
    before = chain.events("attempt")[-1:]
    if (
        before
        and before[0]["id"] != allocation.job
        and not chain.events("end", before[0]["attempt"])
        and slurm.was_cancelled(before[0]["id"])
    ):
        policy.lost(chain)
        if over is None or any(event["id"] == allocation.job for event in chain.events("successor")):
            return _cancelled(supervisor, before[0]["id"])
    if (why := supervisor.refusal()) and not force:
        return _give_up(supervisor, why)
    return _requeue_later(chain, allocation, say)


def _attempts(supervisor: Supervisor, allocation: slurm.Allocation, later: Callable[[], int]) -> int:
    """Run the script, repeatedly as long as that makes sense in this allocation. Returns the exit code."""
    chain, say = supervisor.chain, supervisor.say
    env = {**os.environ, **chain.record.get("environment", {})}
    fleet: spares.AllocatedNodes | None = None
    while True:
        try:
            if fleet is None and "spares" in chain.record:
                fleet = slurm.persistently(lambda: spares.AllocatedNodes(chain, allocation, say))
            outcome = _attempt(supervisor, allocation, env, fleet)
        except Exception as error:  # whatever it is: invariant 1
            return _leave_broken(supervisor, allocation, later, error)
        if outcome.how == "finished":
            _cancel_successors(supervisor)
            return supervisor.finish(outcome)
        if outcome.how == "stopped":
            return _stopped(supervisor, outcome.reason)
        if allocation.cancelled():
            return _cancelled(supervisor, allocation.job)
        failed = outcome.how in policy.FAILED
        unwell = _unwell(allocation, outcome) if failed else []
        if why := supervisor.refusal():
            return _give_up(supervisor, why)
        why = f"{outcome.reason}: " * (outcome.how != "hung")  # a hang's reason was said
        early = outcome.how in ("yielded", "taken")
        stays = failed or (early and (outcome.reason == allocation.freed or bool(outcome.host)))
        if fleet.replace(outcome) if fleet is not None and stays else failed and not unwell:
            say(f"{why}starting again")
            continue
        if nodes := list(dict.fromkeys([*unwell, *(fleet.accused if fleet else [])])):
            chain.append("excluded", chain.attempts(), nodes=nodes)
        source = "" if outcome.how in ("left", "yielded") else ", from the last checkpoint"
        say(f"{why}the job continues in the next allocation{source}")
        return slurm.persistently(lambda: _leave(supervisor, allocation, later), REQUEUE_SECONDS)


def _attempt(
    supervisor: Supervisor, allocation: slurm.Allocation, env: dict[str, str], fleet: spares.AllocatedNodes | None
) -> Outcome:
    """Run the script once, on the nodes of the allocation that are not spare."""
    if fleet is None:
        return supervisor.attempt(allocation.job, allocation.nodes.split("\n"), allocation, env)
    allocation.used, allocation.can_replace = fleet.chosen, fleet.can_replace
    fleet.start_sentinel()
    return supervisor.attempt(allocation.job, fleet.chosen, allocation, fleet.environment(env))


def _unwell(allocation: slurm.Allocation, outcome: Outcome) -> list[str]:
    """The nodes to leave out after a failure. A host may call itself by another name than Slurm does (n1.cluster for
    n1). Slurm would refuse this name, so a host that is no node of the allocation is left out of the list."""
    nodes, host = allocation.unwell(), outcome.host.partition(".")[0]
    if outcome.how != "hung" or not host:
        return nodes
    hung = [node for node in allocation.all_nodes() if node.partition(".")[0] == host]
    return list(dict.fromkeys([*nodes, *hung]))


def _leave(supervisor: Supervisor, allocation: slurm.Allocation, later: Callable[[], int]) -> int:
    """Leave the chain to the next allocation, unless the job was cancelled meanwhile. Raises SlurmError."""
    if allocation.ended and allocation.cancelled():
        return _cancelled(supervisor, allocation.job)
    return later()


def _leave_broken(
    supervisor: Supervisor, allocation: slurm.Allocation, later: Callable[[], int], error: Exception
) -> int:
    """Leave after an error that was not expected. Processes of the script may still run, until Slurm ends the job."""
    reason = supervisor.broken(allocation.job, error)
    if why := supervisor.refusal():
        return _give_up(supervisor, why)
    supervisor.say(f"{reason}: the job continues in the next allocation, from the last checkpoint")
    return slurm.persistently(lambda: _leave(supervisor, allocation, later), REQUEUE_SECONDS)


def _end_early(supervisor: Supervisor, job: str) -> None:
    """End the chain while the attempt is saved: Slurm may kill this process meanwhile."""
    chain = supervisor.chain
    if (number := chain.attempts()) and not chain.events("end", number):
        supervisor.stop(f"job {job} was cancelled", again(chain))
    _cancel_successors(supervisor)


def _stopped(supervisor: Supervisor, why: str) -> int:
    _cancel_successors(supervisor)
    command = again(supervisor.chain)
    supervisor.stop(why, command)
    supervisor.say(f"{why}; continue: {command}")
    return EXIT_STOPPED


def _cancelled(supervisor: Supervisor, job: str) -> int:
    _cancel_successors(supervisor)
    if supervisor.chain.over() is None:
        supervisor.stop(f"job {job} was cancelled", again(supervisor.chain))
    supervisor.say(f"job {job} was cancelled; continue: {again(supervisor.chain)}")
    return EXIT_GAVE_UP


def _give_up(supervisor: Supervisor, why: str) -> int:
    _cancel_successors(supervisor)
    command = f"{again(supervisor.chain)} --force"
    supervisor.stop(why, command)
    supervisor.say(
        f"giving up: {why}; the last checkpoint remains (manapy history {supervisor.chain.dir}); one more attempt: "
        f"{command}"
    )
    return EXIT_GAVE_UP


def _requeue_later(chain: Chain, allocation: slurm.Allocation, say: Callable[[str], None]) -> Callable[[], int]:
    """Prepare the next allocation (invariant 1). Returns the function to call at the end of this one."""
    if chain.record["mode"] == "requeue" and allocation.requeueable():
        return lambda: _requeue(chain, allocation, say)
    if chain.record["mode"] == "requeue":
        say(
            "this job must not be requeued (sbatch --no-requeue, or JobRequeue=0 in slurm.conf):"
            " a dependent job continues it instead"
        )
    if (waits := _waiting_successor(chain, allocation)) is not None:
        say(f"job {waits} still continues after this one")
        return lambda: _exclude(chain, waits, say)
    successor = slurm.submit_after(allocation.job, chain.dir / "batch.sh", _sbatch(chain))
    chain.append("successor", chain.attempts(), id=successor)
    say(f"job {successor} continues after this one")
    _exclude(chain, successor, say)
    return lambda: _exclude(chain, successor, say)


def _waiting_successor(chain: Chain, allocation: slurm.Allocation) -> str | None:
    """The successor of this job, if Slurm has requeued this job while it was queued."""
    last = next((str(event["id"]) for event in chain.events("successor")[-1:]), allocation.job)
    if last == allocation.job:
        return None
    try:
        return last if slurm.show(last).get("JobState") == "PENDING" else None
    except slurm.SlurmError:
        return None  # Slurm has forgotten it


def _requeue(chain: Chain, allocation: slurm.Allocation, say: Callable[[str], None]) -> int:
    try:
        slurm.command("scontrol", "requeue", allocation.job)
    except slurm.SlurmError:
        if not allocation.taken_back():
            raise
    _exclude(chain, allocation.job, say)
    deadline = time.monotonic() + REQUEUED_SECONDS
    while time.monotonic() < deadline and not allocation.ended:  # Slurm sends SIGTERM
        time.sleep(0.1)
    if not allocation.ended:
        say("Slurm has requeued the job, but does not end it")
    return EXIT_GAVE_UP


def _cancel_successors(supervisor: Supervisor) -> None:
    """Cancel all that are queued: there is more than one if Slurm could not say that a job has one already."""
    left = [str(event["id"]) for event in reversed(supervisor.chain.events("successor"))]

    def cancel() -> None:
        while left:
            try:
                slurm.command("scancel", "--state=PENDING", left[0])
            except slurm.SlurmError as error:
                if not any(text in str(error) for text in slurm.GONE):
                    raise
            del left[0]

    try:
        slurm.persistently(cancel, HASTE_SECONDS)
    except slurm.SlurmError as error:
        supervisor.say(f"cannot cancel job {left[0]}, which would continue the chain ({error}): scancel {left[0]}")


def _exclude(chain: Chain, job: str, say: Callable[[str], None]) -> int:
    """Exclude nodes that did not answer, or where a job hung, in any attempt, from a job of the chain that is queued:
    Slurm refuses this for a running one. Returns 0, the exit code."""
    if nodes := list(dict.fromkeys(node for event in chain.events("excluded") for node in event["nodes"])):
        try:
            if slurm.persistently(lambda: slurm.exclude(job, nodes), HASTE_SECONDS):
                say(f"{', '.join(nodes)}: excluded from now on")
        except (slurm.SlurmError, slurm.TooFewNodes) as error:
            say(f"cannot exclude {', '.join(nodes)} from job {job} ({error})")
    return 0
