"""Decides what a manapy-launch in a chain has to do. Rank 0 (lowerhalf/join/chain.c) asks through `manapy _step`.

A chain runs the user's script again in every attempt, and with it each manapy-launch. A step is recognized by its
program and arguments. If the same ones occur several times in an attempt, their order decides.

Invariants
 1. A step that has ended by itself does not run again: it returns its exit code again.
 2. A step that was begun continues from its newest undamaged checkpoint; every byte is checked. A damaged checkpoint is
    reported once, and the next older one is taken. A step without an undamaged checkpoint starts from the beginning; if
    it had damaged ones, it says so. Manifest and headers are checked here, all other bytes by the ranks, each its own
    image (lowerhalf/join/agreement.c). If a rank finds damage, rank 0 asks again before anything has started.
    A step does not start from the beginning because a directory or a manifest cannot be read now.
 3. A checkpoint that was taken while the job hung because of a fault of its program (remedy.py) is not used: the
    fault is in it. If only such checkpoints are left, because --keep has deleted those from before the hang, the step
    does not start: its next checkpoints would delete these, too, and the verdict may have been wrong.
 4. No two steps have the same job directory: job.json and the checkpoints in it belong to one step.
 5. After a step has crashed or was stopped, no other step starts in this attempt, because this run of the script will
    soon be ended.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..ckpt.store import job, known, levels, publish, verify
from ..core.errors import JobError, ManapyError, ManifestError, explained, why
from ..core.files import those_with
from .record import Chain, Event, read

NOTE_SECONDS = 30.0  # to record an answer, if the disk is full or a server does not answer
STOPPED = ("checkpointed", "stopped")  # states of a job that was ended by a command, or is held
ENDED_EARLY = ("failed", "ended", *STOPPED)  # states of a job that may not have ended by itself


class NextStep(NamedTuple):
    """``kind`` new: start in job directory ``path``; resume: from checkpoint ``path``; done: with exit code
    ``code``."""

    kind: str
    path: Path | None = None
    code: int = 0

    def line(self) -> str:
        """Return the line that chain.c reads."""
        return f"{self.kind.upper()} {self.code if self.kind == 'done' else self.path}"


def decide(
    chain: Chain, argv: Sequence[str], ranks: int, directory: Path | None, say: Callable[[str], None]
) -> NextStep:
    """Find the step, decide what to do with it, and record that. Raises ManapyError.

    ``directory``: --dir, if given; ``say`` shows a line to the user.
    """
    with chain.locked():
        attempt = chain.attempts()
        here = chain.steps(attempt)
        for step in here:
            if (run := current(step)) is not None and run.state in ENDED_EARLY and fate(run.dir).kind != "done":
                raise ManapyError(
                    f"step {step['step']} has ended before its program ({run.state}):"
                    " no other step can start until this one has been continued"
                )
        occurrence = sum(step["argv"] == list(argv) for step in here)
        before = _before(chain, argv, occurrence)
        number = before["step"] if before else len({s["step"] for s in chain.events("step")}) + 1
        where = Path(before["dir"]) if before else (directory or chain.dir / f"step-{number:03d}").absolute()
        if (other := _also_in(chain, where, number)) is not None:
            raise ManapyError(
                f"step {other['step']} of this chain ({shlex.join(other['argv'])}) has the job directory {where}"
                " already: give each manapy-launch of the script a --dir of its own, or none"
            )
        asked: Event = {"step": number, "argv": list(argv), "ranks": ranks, "dir": str(where)}
        if before:
            verdict = _verdict(chain, attempt, before, where, ranks, say)
        else:
            _warn_of_another(chain, attempt, asked, here, say)
            verdict, asked["had"], asked["was"] = NextStep("new", where), _highest(where), _started(where)
        _note(chain, attempt, asked, verdict)
        return verdict


def decide_again(chain: Chain, damaged: Path, reason: str, say: Callable[[str], None]) -> NextStep:
    """Decide and record what to do instead: the ranks have found that the checkpoint of the last answer is damaged.
    Raises ManapyError."""
    with chain.locked():
        attempt = chain.attempts()
        asked = [step for step in chain.steps(attempt) if step["path"] == str(damaged)]
        if not asked:
            raise ManapyError(f"no step of {chain.dir} continues {damaged}")
        step = asked[-1]
        _skip(chain, attempt, damaged, reason, say)
        verdict = _verdict(chain, attempt, step, Path(step["dir"]), step["ranks"], say, damaged)
        _note(chain, attempt, {key: step[key] for key in ("step", "argv", "ranks", "dir")}, verdict)
        return verdict


def _note(chain: Chain, attempt: int, step: Event, verdict: NextStep) -> None:
    """Record an answer. Raises ManapyError if that is impossible: the chain would not see the step, nor save it."""
    chain.append("step", attempt, **step, verdict=verdict.kind, path=str(verdict.path or ""), code=verdict.code)
    chain.ensure(NOTE_SECONDS)


@contextlib.contextmanager
def _reading(directory: Path) -> Iterator[None]:
    """If a step's directory cannot be read in the body, raise ManapyError; if it does not exist yet, go on."""
    try:
        yield
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ManapyError(f"the step does not start: its directory cannot be read ({why(error, directory)})") from error


