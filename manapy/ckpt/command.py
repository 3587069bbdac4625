"""Commands to a job's coordinator: checkpoint, status, stop, recordings of its hosts, and the RDMA agent of a host.
Plain sockets; nothing heavy is imported."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..core import connection, handshake
from ..core.errors import (
    AgentError,
    CheckpointError,
    CoordinatorError,
    DiedError,
    GoneError,
    JobError,
    LeavingError,
    ManapyError,
    why,
)
from ..core.records import TYPE_CHECKING, NamedTuple
from . import protocol

if TYPE_CHECKING:
    from typing import Any

    from .store.job import Job

CONNECT_SECONDS = 5.0
RESTART_SECONDS = 1.5  # from the death of a job's ranks until a restart writes job.json
END_SECONDS = 1.0  # from the end of a coordinator's socket until its last job.json
ANSWER_SECONDS = 10.0  # for the handshake and STATUS; the coordinator's interpreter may still be starting
REQUEST_SECONDS = 30.0  # for the handshake before a checkpoint or the job's end: worth a longer wait on a busy host
SAFE_SECONDS = 20.0  # for the checkpoint of a stuck job to find a moment at which all ranks can be saved
SERVE_SECONDS = 90.0  # for the coordinator and the agent of a node to start

Progress = Callable[[str], None]


class Connection(connection.Connection):
    """An authenticated connection for one command. Raises CoordinatorError with a one-line reason."""

    def __init__(self, job: Job, patience: float = END_SECONDS, answer: float | None = None) -> None:
        """patience: seconds to wait for a coordinator that is ending and has not recorded its end yet; answer: for one
        that does not answer (default: ANSWER_SECONDS)."""
        self._job = job
        secret = job.secret()
        where = f"no coordinator at {job.host} port {job.port}"
        try:
            # The host as bytes: for a text Python loads its tables of international names, in 1 ms.
            address: Any = (job.host.encode(), job.port)
            connected = socket.create_connection(address, timeout=CONNECT_SECONDS)
            connection.notice_loss(connected)  # the host of rank 0 may be lost while the command waits
            lost = f"the connection to the coordinator is lost: see {job.dir / 'coordinator.log'}"
            super().__init__(
                connected,
                secret,
                handshake.COORDINATOR,
                what=str(job.dir),
                lost=lost,
                secret_path=job.dir / "secret",
                timeout=ANSWER_SECONDS if answer is None else answer,
                limit=protocol.ANSWER_MAX,
            )
        except ConnectionRefusedError as error:
            raise GoneError(
                _end_of(job, patience)
                or f"{job.dir}: the job is no longer running ({where}), but has not recorded its end:"
                f" see {job.dir / 'coordinator.log'}"
            ) from error
        except OSError as error:
            raise CoordinatorError(
                job.end() or f"{job.dir}: {where} can be reached from here: {error.strerror or error}"
            ) from error
        except CoordinatorError as error:  # another program may have this port now
            if end := job.end():
                raise GoneError(end) from error
            raise

    def _refused(self, reason: str) -> Exception:
        return LeavingError(f"{self._job.dir}: {reason}")

    def _lost(self, error: OSError | None) -> Exception:
        if not isinstance(error, TimeoutError) and (end := _end_of(self._job, END_SECONDS)):
            return GoneError(end)
        return super()._lost(error)


def _end_of(job: Job, patience: float) -> str | None:
    """How it has ended."""
    deadline = time.monotonic() + patience
    while not (end := job.end()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return end


class CheckpointResult(NamedTuple):
    """A published checkpoint. ``remark``: how long the job was paused and when it was published, if that differs; or,
    if the job ends, why this last checkpoint is only on local storage, although it was to be copied; else empty."""

    path: Path
    remark: str


def checkpoint(job: Job, *, then: str = "continue", progress: Progress | None = None) -> Path:
    """Take a checkpoint. Returns its path when it is published. Raises CheckpointError."""
    return take(job, then=then, progress=progress).path


def checkpoint_stuck(job: Job, *, then: str = "continue", progress: Progress | None = None) -> Path:
    """Like checkpoint, for a job that is stuck. Raises JobError if there is no safe moment for SAFE_SECONDS.

    If some ranks are in a collective, the others must enter it first, and may never do so: this may be why the job is
    stuck. The coordinator goes on trying.
    """
    import queue  # imported here: a quick command needs none of these
    import threading

    from .phase import Phase

    answers: queue.SimpleQueue[Path | ManapyError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(checkpoint(job, then=then))
        except ManapyError as error:
            answers.put(error)

    threading.Thread(target=ask, daemon=True).start()
    since = time.monotonic()
    while True:
        with contextlib.suppress(queue.Empty):
            answer = answers.get(timeout=1.0)
            if isinstance(answer, ManapyError):
                raise answer
            return answer
        now = status(job)
        if progress is not None:
            for text in now["waiting"][:1]:
                progress(text)
        if now["phase"] not in (Phase.CHECK.value, Phase.CLOCK.value):
            since = time.monotonic()
        elif time.monotonic() - since > SAFE_SECONDS:
            what = "; ".join(now["waiting"][:2]) or "there is no safe moment"
            raise JobError(f"no checkpoint can be made in {SAFE_SECONDS:.0f} s: {what}")


def take(
    job: Job,
    *,
    then: str = "continue",
    child_grace: float | None = None,
    within: float | None = None,
    progress: Progress | None = None,
) -> CheckpointResult:
    """The same, with more options, and with the coordinator's remark. child_grace: seconds that child processes get to
    end. within: return instead a checkpoint that is in progress or was published within that many seconds; then and
    child_grace have no effect in this case.

    A job that is being restarted gets a new coordinator. The old one may still answer that the ranks have died; then
    the new one is asked. Not with hold: the caller ends the held run afterwards, and would not end the new one.
    """
    grace = protocol.GRACE_DEFAULT if child_grace is None else round(child_grace * 1000)
    request = f"CHECKPOINT {then} {grace}" if within is None else f"RECENT {round(within * 1000)}"

    def ask(job: Job) -> CheckpointResult:
        with Connection(job, answer=REQUEST_SECONDS) as connection:
            connection.send(request)
            path, remark = _result(connection, progress)
            return CheckpointResult(Path(path), remark)

    while True:
        try:
            return ask(job)
        except (DiedError, CoordinatorError) as error:
            if then == "hold":
                raise
            successor = _successor(job, 0 if isinstance(error, GoneError) else RESTART_SECONDS)
            if successor is None:
                raise
            job = successor


def _successor(job: Job, patience: float) -> Job | None:
    """The job as job.json describes it, once that belongs to a new run (wait at most that many seconds)."""

    deadline = time.monotonic() + patience
    while True:
        now = job.again()
        if (now.host, now.port, now.record.get("rank0_pid")) != (job.host, job.port, job.record.get("rank0_pid")):
            return now
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.02)


def stop(job: Job, *, checkpoint: bool = True, progress: Progress | None = None) -> CheckpointResult | None:
    """End the job, by default with a final checkpoint. Returns the checkpoint when the job has ended."""
    with Connection(job, answer=REQUEST_SECONDS) as connection:
        connection.send(f"STOP {int(checkpoint)}")
        path, remark = _result(connection, progress)
    return CheckpointResult(Path(path), remark) if path else None


def stop_later(
    job: Job, *, before: float | None = None, moment: str = "", progress: Progress | None = None
) -> CheckpointResult:
    """End the job with its next checkpoint; or with a checkpoint of its own, ``before`` this time in seconds since the
    epoch (``moment`` is its text for users). Returns the checkpoint when the job has ended. Raises CheckpointError."""
    request = "STOP next"
    if before is not None:
        request = protocol.join("STOP", "before", max(0, round((before - time.time()) * 1000)), moment)
    with Connection(job, answer=REQUEST_SECONDS) as connection:
        connection.send(request)
        path, remark = _result(connection, progress)
        return CheckpointResult(Path(path), remark)


def go_on(job: Job) -> None:
    """Withdraw the end that stop_later() has scheduled. Raises CheckpointError if there is none."""
    with Connection(job, answer=REQUEST_SECONDS) as connection:
        connection.send("STOP cancel")
        _result(connection, None)


def status(job: Job, *, trees: float | None = None) -> dict[str, Any]:
    """State of the job and of its ranks; the keys are in README.md of this folder. trees: also the processes of each
    rank that answers within that many seconds."""
    with Connection(job) as connection:
        connection.send("STATUS" if trees is None else f"STATUS {round(trees * 1000)}")
        for kind, rest in _answers(connection):
            if kind == "JSON":
                return dict(json.loads(protocol.decode_text(rest)))
        raise JobError(f"{job.dir}: no answer")


def serve_rdma(directory: Path, host: str, port: int) -> None:
    """Have the job's RDMA agent run on this host. The coordinator's address is that of this run, which job.json may not
    show here yet. Raises GoneError if there is no coordinator, CoordinatorError if it does not answer, AgentError if
    the agent cannot serve."""
    try:
        secret = (directory / "secret").read_bytes()
        connected = socket.create_connection((host, port), timeout=SERVE_SECONDS)
    except ConnectionRefusedError as error:
        raise GoneError(f"no coordinator at {host} port {port}") from error
    except OSError as error:
        raise CoordinatorError(why(error, f"no coordinator at {host} port {port}")) from error
    with connection.Connection(
        connected,
        secret,
        handshake.COORDINATOR,
        what=str(directory),
        lost="the connection to the coordinator is lost",
        secret_path=directory / "secret",
        timeout=SERVE_SECONDS,
        limit=protocol.LINE_MAX,
    ) as asked:
        asked.send(protocol.join("SERVE", socket.gethostname()))
        _, _, rest = asked.receive().partition(" ")
    if not rest.startswith("ok "):
        raise AgentError(_reason(rest))


class Collector(Connection):
    """A collector of recordings (`manapy _collect`) on one host of a job: its input and output, through the coordinator
    and the agent of that host."""

    def __init__(self, job: Job, host: str) -> None:
        """Raises CoordinatorError if the job runs no more, or has no agent there."""
        super().__init__(job)
        self.send(protocol.join("COLLECT", host))
        kind, _, rest = self.receive().partition(" ")
        if kind != "COLLECTING":
            self.close()
            raise CoordinatorError(_reason(rest))

    def write(self, data: bytes) -> None:
        """Send bytes to its input."""
        import base64  # imported here: most commands do not need it

        self.send(f"ASK {base64.b64encode(data).decode()}")

    def read(self, patience: float) -> bytes:
        """The next bytes of its output. Raises TimeoutError if there are none within that many seconds."""
        self._socket.settimeout(patience)
        try:
            kind, _, rest = self.receive().partition(" ")
        except CoordinatorError as error:
            if isinstance(error.__cause__, TimeoutError):
                raise error.__cause__ from None
            raise
        if kind != "PIECE":
            raise CoordinatorError(_reason(rest))
        import base64

        return base64.b64decode(rest)


def _reason(rest: str) -> str:
    """The text of RESULT failed."""
    return protocol.decode_text(rest.partition(" ")[2])


def _answers(connection: Connection) -> Iterator[tuple[str, str]]:
    while True:
        kind, _, rest = connection.receive().partition(" ")
        yield kind, rest


def _result(connection: Connection, progress: Progress | None) -> tuple[str, str]:
    """Path and remark."""
    connection.patient()
    for kind, rest in _answers(connection):
        if kind == "PROGRESS" and progress is not None:
            progress(protocol.decode_text(rest))
        elif kind == "RESULT":
            outcome, _, text = rest.partition(" ")
            if outcome == "ok":
                path, _, remark = text.partition(" ")
                return protocol.decode_text(path), protocol.decode_text(remark) if remark else ""
            raise (DiedError if outcome == "died" else CheckpointError)(protocol.decode_text(text))
    raise AssertionError("unreachable")
