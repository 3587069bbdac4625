"""The coordinator of a job: one process, started by rank 0's launcher before the program runs (lowerhalf/control/rendezvous.c).

It owns the job directory, accepts the ranks' and commands' connections on a socket that is already bound, drives checkpoints
(_flow.py) and ends with the job. It is in a session of its own, so signals for mpirun's process group do not reach it.

Invariants
 1. Ranks decide whether the job lives: the coordinator ends when no rank is connected any more and none can come.
 2. A rank whose connection ends without DONE has died: the checkpoint in progress fails, and if mpirun hasn't ended the others
    after GRACE_SECONDS they get KILL, so that nobody waits for ever for the dead one.
 3. A process that execs (a script that ends in `exec python ...`) loses its connection and comes back as the same rank: a rank
    is dead when its process is, or, on another host, when it doesn't come back within EXEC_SECONDS.
 4. All state is touched by the event loop's thread only.
 5. A scheduler may kill us with the last task of this host, however well we hide (Slurm does with proctrack/cgroup). So in a chain ranks that end
    wait for NOTED: how the job has ended is on disk, and no checkpoint is half done. With an error it is noted at once, for the others may be about
    to be killed for it; else when all ranks have ended.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..clock import Thread
from . import auth, job, protocol, publish
from ._flow import Flow, Phase
from ._requests import Requests
from .errors import CheckpointError

log = logging.getLogger(__name__)

GRACE_SECONDS = 1.0  # between the death of a rank and KILL to the others
EXEC_SECONDS = 1.0  # a rank that has exec'ed another program comes back within this time
END_SECONDS = 20.0  # between KILL and giving up on ranks that stay
HANDSHAKE_SECONDS = 10.0
PROGRESS_AFTER, PROGRESS_EVERY = 1.5, 1.0  # seconds; a quick checkpoint shows none
TICKET_SECONDS = 5.0  # manapy.checkpoint() is collective: how long the first rank's request waits for the others'
STOP_CODE = 143  # of the ranks after `manapy stop --no-checkpoint`; as after SIGTERM


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the launcher passes."""
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--fd", type=int, required=True, help="listening socket")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--rank0-pid", type=int, default=0)
    parser.add_argument("--resume", metavar="CHECKPOINT")
    parser.add_argument("--interval", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--keep", type=int, default=0)
    parser.add_argument("--child-grace-ms", type=int, default=5000)


def run(options: argparse.Namespace) -> int:
    """Until the job ends. Errors go to the log (stderr is coordinator.log)."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True)
    settings = Settings(options.ranks, options.rank0_pid, options.resume, options.interval, options.keep, options.child_grace_ms)
    try:
        listener = socket.socket(fileno=options.fd)
        asyncio.run(Coordinator(options.dir, settings).run(listener))
    except Exception:
        log.exception("the coordinator failed")
        return 1
    return 0


@dataclass(frozen=True)
class Settings:
    """Options of a job. Times in seconds where the name doesn't say otherwise; 0: none, or all."""

    ranks: int
    rank0_pid: int = 0
    resume: str | None = None
    interval: float = 0.0
    keep: int = 0
    child_grace_ms: int = 5000


@dataclass(eq=False)
class Rank:
    """One rank's connection."""

    number: int
    host: str
    pid: int
    generation: int
    writer: asyncio.StreamWriter
    mpi: str = "none"
    program: str = ""
    done: bool = False
    code: int = 0  # with which it ended, if it is done
    ready: bool = False
    connected: bool = True
    gone: bool = False  # for good


class Coordinator:
    """One job."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        self.dir = directory
        self.settings = settings
        self.flow = Flow(settings.ranks, directory, self._send)
        self.requests = Requests()
        self.ranks: dict[int, Rank] = {}
        self.record: dict[str, Any] = {}
        self.state = "starting"
        self.killed = ""  # why KILL was or will be sent
        self._secret = (directory / "secret").read_bytes()
        self._started = asyncio.Event()  # all ranks connected (and, in a restart, ready)
        self._over = asyncio.Event()
        self._rank0_gone = False
        self._tickets: dict[int, int] = {}
        self._last: publish.Checkpoint | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._commands: set[asyncio.Task[Any]] = set()
        self._failures: list[tuple[Rank, int | None]] = []  # in the order in which they were seen; code None: its connection was lost
        self._segments: set[str] = set()  # shared memory of the real MPI on this host

    # ---- life

    async def run(self, listener: socket.socket) -> None:
        """Serve until the job ends."""
        self._load()
        loop = asyncio.get_running_loop()
        if self.settings.rank0_pid:
            self._watch_pid(self.settings.rank0_pid, self._on_rank0_gone)
        server = await asyncio.start_server(self._accept, sock=listener, limit=protocol.LINE_MAX)
        self._spawn(self._serve_requests())
        if self.settings.interval > 0:
            self._spawn(self._serve_interval())
        log.info("manapy %s: job %s, %d ranks, pid %d", __version__, self.record["id"], self.settings.ranks, os.getpid())
        await self._over.wait()
        server.close()
        self.requests.fail_all("the job has ended")
        self._write_record()
        if self._commands:  # so that waiting commands get their answer
            await asyncio.wait(self._commands, timeout=2.0)
        for task in self._tasks:
            task.cancel()
        await loop.shutdown_default_executor()
        self._remove_segments()
        log.info("the job has ended: %s", self.state)

    def _load(self) -> None:
        self.record = job.read(self.dir).record
        if left := publish.clean(self.dir):
            log.info("removed what was left by an interrupted checkpoint: %s", ", ".join(p.name for p in left))
        found = publish.checkpoints(self.dir)
        self._last = found[-1] if found else None
        if self.settings.resume is not None:  # the launcher knows only the checkpoint, people know the program
            with contextlib.suppress(publish.ManifestError):
                manifest = publish.read_manifest(Path(self.settings.resume))
                self.record |= {"argv": manifest.argv, "protocol": manifest.record.get("protocol", "cc")}
            where = Path(self.settings.resume).resolve().parent
            if publish.owner(where) == self.dir.resolve():
                self.flow.place = where
        self.record |= {"pid": os.getpid(), "checkpoint_dir": str(self.flow.place), "manapy": __version__, "mpirun": _launcher(self.settings.rank0_pid)}
        self._set_state("starting")

    def _remove_segments(self) -> None:
        """MPICH unlinks its files in /dev/shm in MPI_Finalize, which a killed job never reaches. Only this host's."""
        for segment in self._segments:
            if Path(segment).parent == Path("/dev/shm"):
                Path(segment).unlink(missing_ok=True)

    def _set_state(self, state: str) -> None:
        self.state = state
        self._write_record()

    def _write_record(self, state: str = "") -> None:
        hosts = sorted({rank.host for rank in self.ranks.values()})
        self.record |= {"state": state or self.state, "changed": round(time.time(), 3), "hosts": hosts}
        try:
            job.write(self.dir, self.record)
        except OSError as error:
            log.error("%s: %s", self.dir / "job.json", error.strerror)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_log_failure)

    def _watch_pid(self, pid: int, callback: Callable[[], None]) -> None:
        """Call when a process of this host has ended (a child of it may hold its connection open)."""
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            asyncio.get_running_loop().call_later(0.2, callback)
            return
        except OSError:
            return
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(fd)
            os.close(fd)
            loop.call_later(0.2, callback)  # what it has sent last is read first

        loop.add_reader(fd, ended)

    def _on_rank0_gone(self) -> None:
        self._rank0_gone = True
        self._look_whether_over()
        if not self._over.is_set() and all(r.gone for r in self.ranks.values()):
            asyncio.get_running_loop().call_later(2.0, self._look_whether_over, True)

    def _look_whether_over(self, patient: bool = False) -> None:
        if self._over.is_set() or any(not r.gone for r in self.ranks.values()):
            return
        all_came = len(self.ranks) == self.settings.ranks
        if not (all_came or (self._rank0_gone and (patient or self.settings.ranks == 1)) or (self.killed and self.ranks)):
            return
        if self.state in ("starting", "running", "restarting"):
            if not self.ranks and self.settings.ranks == 1:
                self.state = "ended"  # it was so short that it didn't wait for us; or it was killed
            else:
                self.state = "done" if all_came and all(r.done for r in self.ranks.values()) else "failed"
            self._note_end()
        self._over.set()

    async def _note_done(self, rank: Rank) -> None:
        """Invariant 5."""
        all_done = len(self.ranks) == self.settings.ranks and all(r.done for r in self.ranks.values())
        if not (all_done or rank.code):
            return
        await self.flow.idle.wait()
        if self.state in ("starting", "running", "restarting"):
            self._note_end()
            self._write_record("done" if all_done else "failed")
        for each in self.ranks.values() if all_done else (rank,):
            self._send(each.number, "NOTED")

    def _note_end(self) -> None:
        """How it ended: the exit code of the first rank that had one, and which rank failed first: itself (its code), or it died (None).
        A rank of another host is known to be dead later than one of this host; the order in which connections were lost is the true one."""
        self.record["code"] = next((self.ranks[number].code for number in sorted(self.ranks) if self.ranks[number].code), 0)
        failed = [(rank, code) for rank, code in self._failures if self.ranks[rank.number] is rank]  # another one: it came back (invariant 3)
        failures = [{"rank": rank.number, "host": rank.host, "code": code} for rank, code in failed]
        self.record["first_failure"] = failures[0] if failures else None

    # ---- ranks

    def _send(self, rank: int, line: str) -> None:
        connection = self.ranks.get(rank)
        if connection is not None and connection.connected:
            connection.writer.write(line.encode() + b"\n")

    async def _serve_rank(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kind, fields, _ = await _line(reader)
        if kind != "HELLO" or len(fields) != 6:
            log.error("a rank did not say HELLO but %s", kind)
            return
        number, size = int(fields[0]), int(fields[1])
        before = self.ranks.get(number)
        if size != self.settings.ranks or not 0 <= number < size or (before is not None and (before.connected or before.done)):
            log.error("rank %d of %d does not belong to this job, or is here already", number, size)
            return
        rank = self.ranks[number] = Rank(number, protocol.decode_text(fields[2]), int(fields[3]), int(fields[4]), writer)
        if rank.host == socket.gethostname():
            self._watch_pid(rank.pid, lambda: self._on_rank_gone(rank))
        if self.killed:
            self._send(number, protocol.join("KILL", 1, self.killed))
        self._look_whether_started()
        try:
            while True:
                kind, fields, line = await _line(reader)
                if not kind:
                    break
                self._on_rank_line(rank, kind, fields, line)
        finally:
            self._on_connection_lost(rank)

    def _on_rank_line(self, rank: Rank, kind: str, fields: list[str], line: str) -> None:
        if self.flow.on_line(rank.number, kind, fields, line):
            return
        if kind == "PROGRAM":
            rank.mpi, rank.program = fields[0], protocol.decode_text(fields[1])
            if rank.host == socket.gethostname() and fields[2] != "-":
                self._segments.update(fields[2].split(","))
        elif kind == "DONE":
            rank.done, rank.code = True, int(fields[0])
            if rank.code:
                self._failures.append((rank, rank.code))
            self.flow.on_done(rank.number)
            self._spawn(self._note_done(rank))
        elif kind == "READY":
            rank.ready = True
            self._look_whether_started()
        elif kind == "REQUEST":
            self._on_ticket(rank.number, int(fields[0]))
        elif kind == "PLACE":
            self._on_place(rank.number, protocol.decode_text(fields[0]))
        else:
            log.warning("rank %d sent something unknown: %s", rank.number, line[:200])

    def _look_whether_started(self) -> None:
        if len(self.ranks) < self.settings.ranks or self._started.is_set():
            return
        if self.settings.resume is not None:
            if self.state == "starting":
                self._set_state("restarting")
            if not all(r.ready for r in self.ranks.values()):
                return
            for number in self.ranks:
                self._send(number, "GO")
        self._set_state("running")
        self._started.set()

    def _on_connection_lost(self, rank: Rank) -> None:
        if not rank.connected or rank.done:
            self._on_rank_gone(rank)
            return
        rank.connected = False
        self._failures.append((rank, None))
        rank.writer.close()
        self.flow.fail(f"rank {rank.number} is lost")
        here = rank.host == socket.gethostname()
        if here and not _is_alive(rank.pid):
            self._on_rank_gone(rank)
        else:
            asyncio.get_running_loop().call_later(EXEC_SECONDS, self._on_rank_gone, rank)

    def _on_rank_gone(self, rank: Rank) -> None:
        if rank.gone or self.ranks[rank.number] is not rank:  # it is back
            return
        rank.gone = True
        rank.connected = False
        rank.writer.close()
        if not rank.done:
            log.info("rank %d died", rank.number)
            if all(failed is not rank for failed, _ in self._failures):
                self._failures.append((rank, None))
            self.flow.on_lost(rank.number)
            if not self.killed:
                self.killed = f"rank {rank.number} died"
                self._spawn(self._kill_later(GRACE_SECONDS))
        self._look_whether_over()

    async def _kill_later(self, seconds: float, code: int = 1) -> None:
        await asyncio.sleep(seconds)
        reason = self.killed  # one rank says it; the others just end
        for rank in sorted(self.ranks.values(), key=lambda r: r.number):
            if rank.connected:
                self._send(rank.number, protocol.join("KILL", code, reason))
                reason = ""
        await asyncio.sleep(END_SECONDS)
        log.error("ranks that were told to end are still there: %s", [r.number for r in self.ranks.values() if r.connected])
        for rank in list(self.ranks.values()):
            self._on_rank_gone(rank)
        self._over.set()

    # ---- checkpoints

    async def _serve_requests(self) -> None:
        while True:
            batch = await self.requests.take()
            try:
                await self._started.wait()
                if self.flow.controller.finishing:
                    raise CheckpointError("the job is finishing")
                grace = batch.grace_ms if batch.grace_ms >= 0 else self.settings.child_grace_ms
                await self.flow.take(grace, lambda: batch.then, self._manifest_record(), self.requests.close, self._on_published)  # noqa: B023
            except CheckpointError as error:
                self._answer_tickets(self.requests.failed(str(error)), "failed", str(error))
            except Exception as error:
                log.exception("checkpoint")
                self._answer_tickets(self.requests.failed(f"internal error: {error}"), "failed", f"internal error: {error}")

    def _on_published(self, path: Path) -> None:
        self._last = publish.Checkpoint(path, publish.read_manifest(path))
        if self.requests.current is not None and self.requests.current.then != "continue":
            self._set_state("checkpointed")
        self._answer_tickets(self.requests.published(path), "ok", str(path))
        if self.settings.keep > 0:
            try:
                publish.prune(self.dir, self.settings.keep)
            except OSError as error:
                log.error("deleting old checkpoints: %s: %s", error.filename, error.strerror)

    def _manifest_record(self) -> dict[str, Any]:
        keys = ("argv", "cwd", "mpi", "mpirun", "protocol")
        generation = max((r.generation for r in self.ranks.values()), default=0)
        return {"manapy": __version__, "job": self.record["id"], "generation": generation, **{k: self.record.get(k) for k in keys}}

    def _on_place(self, rank: int, choice: str) -> None:
        """Whoever says it last decides, for all ranks: a checkpoint is one directory."""
        self.flow.place = publish.place(self.dir, choice)
        log.info("rank %d sends checkpoints to %s", rank, self.flow.place)
        self.record["checkpoint_dir"] = str(self.flow.place)
        self._write_record()

    async def _serve_interval(self) -> None:
        await self._started.wait()
        while not self.flow.controller.finishing:
            await asyncio.sleep(self.settings.interval)
            try:
                await self.requests.ask()
            except CheckpointError as error:
                log.warning("automatic checkpoint: %s", error)

    def _on_ticket(self, rank: int, ticket: int) -> None:
        if self.flow.controller.finishing:
            self._answer_tickets([(rank, ticket)], "failed", "the job is finishing")
            return
        first = not self._tickets
        self._tickets[rank] = ticket
        if len(self._tickets) == self.settings.ranks:
            self._ask_for_tickets()
        elif first:
            self._spawn(self._ask_for_tickets_later())

    async def _ask_for_tickets_later(self) -> None:
        await asyncio.sleep(TICKET_SECONDS)
        self._ask_for_tickets()

    def _ask_for_tickets(self) -> None:
        if self._tickets:
            self.requests.ask_for_program(list(self._tickets.items()))
            self._tickets = {}

    def _answer_tickets(self, tickets: list[tuple[int, int]], outcome: str, text: str) -> None:
        for rank, ticket in tickets:
            self._send(rank, f"TICKET {ticket} {outcome} {protocol.encode_text(text)}")

    # ---- connections

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        try:
            role = await asyncio.wait_for(auth.admit_stream(reader, writer, self._secret), HANDSHAKE_SECONDS)
            if role == "rank":
                await self._serve_rank(reader, writer)
            elif role == "command":
                assert task is not None
                self._commands.add(task)
                await self._serve_command(reader, writer)
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # cancelled: the job has ended, and so does this task
        except Exception:
            log.exception("a connection")
        finally:
            if task is not None:
                self._commands.discard(task)
            writer.close()

    async def _serve_command(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kind, fields, _ = await _line(reader)
        match kind, fields:
            case "STATUS", []:
                writer.write(protocol.join("JSON", json.dumps(self.status())).encode() + b"\n")
            case "CHECKPOINT", [("continue" | "exit" | "hold") as then, grace]:
                await self._answer(writer, lambda: self._checkpoint(lambda: self.requests.ask(then, int(grace))))
            case "RECENT", [within_ms]:
                await self._answer(writer, lambda: self._checkpoint(lambda: self.requests.ask_recent(int(within_ms) / 1000)))
            case "STOP", [("0" | "1") as checkpoint]:
                await self._answer(writer, lambda: self._stop(checkpoint == "1"))
            case _:
                if kind:
                    writer.write(protocol.join("RESULT", "failed", "the coordinator does not know this command").encode() + b"\n")
        await writer.drain()

    async def _checkpoint(self, ask: Callable[[], asyncio.Future[Path]]) -> str:
        if self.flow.controller.finishing or self._over.is_set():
            raise CheckpointError("the job is finishing")
        return str(await asyncio.shield(ask()))

    async def _stop(self, checkpoint: bool) -> str:
        path = ""
        if checkpoint:
            path = await self._checkpoint(lambda: self.requests.ask("exit"))
        else:
            if self.state != "checkpointed":  # the ranks are held
                self._set_state("stopped")
            self.killed = "the job was stopped (manapy stop)"
            self._spawn(self._kill_later(0, STOP_CODE))
        await self._over.wait()
        return path

    async def _answer(self, writer: asyncio.StreamWriter, work: Callable[[], Any]) -> None:
        task = asyncio.ensure_future(work())
        begin, shown = time.monotonic(), ""
        while not task.done():
            await asyncio.wait((task,), timeout=PROGRESS_AFTER if not shown else PROGRESS_EVERY)
            text = "; ".join(self.waiting()[:3])
            if not task.done() and text and text != shown and time.monotonic() - begin >= PROGRESS_AFTER:
                shown = text
                writer.write(protocol.join("PROGRESS", text).encode() + b"\n")
        try:
            line = protocol.join("RESULT", "ok", task.result())
        except CheckpointError as error:
            line = protocol.join("RESULT", "died" if self._dying() else "failed", str(error))
        writer.write(line.encode() + b"\n")

    def _dying(self) -> bool:
        """Is the job at its end, other than by its own will?"""
        return self._over.is_set() or bool(self.killed) or any(not (r.connected or r.done) for r in self.ranks.values())

    # ---- for people

    def waiting(self) -> list[str]:
        """What the job or a checkpoint waits for."""
        missing = [r for r in range(self.settings.ranks) if r not in self.ranks]
        if missing and not self._over.is_set():
            return [f"rank {missing[0]}{f' and {len(missing) - 1} more' if len(missing) > 1 else ''} not started yet"]
        if not self._started.is_set():
            return [f"rank {n} is still being restored" for n, r in sorted(self.ranks.items()) if not r.ready][:20]
        if self._tickets and self.flow.phase is Phase.IDLE:
            absent = [r for r in range(self.settings.ranks) if r not in self._tickets]
            return [f"rank {min(self._tickets)} has called manapy.checkpoint(), rank {absent[0]} has not"]
        return self.flow.waiting()

    def status(self) -> dict[str, Any]:
        """The answer to STATUS; the keys are in README.md."""
        last = self._last
        return {
            "id": self.record["id"],
            "dir": str(self.dir),
            "state": self.state,
            "phase": self.flow.phase.value,
            "size": self.settings.ranks,
            "pid": os.getpid(),
            "program": self.record["argv"],
            "protocol": self.record.get("protocol", "cc"),
            "started": self.record["started"],
            "ranks": [self._rank_status(n) for n in range(self.settings.ranks)],
            "waiting": self.waiting(),
            "written": self.flow.written(),
            "checkpoint_dir": str(self.flow.place),
            "last_checkpoint": None if last is None else {"path": str(last.path), "time": last.manifest.time, "bytes": last.manifest.file_bytes},
        }

    def _rank_status(self, number: int) -> dict[str, Any]:
        rank = self.ranks.get(number)
        if rank is None:
            return {"rank": number, "host": None, "pid": None, "state": "starting", "waits_for": None, "program": None}
        state, waits_for = "running", None
        if not rank.connected:
            state = "ended" if rank.done else "died"
        elif rank.done:
            state = "finishing"
        elif self.flow.phase is Phase.CLOCK:
            thread = self.flow.controller.ranks[number].first
            state, waits_for = thread.state.value, self._waits_for(thread)
        elif self.flow.phase not in (Phase.IDLE, Phase.CHECK, Phase.RESUME):
            state = "stopped"
        return {"rank": number, "host": rank.host, "pid": rank.pid, "state": state, "waits_for": waits_for, "program": rank.program, "mpi": rank.mpi}

    def _waits_for(self, thread: Thread) -> str | None:
        if not thread.cid:
            return None
        comm = self.flow.controller.comms.get(thread.cid)
        name = f"communicator '{comm.name}'" if comm is not None and comm.name else f"communicator {thread.cid:016x}"
        if thread.state.value != "blocked":
            return name
        peers = (" or " if thread.mode.value == "any" else ", ").join(map(str, thread.peers[:8]))
        return f"rank {peers} on {name}" if peers else f"any rank of {name}"


async def _line(reader: asyncio.StreamReader) -> tuple[str, list[str], str]:
    """One line as (kind, fields, line); ("", [], "") at the end of the connection."""
    try:
        data = await reader.readline()
    except (ConnectionError, ValueError):  # ValueError: longer than LINE_MAX
        data = b""
    if not data.endswith(b"\n"):
        return "", [], ""
    line = data[:-1].decode("utf-8", "surrogateescape")
    kind, *fields = line.split(" ")
    return kind, fields, line


def _launcher(rank0_pid: int) -> str | None:
    """What started the job, as a command that takes `-n N PROGRAM`: by the parent of rank 0, which is hydra_pmi_proxy with mpirun
    beside it, or slurmstepd."""
    with contextlib.suppress(OSError, ValueError):
        status = Path(f"/proc/{rank0_pid}/status").read_text()
        parent = next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:"))
        manager = Path(os.readlink(f"/proc/{parent}/exe"))
        if manager.name.startswith("slurmstepd"):  # Debian's is slurmstepd-wlm
            return "srun --mpi=pmi2"
        candidate = manager.with_name("mpirun")
        if os.access(candidate, os.X_OK):
            return str(candidate)
    return None


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("internal error", exc_info=task.exception())