def _highest(directory: Path) -> int:
    """The highest number of a checkpoint in a job directory, which may not exist yet. Raises ManapyError."""
    with _reading(directory):
        return publish.highest(directory)
    return 0


def _warn_of_another(
    chain: Chain, attempt: int, asked: Event, here: Sequence[Event], say: Callable[[str], None]
) -> None:
    """Warn that a step starts although another step with the same program waits to be continued. Perhaps they are the
    same step, but an argument changes with each attempt."""
    numbers = {step["step"] for step in here}
    for step in reversed(chain.events("step")):
        same = step["step"] not in numbers and step["argv"][:1] == asked["argv"][:1]
        if same and fate_of(chain, step).kind != "done":
            text = (
                f"{shlex.join(asked['argv'])}: starts from the beginning, as step {asked['step']}; step {step['step']} "
                f"({shlex.join(step['argv'])}) has not ended: only the same arguments would continue it"
            )
            chain.append("note", attempt, text=text)
            say(text)
            return


def _started(directory: Path) -> float:
    """When the job began that job.json describes, in seconds since the epoch; 0 if it describes none. Raises
    ManapyError."""
    with _reading(directory):
        (directory / "job.json").read_bytes()
    try:
        return job.read(directory).started
    except JobError:
        return 0.0


def _also_in(chain: Chain, directory: Path, number: int) -> Event | None:
    """Another step of the chain with this job directory: its job.json would be mistaken for that of this step."""
    real = os.path.realpath(directory)
    others = (event for event in chain.events("step") if event["step"] != number)
    return next((event for event in others if os.path.realpath(event["dir"]) == real), None)


def _before(chain: Chain, argv: Sequence[str], occurrence: int) -> Event | None:
    """The last event of the same step in earlier attempts."""
    found: dict[int, list[Event]] = {}
    for event in chain.steps():
        if event["argv"] == list(argv):
            found.setdefault(event["attempt"], []).append(event)
    for _, events in sorted(found.items(), reverse=True):
        if len(events) > occurrence:
            return events[occurrence]
    return None


def current(step: Event) -> job.Job | None:
    """The job of this run of a step; None if job.json still describes an earlier run."""
    try:
        found = job.read(Path(step["dir"]))
    except JobError:
        return None
    return found if found.started >= step["time"] else None


def copies(jobs: Sequence[job.Job]) -> list[float | None]:
    """The seconds of the last copy from local storage to the job directory, of each job that makes such copies; None:
    none is complete yet."""
    return [which.record["flush_seconds"] for which in jobs if "flush_seconds" in which.record]


def newest(chain: Chain) -> job.Job:
    """The job of the step that was begun last. Raises JobError if no step has one."""
    for step in reversed(chain.events("step")):
        if job.is_job(directory := Path(step["dir"])):
            return job.read(directory)
    raise JobError(f"{chain.dir}: this chain has no job yet")


def chain_of(directory: Path) -> Chain | None:
    """The chain that has a job's directory as a step's; None if no known one has."""
    for where in those_with("chain.json", (directory.parent, *known.directories())):
        chain = read(where)
        if any(Path(step["dir"]) == directory for step in chain.events("step")):
            return chain
    return None


class StepState(NamedTuple):
    """The state of a step's last run.

    ``kind``: done: it has ended by itself, with ``code``; crashed: a rank has died, on ``host``, which was ``noticed``
    at this time (seconds since the epoch, or 0); open: neither.
    """

    kind: str
    code: int = 0
    host: str = ""
    reason: str = ""
    noticed: float = 0.0


def fate_of(chain: Chain, step: Event) -> StepState:
    """The fate of a step, in whichever attempt. --dir may name the directory of an earlier job: as long as job.json
    describes that one, the step is open."""
    begun = next(event for event in chain.events("step") if event["step"] == step["step"])
    return fate(Path(step["dir"]), begun.get("was"))


def fate(directory: Path, was: float | None = None) -> StepState:
    """The fate that job.json records. ``was``: the begin of a job that does not count.

    If a rank exits with an error, mpirun kills the others; this is the program's own end (first_failure).
    """
    try:
        found = job.read(directory)
    except JobError:
        return StepState("open")
    if found.started == was:
        return StepState("open")
    record = found.record
    first: dict[str, Any] = record.get("first_failure") or {}
    if record["state"] == "done" or (record["state"] == "failed" and first.get("code")):
        return StepState("done", int(record.get("code", 0)))
    if record["state"] in ("failed", "ended"):  # in a chain the end of a program by itself is always recorded
        noticed = float(record.get("failed_at", 0.0))
        if host := str(record.get("lost_host", "")):
            return StepState("crashed", host=host, reason=f"host {host} was lost", noticed=noticed)
        if first:
            reason = f"rank {first['rank']} died on {first['host']}"
            return StepState("crashed", host=str(first["host"]), reason=reason, noticed=noticed)
        return StepState("crashed", reason="ranks ended during their start", noticed=noticed)
    return StepState("open")


