"""One checkpoint from request to publication, as the coordinator drives it over all ranks.

    CHECK -> (REFUSED: over, nothing has stopped) -> clock converges (manapy.clock.Controller) -> CALL (of ranks with
          callbacks) -> STOP -> DRAIN -> WRITE -> publish -> RESUME
          or, in the background: -> CAPTURE -> RESUME -> WRITTEN -> publish

Invariants
 1. A step starts when every rank has answered the previous step. The first failure (REFUSED, FAILED, a lost or
    finishing rank) ends the checkpoint: ABORT goes to all ranks that know of it, the temporary directory is removed,
    and older checkpoints remain. While the images are written beside the running ranks, a rank may finish: its process
    ends after its image is complete.
 2. After publication nothing can fail: a rank that is lost then does not undo the checkpoint.
 3. Callbacks of the program run when every rank is frozen, and their rank's main thread goes on only after the
    checkpoint. Without callbacks this step is skipped.
 4. A rank whose program has disabled checkpoints answers CHECK when the program has enabled them again. If the program
    disables them later, the clock waits (invariant 5 of clock/controller.py). Once the rank is frozen, it cannot
    disable them.
 5. The images of a checkpoint are in place on all hosts before it is published (storage.py).
 6. ABORT has no answer: each rank delays the CHECK of the next checkpoint until it has left this one.
 7. Until the last rank has answered CHECK, a rank may lose its connection and come back (invariant 3 of ranks.py): it
    gets CHECK again. After that, also between two steps, a lost connection ends the checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from ...clock import Controller, Mode, State, Thread, WireError, explain_disabled, from_wire
from ...core.errors import CheckpointError
from ...core.units import ranges, size
from .. import protocol
from ..phase import Phase
from ..store import folders, publish
from .increments import Increments
from .levels.storage import Storage

log = logging.getLogger(__name__)

CLOCK_KINDS = frozenset("ROWS RAISE RETRACT STATE FROZEN NOTFROZEN".split())
MEASURE_SECONDS = 0.5  # between looks at what was written
LINES_MAX = 1 << 13  # lines of the clock that are remembered: ranks of many nodes send the same
FEW = 8  # ranks that are named one by one
RANGES = 60  # characters of a list of more
STALL_SECONDS = 10.0  # without any report; then a dependency outside MPI is suspected


class Published(NamedTuple):
    """A checkpoint on disk, without its ranks, which may be many. ``remark``: how long it took, as text for users."""

    path: Path
    time: float
    bytes: int
    remark: str = ""


class Flow:
    """The checkpoints of one job, one at a time. ``send(ranks, line)`` must not block."""

    def __init__(
        self,
        size: int,
        directory: Path,
        secret: bytes,
        storage: Storage,
        send: Callable[[Sequence[int], str], None],
    ) -> None:
        self.size = size
        self.directory = directory
        self.storage = storage
        self.place = directory  # where the images go (publish.place)
        self.increments = Increments()
        self.controller = Controller(size)
        self.phase = Phase.IDLE
        self.epoch = 0
        self.temporary: Path | None = None
        self.since = 0.0  # when this phase began
        self.state_since = [0.0] * size  # last STATE of each rank
        self.disabled: set[int] = set()  # ranks that answer CHECK when their program has enabled checkpoints again
        self.gone: dict[int, str] = {}  # rank: why it takes part in no further checkpoint
        self.away: set[int] = set()  # ranks that have lost their connection, and may come back
        self._check = ""  # the order of CHECK of this checkpoint
        self._failure = ""  # why this checkpoint has failed, or will fail at its next step
        self._send, self._secret = send, secret
        self._read = lru_cache(LINES_MAX)(from_wire)
        self._answer = ""
        self._answers: dict[int, list[str]] = {}
        # when this checkpoint began, STOP was sent, and all ranks ran again beside the writing of their images
        self._begun = self._halted = self._released = 0.0
        self.stood: float | None = None  # seconds for which the job was paused for its last checkpoint of this run
        self._resumed: set[int] = set()  # the ranks that run again, while images are written beside them
        self._step: asyncio.Future[None] | None = None
        self._heard = 0.0
        self.written = 0  # bytes of the images of the checkpoint in progress, as last measured
        self._measured = 0.0
        self.took = 0.0  # seconds of the last published checkpoint; after a restart, of its slowest image
        self.idle = asyncio.Event()  # set in that phase
        self.idle.set()

    # ---- what the coordinator calls

    async def take(
        self,
        grace_ms: int,
        background: bool,
        hosts: Sequence[str],
        then: Callable[[], str],
        record: dict[str, Any],
        on_begin: Callable[[], None],
        on_published: Callable[[Published], None],
    ) -> Path:
        """Take one checkpoint. Returns its path when all ranks run again. Raises CheckpointError; then nothing is
        published.

        ``background``: write the images beside the running ranks, if the ranks continue afterwards. ``hosts``: of each
        rank. ``on_begin`` is called before the ranks stop. Then ``then`` no longer changes. ``on_published`` is called
        as soon as the checkpoint is published.
        """
        self.epoch += 1
        self._begun, self._released = time.monotonic(), 0.0
        self._failure, self._check = "", f"CHECK {self.epoch} {grace_ms}"
        try:
            checked = await self._all(Phase.CHECK, "CHECKED", {self._check: range(self.size)})
            with_callbacks = sorted(rank for rank, fields in checked.items() if fields)
            self.written, self._measured = 0, 0.0
            # not earlier: a rank sends its PLACE before CHECKED
            self.temporary = publish.begin(self.directory, self.place)
            where = self.storage.choose(hosts)
            into = await self.storage.open(self.temporary, where, hosts)
            on_begin()
            await self._converge()
            background &= then() == "continue"
            self.increments.begin(self.temporary.parent, where)
            self._halted = time.monotonic()
            if with_callbacks:
                await self._all(Phase.CALL, "CALLED", {f"CALL {self.epoch}": with_callbacks})
            await self._all(Phase.STOP, "STOPPED", {f"STOP {self.epoch}": range(self.size)})
            await self._all(Phase.DRAIN, "DRAINED", {f"DRAIN {self.epoch}": range(self.size)})
            answers, why_not = await (self._capture if background else self._write)(into, where)
            entries = [_entry(rank, folders.image(where[rank], rank), answers.pop(rank)) for rank in range(self.size)]
            self._enter(Phase.PUBLISH)
            await self.storage.settle(self.temporary, entries)
            parent = self.increments.record(entries)
            record = {**record, **self.storage.record(), "epoch": self.epoch, **parent}
            published = await asyncio.to_thread(_publish, self.temporary, record, entries, self._secret)
        except BaseException as error:
            await self._abort(str(error) or type(error).__name__)
            raise
        self.temporary = None
        path = published.path
        self.increments.published(path, self.epoch, where, entries, bool(parent))
        took, until_safe = time.monotonic() - self._begun, self._halted - self._begun
        self.took = took
        since = f", changes since {parent['parent']}" if parent else ""
        log.info("published %s after %.3f s (%.3f s to a safe moment)%s", path, took, until_safe, since)
        remark = ""
        if background:
            self.stood = self._released - self._halted
            remark = self._remark(self.stood, why_not)
            log.info("%s", remark)
        if then() == "continue":
            self.storage.on_published(path)
        else:  # the allocation may end with the ranks, and local storage with it
            remark = await self.storage.flush(path)
        on_published(published._replace(remark=remark))
        if background:
            self._step = None
            self._enter(Phase.IDLE)
        else:
            await self._resume(then(), path)
            self.stood = time.monotonic() - self._halted
        return path

    def on_line(self, ranks: Sequence[int], kind: str, fields: list[str], line: str) -> bool:
        """A line that each of these ranks has sent; False if it isn't for a checkpoint."""
        if kind in CLOCK_KINDS:
            self._heard = time.monotonic()
            self._on_clock(ranks, kind, line)
        elif kind in ("REFUSED", "FAILED"):
            if fields and fields[0] == str(self.epoch):
                self.fail(f"{name_ranks(ranks)}: {protocol.decode_text(fields[1])}")
        elif kind == "DISABLED":
            if self.phase is Phase.CHECK and fields and fields[0] == str(self.epoch):
                self.disabled.update(ranks)
        elif kind in ("CHECKED", "CALLED", "STOPPED", "DRAINED", "WRITTEN", "CAPTURED", "RESUMED"):
            if kind == "RESUMED" and self.phase is Phase.SAVE and fields[:1] == [str(self.epoch)]:
                self._on_resumed(ranks)
            elif kind == self._answer and fields and fields[0] == str(self.epoch):
                self._answers.update(dict.fromkeys(ranks, fields[1:]))
                if len(self._answers) == self.size:
                    self._finish_step(None)
        else:
            return False
        return True

    def on_done(self, rank: int) -> None:
        """A rank is finishing: there will be no further checkpoint."""
        # on_message alone would abort the clock without ending the step that waits. _abort tells the ranks.
        self.controller.finishing = True
        reason = f"the job is finishing: rank {rank} has ended its part"
        if self.phase is Phase.SAVE:
            self.gone.setdefault(rank, reason)  # its process waits until its image is complete
        else:
            self._on_gone(rank, reason)

    def on_away(self, rank: int) -> None:
        """A rank has lost its connection, and may come back (invariant 7)."""
        self.away.add(rank)
        if self._checks():
            self._answers.pop(rank, None)
            self.disabled.discard(rank)
        elif self.phase is Phase.RESUME:  # it goes on, in another program, and may have had no time to say so
            self._count(rank)
        elif not (self.phase is Phase.SAVE and rank in self._answers):
            self.fail(f"rank {rank} is lost")

    def on_back(self, rank: int) -> None:
        """It has come back."""
        self.away.discard(rank)
        if self._checks():
            self._send((rank,), self._check)

    def _checks(self) -> bool:
        return self.phase is Phase.CHECK and self._step is not None and not self._step.done()

    def on_lost(self, rank: int, done: bool, why: str) -> None:
        """A rank is gone. ``done``: the rank had sent DONE before."""
        if not done:
            self._on_gone(rank, why)
        elif self.phase is Phase.SAVE and rank not in self._answers:
            self._on_gone(rank, f"rank {rank} has ended before its image was complete")

    def _on_gone(self, rank: int, reason: str) -> None:
        self.gone.setdefault(rank, reason)
        if self.phase is Phase.RESUME:
            self._count(rank)
        else:
            self.fail(reason)

    def _count(self, rank: int) -> None:
        """A rank without an answer does not keep this step from its end."""
        self._answers.setdefault(rank, [])
        if len(self._answers) == self.size:
            self._finish_step(None)

    def fail(self, reason: str) -> None:
        """End the step in progress, if any; between two steps, end the next one."""
        if self.phase not in (Phase.IDLE, Phase.PUBLISH, Phase.RESUME):
            self._failure = self._failure or reason
            self._finish_step(CheckpointError(reason))

    # ---- for people

    def waiting(self) -> list[str]:
        """Return what the checkpoint waits for, one line each."""
        if self.phase is Phase.CLOCK:
            return [self._with_time(text) for text in self.controller.status()]
        missing = [rank for rank in range(self.size) if rank not in self._answers]
        match self.phase:
            case Phase.CHECK:
                others = [rank for rank in missing if rank not in self.disabled | self.away]
                away = [rank for rank in missing if rank in self.away]
                lines = [explain_disabled(rank) for rank in missing if rank in self.disabled]
                if away:
                    lines.append(
                        f"{name_ranks(away)}: not connected (another program is starting, or the rank has died)"
                    )
                if others:
                    lines.append(
                        f"{name_ranks(others)}: no answer yet (child processes have not ended, or the host is slow)"
                    )
                return lines
            case Phase.WRITE:
                so_far = f"{size(self.written, 0)} so far, " if self.storage.levels.shared else ""
                return [f"writing: {so_far}{name_ranks(missing)} not finished"]
            case Phase.SAVE:
                return [f"saving ({self.size - len(missing)} of {self.size} written)"]
            case Phase.CALL | Phase.STOP | Phase.DRAIN | Phase.CAPTURE | Phase.RESUME:
                return [f"{self.phase.value}: waiting for {name_ranks(missing)}"]
            case Phase.PUBLISH:
                return ["publishing"]
        return []

    async def measure(self) -> None:
        """Update ``written`` if it is out of date. A thread does this: a slow file system may have one image per
        rank."""
        temporary = self.temporary
        if temporary is None:
            self.written = 0
        elif self.phase in (Phase.WRITE, Phase.SAVE) and time.monotonic() - self._measured >= MEASURE_SECONDS:
            self._measured = time.monotonic()
            self.written = await asyncio.to_thread(_bytes_in, temporary)

    def rank_state(self, rank: int) -> tuple[str, str | None]:
        """The state of a rank, in one word, and what it waits for."""
        if self.phase is Phase.CLOCK:
            thread = self.controller.ranks[rank].first
            return thread.state.value, self._waits_for(thread)
        running = self.phase in (Phase.IDLE, Phase.CHECK, Phase.SAVE, Phase.RESUME) or self._released
        return ("running" if running else "stopped"), None

    def _waits_for(self, thread: Thread) -> str | None:
        if not thread.cid:
            return None
        comm = self.controller.comms.get(thread.cid)
        name = f"communicator '{comm.name}'" if comm is not None and comm.name else f"communicator {thread.cid:016x}"
        if thread.state is not State.BLOCKED_P2P:
            return name
        peers = (" or " if thread.mode is Mode.ANY else ", ").join(map(str, thread.peers[:8]))
        return f"rank {peers} on {name}" if peers else f"any rank of {name}"

    # ---- steps

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        (self.idle.set if phase is Phase.IDLE else self.idle.clear)()
        self.since = self._heard = time.monotonic()

    def _begin_step(self, phase: Phase, answer: str) -> asyncio.Future[None]:
        self._enter(phase)
        self._answer, self._answers = answer, {}
        self.disabled.clear()
        if phase is not Phase.RESUME and (failure := self._failure or next(iter(self.gone.values()), "")):
            raise CheckpointError(failure)
        self._step = asyncio.get_running_loop().create_future()
        return self._step

    def _finish_step(self, error: Exception | None) -> None:
        if self._step is None or self._step.done():
            return
        if error is None:
            self._step.set_result(None)
        else:
            self._step.set_exception(error)

    async def _all(self, phase: Phase, answer: str, orders: Mapping[str, Sequence[int]]) -> dict[int, list[str]]:
        """Take one step. ``orders``: lines, each with the ranks that get it. Ranks that get none have nothing to
        answer."""
        step = self._begin_step(phase, answer)
        if sum(map(len, orders.values())) < self.size:
            asked = {rank for ranks in orders.values() for rank in ranks}
            self._answers.update((rank, []) for rank in range(self.size) if rank not in asked)
        for line, ranks in orders.items():
            self._send(ranks, line)
        await step
        return self._answers

    def _orders(self, kind: str, temporary: Path, where: Sequence[str]) -> dict[str, list[int]]:
        """WRITE or CAPTURE, with the ranks that write into the same folder."""
        alike: dict[str, list[int]] = {}
        for rank, name in enumerate(where):
            alike.setdefault(name, []).append(rank)
        return {
            protocol.join(kind, self.epoch, str(temporary / name), *self.increments.fields(name)): ranks
            for name, ranks in alike.items()
        }

    async def _write(self, temporary: Path, where: Sequence[str]) -> tuple[dict[int, list[str]], str]:
        """Write the images while the ranks are paused. Returns the ranks' reports (and an empty remark)."""
        return await self._all(Phase.WRITE, "WRITTEN", self._orders("WRITE", temporary, where)), ""

    async def _capture(self, temporary: Path, where: Sequence[str]) -> tuple[dict[int, list[str]], str]:
        """Release the ranks while their images are written beside them. Returns the ranks' reports, and why a rank did
        not write beside its program, or ""."""
        captured = await self._all(Phase.CAPTURE, "CAPTURED", self._orders("CAPTURE", temporary, where))
        reasons = {reason for (reason,) in captured.values()}
        step = self._begin_step(Phase.SAVE, "WRITTEN")
        self._resumed = set()
        self._send_all(self.controller.resume())
        await step
        return self._answers, max(map(protocol.decode_text, reasons))

    def _on_resumed(self, ranks: Sequence[int]) -> None:
        self._resumed.update(ranks)
        if len(self._resumed) == self.size:
            self._released = time.monotonic()

    def _remark(self, stood: float, why_not: str) -> str:
        remark = f"the job was paused for {1000 * stood:.0f} ms; published after {time.monotonic() - self._begun:.2f} s"
        return remark + f" (written while the job was paused: {why_not})" * bool(why_not)

    async def _converge(self) -> None:
        if self.controller.finishing:
            raise CheckpointError("the job is finishing")
        step = self._begin_step(Phase.CLOCK, "")
        self._read = lru_cache(LINES_MAX)(partial(from_wire, known={}))  # not longer than this checkpoint
        self.state_since = [time.monotonic()] * self.size
        self._send_all(self.controller.begin(self.epoch))
        patience = STALL_SECONDS
        while not step.done():
            await asyncio.wait((step,), timeout=patience)
            if not step.done() and time.monotonic() - self._heard >= patience:
                if out := self.controller.stall():
                    log.info("nothing reported for %.0f s: asked %d parked ranks to go on", patience, len(out))
                    self._send_all(out)
                patience *= 2
        step.result()

    def _on_clock(self, ranks: Sequence[int], kind: str, line: str) -> None:
        if self.phase is not Phase.CLOCK:
            return
        try:
            message = self._read(line)
            if kind == "STATE":
                for rank in ranks:
                    self.state_since[rank] = self._heard
            self._send_all(self.controller.on_messages(ranks, message))  # type: ignore[arg-type]
            self._look_at_clock(ranks)
        except (WireError, LookupError, ValueError) as error:
            log.exception("%s sent %r", name_ranks(ranks), line[:500])
            self.fail(f"{name_ranks(ranks)} sent an invalid report ({error})")

    def _look_at_clock(self, ranks: Sequence[int]) -> None:
        if self.controller.epoch != self.epoch:
            text = "checkpoint %d continues as %d: a collective call of %s failed on its arguments"
            log.info(text, self.epoch, self.controller.epoch, name_ranks(ranks))
            self.epoch = self.controller.epoch
        if self.controller.converged:
            self._finish_step(None)
        elif not self.controller.pending:
            self.fail(self.controller.failure or "the collective clock gave up")

    def _send_all(self, messages: Iterable[tuple[int, Any]]) -> None:
        for message, group in groupby(messages, itemgetter(1)):
            self._send([rank for rank, _ in group], message.to_wire())

    async def _abort(self, reason: str) -> None:
        """Release the ranks. Then delete what they have written, which may take long."""
        log.info("checkpoint %d failed: %s", self.epoch, reason)
        if self.phase not in (Phase.IDLE, Phase.CHECK):
            if self.controller.pending:
                self._send_all(self.controller.abort(reason))
            else:  # the controller gave up by itself; ranks that know this already ignore the message
                self._send(range(self.size), protocol.join("ABORT", self.epoch, reason))
        self._step = None
        try:
            if (temporary := self.temporary) is not None:
                self.temporary = None
                await asyncio.to_thread(publish.cancel, temporary)
                self.storage.cancel()
        finally:
            self._enter(Phase.IDLE)

    async def _resume(self, then: str, path: Path) -> None:
        step = self._begin_step(Phase.RESUME, "RESUMED")
        if then == "hold":  # until the ranks are killed
            log.info("the ranks are held")
            for rank in self.gone:
                self._answers[rank] = []
            if len(self._answers) < self.size:
                await step
        elif self.controller.converged:
            self._send_all(self.controller.resume(then, str(path)))
            for rank in self.gone:  # while it was published
                self._answers[rank] = []
            if len(self._answers) < self.size:
                await step
        self._step = None
        self._enter(Phase.IDLE)

    def _with_time(self, text: str) -> str:
        """'rank 3 has computed below target; ...' becomes 'rank 3 has computed for 40 s; ...'."""
        head, found, tail = text.partition(" has computed below target")
        if not found:
            return text
        seconds = time.monotonic() - self.state_since[int(head.removeprefix("rank "))]
        return f"{head} has computed for {seconds:.0f} s{tail}"


