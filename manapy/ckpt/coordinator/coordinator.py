"""The coordinator of a job: one process, started by rank 0's launcher before the program runs
(lowerhalf/join/rendezvous.c).

It owns the job directory. It accepts connections on a socket that is already bound (connections.py). It drives
checkpoints (flow.py). It ends with the job; the ranks decide when that is (ranks.py). It is in its own session, so that
signals for mpirun's process group do not reach it.

Invariants
 1. Only the thread of the event loop touches the state.
 2. A scheduler may kill the coordinator with the last task of this host (Slurm does, with proctrack/cgroup). So in a
    chain, ranks that end wait for NOTED. Then job.json says how the job has ended, and no checkpoint is half done.
    After an error the end is recorded immediately, because the other ranks may soon be killed; otherwise when all ranks
    have ended.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

from ... import __version__
from ...core import launchers, processes
from ...core.errors import CheckpointError, ManapyError, explained, why
from ...core.tasks import Tasks
from .. import protocol
from ..peer_time import now
from ..redundancy import policy
from ..redundancy.policy import Policy
from ..segments import Segments
from ..store import job, known, publish
from . import report
from .channel import Channel
from .connections import Connections
from .levels.fetch import Fetch
from .levels.fold import Fold
from .flow import Flow, Published
from .increments import Increments
from .later_stop import LaterStop
from .mpi_init import InitWatch
from .ranks import Rank, Ranks
from .requests import Requests, CheckpointCalls
from .levels.storage import Storage
from .rank_processes import RankProcesses

log = logging.getLogger(__name__)

BACKLOG = 1 << 16  # connections that wait to be accepted; the kernel takes as many as net.core.somaxconn allows
CONNECT_SECONDS = 330.0  # after our start; ranks no longer try to connect (CONNECT_TRIES_MS of control.c)
PROGRESS_AFTER, PROGRESS_EVERY = 1.5, 1.0  # seconds; a quick checkpoint shows none
INIT_LOOK_SECONDS = 1.0
ANSWER_SECONDS = 2.0  # for waiting commands, at the end of the job
USAGE_CODE = 2  # ... if the options of manapy-launch cannot be followed
STOP_CODE = 143  # exit code of the ranks after `manapy stop --no-checkpoint`, as after SIGTERM


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that the launcher passes."""
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--fd", type=int, required=True, help="listening socket")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--rank0-pid", type=int, default=0)
    parser.add_argument("--resume", metavar="CHECKPOINT")
    parser.add_argument("--last-words", type=int, default=-1, help="pipe to rank 0, which reads it during MPI_Init")
    parser.add_argument("--interval", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--keep", type=int, default=0)
    parser.add_argument("--child-grace-ms", type=int, default=5000)
    parser.add_argument("--background", action="store_true")
    parser.add_argument("--dirty", default="", metavar="WAY")
    parser.add_argument("--full-every", type=int, default=1, metavar="K")
    parser.add_argument("--exact", action="store_true", help="resume this checkpoint, no older one")
    parser.add_argument("--local", type=Path, metavar="DIR")
    parser.add_argument("--flush", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--redundancy", type=policy.parse, default=Policy())
    parser.add_argument("--failure-groups", type=Path, metavar="FILE")


def run(options: argparse.Namespace) -> int:
    """Serve until the job ends. Errors go to the log (stderr is coordinator.log)."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True)
    processes.raise_limit()
    settings = Settings(
        options.ranks,
        options.rank0_pid,
        options.resume,
        options.interval,
        options.keep,
        options.child_grace_ms,
        options.last_words,
        options.background,
        options.dirty,
        options.full_every,
        options.exact,
        options.local,
        options.flush,
        options.redundancy,
        options.failure_groups,
    )
    try:
        listener = socket.socket(fileno=options.fd)
        asyncio.run(Coordinator(options.dir, settings).run(listener))
    except Exception:
        log.exception("the coordinator failed")
        return 1
    return 0


class Settings(NamedTuple):
    """Options of a job. Times are in seconds unless the name says otherwise. 0 means none, or all. ``background``:
    write images beside the running ranks. ``dirty``, ``full_every``: see increments.py. ``exact``: resume no older
    checkpoint. ``local`` to ``failure_groups``: see storage.py."""

    ranks: int
    rank0_pid: int = 0
    resume: str | None = None
    interval: float = 0.0
    keep: int = 0
    child_grace_ms: int = 5000
    last_words: int = -1
    background: bool = False
    dirty: str = ""
    full_every: int = 1
    exact: bool = False
    local: Path | None = None
    flush: float = 0.0
    redundancy: Policy = Policy()
    failure_groups: Path | None = None


class Coordinator:
    """One job."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        self.dir = directory
        self.settings = settings
        self._secret = (directory / "secret").read_bytes()
        self.storage = Storage(
            directory,
            self._secret,
            settings.local,
            settings.flush,
            settings.redundancy,
            settings.failure_groups,
            self._say,
        )
        self.flow = Flow(
            settings.ranks,
            directory,
            self._secret,
            self.storage,
            lambda ranks, line: self.ranks.send(ranks, line),
        )
        self.flow.increments = Increments(settings.dirty, settings.full_every)
        self._fold = Fold(self._secret, self.flow.increments, self.storage, self._prune, self._say)
        self.ranks = Ranks(settings.ranks, self.flow.on_away, self.flow.on_back, self.flow.on_lost)
        self.init = InitWatch(self.ranks)
        self.requests = Requests()
        self._later_stop = LaterStop(
            self.requests,
            lambda: self.flow.took + self.storage.copy_seconds,
            lambda: self.flow.controller.finishing or self.ranks.over.is_set(),
        )
        self.tickets = CheckpointCalls(settings.ranks, self.requests)
        self.record: dict[str, Any] = {}
        self.state = "starting"
        self._started = asyncio.Event()  # all ranks connected (and, in a restart, ready)
        self._connections = Connections(
            directory,
            self._secret,
            self.ranks,
            self.flow,
            self._look_whether_started,
            self._on_rank_line,
            self._serve_command,
            self.storage,
        )
        self._fetch: Fetch | None = None
        self.report = report.Report(
            directory,
            settings.resume is not None,
            self.ranks,
            self.flow,
            self.init,
            self.tickets,
            self._started,
            lambda: self._connections.busy,
            self._later_stop,
        )
        self._trees = RankProcesses(self.ranks)
        self._last: Published | None = None
        self._tasks = Tasks(log)
        self._segments = Segments()  # of the real MPI on this host
        self._noting = asyncio.Event()  # set when ranks have ended and job.json must say so
        # the end of the job, as recorded while ranks were still connected; later events do not change it
        self._noted = ""
        self._to_tell: list[int] = []  # the ranks among them that have ended with an error
        self._pruning: asyncio.Task[None] | None = None

    # ---- life

    async def run(self, listener: socket.socket) -> None:
        """Serve until the job ends."""
        try:
            await self._serve(listener)
        finally:
            self._connections.close_nodes()

    async def _serve(self, listener: socket.socket) -> None:
        self._load()
        loop = asyncio.get_running_loop()
        if self.settings.rank0_pid:
            self.ranks.watch_rank0(self.settings.rank0_pid, self.settings.last_words)
        # tasks of our own: asyncio logs a traceback if one of its own is cancelled before it begins
        server = await asyncio.start_server(
            lambda reader, writer: self._tasks.spawn(self._connections.accept(reader, writer)),
            sock=listener,
            limit=2 * protocol.LINE_MAX,
            backlog=BACKLOG,
        )
        self._tasks.spawn(self._note_ends())
        self._tasks.spawn(self._serve_requests())
        self._tasks.spawn(self._watch_init())
        self._tasks.spawn(self.storage.serve())
        if self.settings.interval > 0:
            self._tasks.spawn(self._serve_interval())
        log.info(
            "manapy %s: job %s, %d ranks, pid %d", __version__, self.record["id"], self.settings.ranks, os.getpid()
        )
        await self.ranks.over.wait()
        await self.flow.idle.wait()  # the ranks may have ended while their checkpoint is being published
        if self.state in job.LIVE:
            if not self.ranks.known and self.settings.ranks == 1:
                self.state = "ended"  # the job was too short to wait for us, or was killed
            else:
                self.state = "done" if self.ranks.all_done else "failed"
            self.record |= self.ranks.ending()
            if doubt := self.ranks.doubt():
                log.warning("%s", doubt)
        server.close()
        self.requests.fail_all("the job has ended" + f": {self.ranks.killed}" * bool(self.ranks.killed))
        self._write_record()
        self._connections.recordings.end()
        await self._connections.answered(ANSWER_SECONDS)
        await self._connections.shift.end()
        self._fold.end()
        self._tasks.cancel()
        await loop.shutdown_default_executor()
        self._segments.remove()
        log.info("the job has ended: %s", self.state)

    def _load(self) -> None:
        self.storage.on_copied = self._on_copied
        self.record = job.read(self.dir).record
        known.note(self.dir)
        if left := publish.clean(self.dir):
            log.info("removed what was left by an interrupted checkpoint: %s", ", ".join(p.name for p in left))
        found = publish.checkpoints(self.dir)
        if found:
            path, manifest = found[-1]
            self._last = Published(path, manifest.time, manifest.file_bytes)
            self.flow.took = max(entry.seconds for entry in manifest.ranks)
            copied = [held.record["flush_seconds"] for _, held in found if "flush_seconds" in held.record]
            self.storage.took = copied[-1] if copied else None
        self.record["run"] = os.urandom(8).hex() if self.settings.resume is None else None
        if self.settings.resume is not None:  # the launcher names the checkpoint; show the program instead
            with contextlib.suppress(publish.ManifestError):
                manifest = publish.read_manifest(Path(self.settings.resume))
                self.record |= {"argv": manifest.argv, "protocol": manifest.record.get("protocol", "cc")}
                self.record["generation"] = manifest.record.get("generation", 0) + 1
                self.record["run"] = manifest.record.get("run")
            where = Path(self.settings.resume).resolve().parent
            if publish.owner(where) == self.dir.resolve():
                self.flow.place = where
            self._fetch = Fetch(
                self.settings.ranks, Path(self.settings.resume).resolve(), self.settings.exact, self.storage
            )
        self.record |= {
            "pid": os.getpid(),
            "checkpoint_dir": str(self.flow.place),
            "manapy": __version__,
            "mpirun": launchers.command(self.settings.rank0_pid),
        }
        self._set_state("starting")

    def _set_state(self, state: str) -> None:
        self.state = state
        self._write_record()

    def _write_record(self) -> None:
        hosts = sorted({rank.host for rank in self.ranks.known.values()})
        state = self._noted if self._noted and self.state in job.LIVE else self.state
        self.record |= {"state": state, "changed": round(time.time(), 3), "hosts": hosts}
        if self.storage.copies:
            self.record["flush_seconds"] = self.storage.took
        try:
            job.write(self.dir, self.record)
        except OSError as error:
            log.error(why(error, self.dir / "job.json"))

    async def _note_ends(self) -> None:
        """Record the ends of ranks (invariant 2), all that are there in one step."""
        while True:
            await self._noting.wait()
            await self.flow.idle.wait()
            self._noting.clear()
            all_done, told, self._to_tell = self.ranks.all_done, self._to_tell, []
            if self.state in job.LIVE:
                self.record |= self.ranks.ending()
                self._noted = "done" if all_done else "failed"
                self._write_record()
            self.ranks.send(self.ranks.known if all_done else told, "NOTED")

    async def _watch_init(self) -> None:
        """Tell the user which ranks do not return from MPI_Init."""
        while True:
            await asyncio.sleep(INIT_LOOK_SECONDS)
            if found := self.init.due():
                rank, text = found
                log.warning("%s", text)
                self._say(text, rank.number)

    def _say(self, text: str, rank: int = 0) -> None:
        self.ranks.send((rank,), protocol.join("SAY", text))

    # ---- ranks

    def _on_rank_line(self, rank: Rank, kind: str, fields: list[str], line: str) -> None:
        if kind == "PROGRAM":
            rank.mpi, rank.program = sys.intern(fields[0]), sys.intern(protocol.decode_text(fields[1]))
            self.init.note(rank)
            if rank.here:
                self._segments.add(fields[2])
        elif kind == "DONE":
            self.ranks.on_done(rank, int(fields[0]), int(fields[1]) if len(fields) > 1 else now())
            self.flow.on_done(rank.number)
            if rank.code:
                self._to_tell.append(rank.number)
            if rank.code or self.ranks.all_done:
                self._noting.set()
        elif kind == "READY":
            self.ranks.on_ready(rank)
            self._look_whether_started()
        elif kind == "REQUEST":
            self._on_ticket(rank.number, int(fields[0]))
        elif kind == "TREE":
            self._trees.on_answer(rank.number, fields)
        elif kind == "PLACE":
            self._on_place(rank.number, protocol.decode_text(fields[0]))
        else:
            log.warning("rank %d sent something unknown: %s", rank.number, line[:200])

    def _look_whether_started(self) -> None:
        if not self.ranks.all_came or self._started.is_set():
            return
        if self.settings.resume is not None:
            if self.state == "starting":
                self._set_state("restarting")
            if not self.ranks.all_ready:
                return
            self.ranks.send(self.ranks.known, "GO")
        self._set_state("running")
        self._started.set()
        self._tasks.spawn(self._check_storage())
        if self._fetch is not None:
            self._tasks.spawn(self._protect_again(self._fetch))

    async def _check_storage(self) -> None:
        try:
            await self.storage.check(self.ranks.hosts())
        except CheckpointError as error:  # no checkpoint would ever succeed, or protect anything
            log.error("%s", error)
            self.ranks.kill(str(error), USAGE_CODE)

    async def _protect_again(self, fetch: Fetch) -> None:
        if trouble := await fetch.protect_again():
            self._say(trouble)

    # ---- checkpoints

    async def _serve_requests(self) -> None:
        while True:
            batch = await self.requests.take()
            try:
                await self._until_started()
                if self.flow.controller.finishing:
                    raise CheckpointError("the job is finishing")
                grace = batch.grace_ms if batch.grace_ms >= 0 else self.settings.child_grace_ms
                await self.flow.take(
                    grace,
                    self.settings.background,
                    self.ranks.hosts(),
                    lambda: batch.then,
                    self._manifest_record(),
                    self._on_begin,
                    self._on_published,
                )
                if batch.then == "continue":
                    self._fold.begin()
            except CheckpointError as error:
                self._answer_tickets(self.requests.failed(str(error)), "failed", str(error))
            except Exception as error:
                log.exception("checkpoint")
                self._answer_tickets(
                    self.requests.failed(f"internal error: {error}"), "failed", f"internal error: {error}"
                )

            self._prune()

    async def _until_started(self) -> None:
        """Wait until all ranks have connected. Raises CheckpointError if ranks are missing and no longer try."""
        while missing := self.ranks.missing():
            left = self.report.begun + CONNECT_SECONDS - time.monotonic()
            if left <= 0:
                raise CheckpointError(
                    f"{self.report.explain(missing)}; these ranks have stopped trying to connect, so this job cannot be"
                    " checkpointed until it is restarted"
                )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._started.wait(), min(left, report.LATE_SECONDS))
        await self._started.wait()

    def _on_begin(self) -> None:
        self.requests.close()
        if self.requests.current is not None and self.requests.current.then != "continue":
            self._fold.end()

    def _on_published(self, last: Published) -> None:
        self._last, path = last, last.path
        if self.requests.current is not None and self.requests.current.then != "continue":
            self._set_state("checkpointed")
        self._answer_tickets(self.requests.published(last), "ok", str(path))

    def _on_copied(self) -> None:
        """A checkpoint was copied to the job directory, so older ones there may be needed no more."""
        self._write_record()
        self._prune()

    def _prune(self) -> None:
        """Start to delete old checkpoints, beside the running ranks. If the job ends first, a later run deletes the
        rest."""
        if self.settings.keep > 0 and (self._pruning is None or self._pruning.done()):
            self._pruning = asyncio.ensure_future(self._prune_now())

    async def _prune_now(self) -> None:
        try:
            with explained(CheckpointError, self.dir):
                await asyncio.to_thread(publish.prune, self.dir, self.settings.keep, self.storage.copying)
        except ManapyError as error:
            log.error("deleting old checkpoints: %s", error)
        await self.storage.tidy()

    def _manifest_record(self) -> dict[str, Any]:
        keys = ("argv", "cwd", "mpi", "mpirun", "protocol", "run")
        generation = max((rank.generation for rank in self.ranks.known.values()), default=0)
        return {
            "manapy": __version__,
            "job": self.record["id"],
            "generation": generation,
            **{k: self.record.get(k) for k in keys},
        }

    def _on_place(self, rank: int, choice: str) -> None:
        """A rank has chosen a directory for checkpoints. The last choice applies to all ranks: a checkpoint is one
        directory."""
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
        self.tickets.add(rank, ticket)

    def _answer_tickets(self, tickets: list[tuple[int, int]], outcome: str, text: str) -> None:
        for rank, ticket in tickets:
            self.ranks.send((rank,), f"TICKET {ticket} {outcome} {protocol.encode_text(text)}")

    # ---- commands

    async def _serve_command(self, channel: Channel) -> None:
        kind, fields, _ = await channel.receive()
        match kind, fields:
            case "STATUS", [*patience]:
                await self.flow.measure()
                found = await self._trees.ask(int(patience[0]) / 1000) if patience else {}
                status = self.report.status(self.record, self.state, self._last)
                for rank in status["ranks"] if patience else ():
                    rank["processes"] = found.get(rank["rank"])
                channel.send(protocol.join("JSON", json.dumps(status)))
            case "CHECKPOINT", [("continue" | "exit" | "hold") as then, grace]:
                await self._answer(channel, lambda: self._checkpoint(lambda: self.requests.ask(then, int(grace))))
            case "RECENT", [within_ms]:
                await self._answer(
                    channel, lambda: self._checkpoint(lambda: self.requests.ask_recent(int(within_ms) / 1000))
                )
            case "COLLECT", [host]:
                await self._connections.recordings.serve(channel, protocol.decode_text(host))
            case "SERVE", [host]:
                await self._connections.shift.serve(channel, protocol.decode_text(host))
            case "FETCH", [rank, host] if self._fetch is not None:
                await self._fetch.serve(channel, int(rank), protocol.decode_text(host))
            case "STOP", [("0" | "1") as checkpoint]:
                await self._answer(channel, lambda: self._stop(checkpoint == "1"))
            case "STOP", ["next"]:
                await self._answer(channel, lambda: self._ended_by(self._later_stop.with_next()))
            case "STOP", ["before", after_ms, moment]:
                ended = self._later_stop.before(int(after_ms) / 1000, protocol.decode_text(moment))
                await self._answer(channel, lambda: self._ended_by(ended))
            case "STOP", ["cancel"]:
                await self._answer(channel, self._take_back)
            case _:
                if kind:
                    channel.send(protocol.join("RESULT", "failed", "the coordinator does not know this command"))
        await channel.drain()

    async def _checkpoint(self, ask: Callable[[], asyncio.Future[Published]]) -> tuple[str, str]:
        if self.flow.controller.finishing or self.ranks.over.is_set():
            raise CheckpointError("the job is finishing")
        taken = await asyncio.shield(ask())
        return str(taken.path), taken.remark

    async def _stop(self, checkpoint: bool) -> tuple[str, str]:
        path, remark = "", ""
        if checkpoint:
            path, remark = await self._checkpoint(lambda: self.requests.ask("exit"))
        else:
            if self.state != "checkpointed":  # the ranks are held
                self._set_state("stopped")
            self.ranks.kill("the job was stopped (manapy stop)", STOP_CODE)
        await self.ranks.over.wait()
        return path, remark

    async def _ended_by(self, last: Coroutine[Any, Any, Published]) -> tuple[str, str]:
        published = await last
        await self.ranks.over.wait()
        return str(published.path), published.remark

    async def _take_back(self) -> tuple[str, str]:
        self._later_stop.take_back()
        return "", ""

    async def _answer(self, channel: Channel, work: Callable[[], Any]) -> None:
        task = asyncio.ensure_future(work())
        begin, shown = time.monotonic(), ""
        while not task.done():
            await asyncio.wait((task,), timeout=PROGRESS_AFTER if not shown else PROGRESS_EVERY)
            await self.flow.measure()
            text = "; ".join(self.report.waiting()[:3])
            if not task.done() and text and text != shown and time.monotonic() - begin >= PROGRESS_AFTER:
                shown = text
                channel.send(protocol.join("PROGRESS", text))
        try:
            path, remark = task.result()
            line = protocol.join("RESULT", "ok", path, *[remark] * bool(remark))
        except CheckpointError as error:
            line = protocol.join("RESULT", "died" if self.ranks.dying else "failed", str(error))
        channel.send(line)