def _verdict(
    chain: Chain,
    attempt: int,
    step: Event,
    where: Path,
    ranks: int,
    say: Callable[[str], None],
    damaged: Path | None = None,
) -> NextStep:
    begun = next(event for event in chain.events("step") if event["step"] == step["step"])
    with _reading(where):
        (where / "job.json").read_bytes()  # unread, it is "open" for fate(), and a finished step would run again
    if (last := fate_of(chain, step)).kind == "done":
        return NextStep("done", code=last.code)
    found = newest_usable(chain, attempt, where, begun, say, damaged)
    if found is None:
        return NextStep("new", where)
    if len(found.manifest.ranks) != ranks:
        raise ManapyError(
            f"{found.path} has {len(found.manifest.ranks)} ranks, but this step runs with {ranks}:"
            " it needs the same number of tasks as before"
        )
    return NextStep("resume", found.path)


def newest_usable(
    chain: Chain, attempt: int, directory: Path, begun: Event, say: Callable[[str], None], damaged: Path | None
) -> publish.Checkpoint | None:
    """The newest checkpoint of a job directory that was taken since ``begun``, the first event of the step, whose
    manifest and headers are good (invariant 2), which was not taken in a hang (invariant 3), and is not dropped.
    ``damaged``: the ranks have found damage in this one, so only older ones are considered. Numbers decide which ones
    are older than the step, because a clock may have been set back, or be that of another node. Raises ManapyError if
    there is none, but perhaps only because something cannot be read now, or if only checkpoints of a hang are left.
    """
    paths = there = [path for path in _listed(directory) if publish.number(path) > begun.get("had", 0)]
    if damaged in paths:
        paths = paths[: paths.index(damaged)]
    unread, hung = "", None
    for path in reversed(paths):
        try:
            with explained(ManifestError, path):
                if publish.is_dropped(path):
                    continue
            manifest = publish.read_manifest(path)
            if "had" not in begun and manifest.time < begun["time"]:  # recorded by an older manapy
                break
            if _in_a_hang(chain, directory, manifest.time):
                _leave_out(chain, attempt, path, "the job hung already")
                say(f"{path} is not used: the job hung already")
                hung = hung or path
                continue
            problems = verify.headers(path, manifest)[1]
        except ManifestError as error:
            problems = [str(error)]
            unread = unread or (str(error) if publish.is_unreadable(error) else "")
        if not problems:
            return publish.Checkpoint(path, manifest)
        _skip(chain, attempt, path, problems[0], say)
        damaged = path
    if unread:
        raise ManapyError(f"the step does not start: a checkpoint cannot be read now ({unread}), and no other is good")
    if hung is not None and publish.number(there[0]) > begun.get("had", 0) + 1:
        raise ManapyError(
            f"the step does not start: no good checkpoint from before the hang is left; continue one of the hang"
            f" (manapy restart {hung}), or remove them ({directory}/ckpt-*) to let the program start from the beginning"
        )
    lost = "only checkpoints of a hang are left" if hung is not None else ""
    if damaged is not None:
        lost = "no undamaged checkpoint is left"
    elif not there and _were_taken(chain, directory):
        lost = "its checkpoints are gone (deleted, or on a file system that is not mounted)"
    if lost:
        text = f"{directory}: {lost}: the program starts from the beginning"
        chain.append("note", attempt, text=text)
        say(text)
    return None


def _listed(directory: Path) -> list[Path]:
    """The real paths of all checkpoints of a job directory, oldest first, including those that cannot be read now.
    Raises ManapyError."""
    with _reading(directory):
        return [path.resolve() for _, path in publish.existing(directory)]
    return []


def _were_taken(chain: Chain, directory: Path) -> bool:
    """Does the history know of checkpoints of a job directory? Neither `manapy drop` nor --keep ever takes the last
    one, so if none is there, the user has deleted them, or they cannot be seen. A program may have chosen another place
    for them, whose name tells the job directory."""
    parents = {Path(event["path"]).parent for event in chain.events("checkpoint")}
    names = {levels.root(parent.parent, directory) for parent in parents}
    return bool(parents & {directory, directory.resolve(), *names})


def _skip(chain: Chain, attempt: int, path: Path, reason: str, say: Callable[[str], None]) -> None:
    """A checkpoint is damaged and is not used."""
    _leave_out(chain, attempt, path, reason)
    say(f"{path} is damaged ({reason}) and is not used")


def _leave_out(chain: Chain, attempt: int, path: Path, reason: str) -> None:
    """Record that a checkpoint is not used, once."""
    if not any(event["path"] == str(path) for event in chain.events("skipped")):
        chain.append("skipped", attempt, path=str(path), reason=reason)


def _in_a_hang(chain: Chain, directory: Path, when: float) -> bool:
    """Did a job hang at this time because of a fault of its program?"""
    return any(
        event["dir"] == str(directory) and event["place"] and event["since"] <= when <= event["time"]
        for event in chain.events("hung")
    )