def _entry(rank: int, image: str, fields: list[str]) -> publish.Entry:
    try:
        size, file_bytes, crc, seconds, host, seal, kept, way = fields
        return publish.Entry(
            rank,
            image,
            int(size),
            int(file_bytes),
            int(crc),
            float(seconds),
            sys.intern(protocol.decode_text(host)),
            protocol.decode_text(seal),
            int(kept),
            sys.intern(protocol.decode_text(way)),
        )
    except ValueError as error:
        raise CheckpointError(f"rank {rank} sent an invalid report of its image: {fields}") from error


def _publish(temporary: Path, record: dict[str, Any], entries: list[publish.Entry], secret: bytes) -> Published:
    now = time.time()
    path = publish.commit(temporary, {**record, "time": now}, entries, secret)
    return Published(path, now, sum(entry.file_bytes for entry in entries))


def _bytes_in(directory: Path) -> int:
    total = 0
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            total += _bytes_in(Path(entry.path)) if entry.is_dir() else entry.stat().st_blocks * 512
    return total


def name_ranks(ranks: Sequence[int]) -> str:
    """The names of ranks for a message; of many ranks only the first ones."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return "ranks " + (", ".join(map(str, ranks)) if len(ranks) <= FEW else ranges(sorted(ranks), RANGES))
