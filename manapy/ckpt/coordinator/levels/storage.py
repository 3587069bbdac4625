"""Where the images of new checkpoints go: to the job directory, or to local storage on each host (--local), from where
the agents of the hosts copy them to the job directory while the ranks run (--flush).

    open() -> the ranks write -> settle() -> publish (flow.py) -> on_published() -> flush(): copied, and published anew

Invariants
 1. A checkpoint on local storage is published after all hosts have settled its images, and, with --redundancy, after
    the partner of each host has a copy of them, or hosts have their spare blocks.
 2. The record of the shared level is written after all hosts have copied their images. A copy that fails leaves the
    record and the local level as they are.
 3. Local storage keeps the newest checkpoint, those that are nowhere else, and the images that these need. An image is
    deleted there only after the record of its checkpoint no longer names the local level.
 4. The images that a checkpoint needs are copied before it.
 5. While a checkpoint is copied, neither it nor the images that it needs are deleted, however many newer ones there
    are. Otherwise, if a copy takes longer than the time between two checkpoints, no copy would ever be complete.
    Checkpoints that still wait for their copy may be deleted, so that local storage does not fill up.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ....core.errors import CheckpointError, ManapyError, ManifestError, explained
from ....core.files import discard
from ....core.tasks import Tasks
from ... import protocol
from ...host_storage import LocalStorage
from ...redundancy import code, failure_groups
from ...redundancy.policy import Policy
from ...store import folders, job, levels, publish
from ...store.levels import Code, Levels
from ...store.publish import Entry, Manifest
from ..agents import LOST, Agents
from ..recordings import HostAgent
from . import protect
from .protect import Protect

log = logging.getLogger(__name__)

AGENT_SECONDS = 60.0  # until the agent of a node has come
NEVER = -1.0  # in place of the time between two flushes


class _OwnStorage:
    """The coordinator as the agent of its own host."""

    def __init__(self, on_line: Callable[[HostAgent, str], bool], secret: bytes, address: Callable[[], str]) -> None:
        self._storage = LocalStorage(lambda line: on_line(self, line), secret, address)
        asyncio.get_running_loop().add_reader(self._storage.fileno(), self._storage.ready)

    def tell(self, line: str) -> None:
        self._storage.take(line)


class Storage:
    """The storage of one job. ``local``: the directory of --local, or None. ``flush``: the seconds between two copies
    to the shared level, or NEVER. ``policy``: what survives the loss of hosts. ``failure_groups``: the file of
    that option. ``say``: tells the user."""

    def __init__(
        self,
        directory: Path,
        secret: bytes,
        local: Path | None,
        flush: float,
        policy: Policy,
        failure_groups: Path | None,
        say: Callable[[str], None],
    ) -> None:
        self._dir, self._secret, self._every, self._policy, self._say = directory, secret, flush, policy, say
        self._root = levels.root(local, directory) if local is not None else None
        self.agents = Agents()
        self.protect = Protect(directory, self.order)
        self._failure_groups = failure_groups
        self.sets: dict[str, str] = {}  # of each host that fails together with others, the name of its set
        self._code: Code | None = None  # of the newest checkpoint
        self._own: _OwnStorage | None = None
        self._numbers = map(str, itertools.count())
        self._waiting: dict[str, tuple[HostAgent, asyncio.Future[list[str]]]] = {}
        self._hosts: tuple[str, ...] = ()  # on which there may be images
        self._current: tuple[str, ...] = ()  # the names of the newest checkpoint, which may not be published yet
        self._spared: set[str] = set()  # names of directories in use
        self._changing = asyncio.Lock()  # held while hosts make folders or delete images
        self.rewriting = asyncio.Lock()  # held while images are copied to the shared level, or folded
        self._fresh = asyncio.Event()  # a checkpoint was published since the last flush
        self._due: list[Path] = []  # those that were published since then
        self.copying: tuple[Path, ...] = ()  # those that are being copied, or will be next (invariant 5)
        self.on_copied: Callable[[], None] = lambda: None  # a checkpoint was copied
        self.took: float | None = None  # seconds of the last complete copy, of this run or an earlier one
        self._since = 0.0  # when the copy in progress began; 0: there is none
        self._tasks = Tasks(log)

    # ---- a new checkpoint

    @property
    def levels(self) -> Levels:
        """The levels that hold a checkpoint when it is published."""
        if self._root is None:
            return Levels()
        return Levels(str(self._root), False, self._policy.partner, self._code, bool(self.sets))

    def record(self) -> dict[str, Any]:
        """Return the entry of the manifest that names the levels."""
        return {"levels": self.levels.record(), "flush": self.copies} if self._root is not None else {}

    @property
    def copies(self) -> bool:
        """Are checkpoints copied from local storage to the shared level?"""
        return self._root is not None and self._every != NEVER

    @property
    def copy_seconds(self) -> float:
        """How long a copy takes: as long as the last one, or as the one in progress has taken until now. 0 if nothing
        is known, or nothing is copied."""
        present = time.monotonic() - self._since if self._since else 0.0
        return max(self.took or 0.0, present) if self.copies else 0.0

    async def check(self, hosts: Sequence[str]) -> None:
        """All ranks run on these hosts: can these checkpoints be taken at all? Raises CheckpointError if not; warns the
        user of anything unusual."""
        if self._root is not None:
            if self._failure_groups is not None:
                self.sets = failure_groups.read(self._failure_groups, hosts)
            self._choose_code({host: host for host in hosts})
            if why := code.complaint(self._policy.spare):
                raise CheckpointError(why)
            if len(set(hosts)) > 1 and (shared := await self._shared(sorted(set(hosts)))):
                trouble = f"--local {self._root.parent}: hosts {' and '.join(shared)} share this directory"
                if self._policy.text != "none":
                    raise CheckpointError(f"{trouble}, so --redundancy {self._policy.text} protects nothing")
                self._say(f"{trouble}: it is not local to each host")

    async def _shared(self, hosts: Sequence[str]) -> list[str]:
        """Hosts that see the same directory as the first of them, which is not local to any of them."""
        assert self._root is not None
        root, text = str(self._root), os.urandom(16).hex()
        try:
            await self._each((host, ("sign", root, str(self._dir), host, text)) for host in hosts)
            seen = await asyncio.gather(*(self.order(host, "signs", root, text) for host in hosts))
        except CheckpointError as error:  # each checkpoint will say so
            log.warning("--local: %s", error)
            return []
        return max(seen, key=len) if max(map(len, seen)) > 1 else []

    def choose(self, hosts: Sequence[str]) -> list[str]:
        """The folder of each rank, by the ranks' hosts."""
        return folders.choose(hosts) if self._root is None else folders.by_host(hosts)

    async def open(self, temporary: Path, where: Sequence[str], hosts: Sequence[str]) -> Path:
        """Make the folders of a checkpoint. Returns the directory, on each host, that contains them. Raises
        CheckpointError."""
        if self._root is None:
            with explained(CheckpointError, temporary):
                folders.make(temporary, where)
            return temporary
        self._hosts = tuple(dict.fromkeys(hosts))
        self._code = self._choose_code(dict(zip(hosts, where, strict=True)))
        async with self._changing:
            self._current = (temporary.name, publish.final_path(temporary).name)
            keep = await asyncio.to_thread(self._kept)
            await self._each(
                (host, ("make", str(self._root), str(self._dir), temporary.name, folder, *keep))
                for folder, host in dict(zip(where, hosts, strict=True)).items()
            )
        return self._root / temporary.name

    def _choose_code(self, folder: dict[str, str]) -> Code | None:
        """The groups of the hosts that have these folders. Raises CheckpointError if there are too few hosts."""
        if self._policy.partner:
            self._policy.partners(list(folder), self.sets)
        found = [[folder[host] for host in group] for group in self._policy.groups(list(folder), self.sets)]
        return Code(self._policy.text, self._policy.spare, found) if found else None

    async def settle(self, temporary: Path, entries: Sequence[Entry]) -> None:
        """All images are written: give them their final names, and make the copies or spare blocks (invariant 1).
        Raises CheckpointError."""
        if self._root is None:
            return
        root, final = str(self._root), publish.final_path(temporary).name
        at = {levels.folder(entry): entry.host for entry in entries}
        await self._each((host, ("settle", root, temporary.name, final, folder)) for folder, host in at.items())
        if self._policy.partner:
            partners = self._policy.partners(list(at.values()), self.sets)
            moves = [(entry.host, partners[entry.host], entry.image) for entry in entries]
            await self.move(moves, root, final)
        if self._code is not None:
            await self.protect.encode(root, final, protect.groups(self._code), at, entries)

    def on_published(self, checkpoint: Path) -> None:
        """A checkpoint was published: copy it when it is time."""
        if self._root is not None:
            self._due.append(checkpoint)
            self._fresh.set()

    def cancel(self) -> None:
        """The checkpoint in progress has failed: delete its images."""
        self._current = ()
        if self._root is not None:
            self._tasks.spawn(self.tidy())

    # ---- the shared level

    async def serve(self) -> None:
        """Copy checkpoints to the shared level: each one, or from time to time the newest one."""
        last = 0.0
        while self.copies:
            await self._fresh.wait()
            await asyncio.sleep(max(0.0, last + self._every - time.monotonic()) if last else 0.0)
            self._fresh.clear()
            last = time.monotonic()
            due, self._due = self._due[-1:] if self._every else self._due, []
            for checkpoint in due:
                if trouble := await self.flush(checkpoint):
                    self._say(trouble)

    async def flush(self, checkpoint: Path) -> str:
        """Copy a checkpoint to the shared level now, unless copies are off. Returns why it could not be copied, or
        an empty text. Raises nothing: the ranks may wait (invariant 2 of flow.py)."""
        if not self.copies:
            return ""
        self.copying = (*self.copying, checkpoint)
        try:
            async with self.rewriting:
                self._since = time.monotonic()
                try:
                    with explained(CheckpointError, checkpoint):
                        for each in reversed(await asyncio.to_thread(publish.chain, checkpoint, strict=True)):
                            await self._flush(each)
                finally:
                    self._since = 0.0
                await self.tidy()
        except Exception as error:
            log.error("%s: not copied: %s", checkpoint, error, exc_info=not isinstance(error, ManapyError))
            if not publish.may_exist(checkpoint):  # it was deleted before
                return ""
            return f"{checkpoint} stays on local storage only: {error}"
        finally:
            waiting = list(self.copying)
            waiting.remove(checkpoint)
            self.copying = tuple(waiting)
        return ""

    async def _flush(self, checkpoint: Path) -> None:
        manifest = await asyncio.to_thread(publish.read_manifest, checkpoint)
        if manifest.levels.shared:
            return
        hosts = {levels.folder(entry): entry.host for entry in manifest.ranks}
        try:
            await self._each((host, ("flush", str(checkpoint), folder)) for folder, host in hosts.items())
        except ManapyError:
            for folder in hosts:
                await asyncio.to_thread(discard, checkpoint / folder)
            raise
        log.info("copied %s to the job directory", checkpoint)
        took = round(time.monotonic() - self._since, 3)  # with what it needs
        with explained(CheckpointError, checkpoint):
            await asyncio.to_thread(self._note_copied, checkpoint, manifest, took)
        self.took = took
        self.on_copied()

    def _note_copied(self, checkpoint: Path, manifest: Manifest, took: float) -> None:
        publish.relevel(checkpoint, manifest.levels._replace(shared=True), self._secret, flush_seconds=took)
        try:
            found = publish.checkpoints(self._dir, strict=True)
            newer = [path for path, held in found if held.levels.local and held.time >= manifest.time]
            needed = {real for path in newer for real in publish.chain(path, strict=True)}
        except (ManifestError, OSError) as error:  # this one is copied all the same
            log.warning("older images stay on local storage for now: %s", error)
            return
        for path, older in found:  # invariant 3
            if path not in needed and older.levels.local and older.levels.shared:
                publish.relevel(path, Levels(), self._secret)

    async def tidy(self) -> None:
        """Delete on all hosts the images that no published checkpoint needs."""
        if self._root is None:
            return
        async with self._changing:
            try:
                keep = await asyncio.to_thread(self._kept)
                await self._each((host, ("clean", str(self._root), *keep)) for host in self._hosts)
            except CheckpointError as error:
                log.warning("deleting old images: %s", error)

    def _kept(self) -> list[str]:
        """The names of all checkpoints that must stay on local storage. Raises CheckpointError if this cannot be found
        out now."""
        with explained(CheckpointError, self._dir):
            return [*self._current, *self._spared, *publish.names_on_hosts(self._dir)]

    @contextlib.contextmanager
    def spared(self, name: str) -> Iterator[None]:
        """No host deletes its directory of this name on local storage meanwhile."""
        self._spared.add(name)
        try:
            yield
        finally:
            self._spared.discard(name)

    # ---- between hosts

    def partner(self, host: str) -> str | None:
        """The host that has copies of this one's images on its local storage."""
        return self._policy.partners(list(self._hosts), self.sets)[host] if self._policy.partner else None

    async def move(self, images: Iterable[tuple[str, str, str]], root: str, name: str) -> None:
        """Copy images of a checkpoint from host to host: (from, to, image). Raises CheckpointError."""
        ways: dict[tuple[str, str], list[str]] = {}
        for source, target, image in images:
            ways.setdefault((source, target), []).append(image)
        sources = list(dict.fromkeys(source for source, _ in ways))
        places = dict(zip(sources, await asyncio.gather(*(self.order(each, "offer") for each in sources)), strict=True))
        await self._each(
            (target, ("pull", *places[source], root, str(self._dir), name, *some))
            for (source, target), some in ways.items()
        )

    # ---- orders

    async def order(self, host: str, verb: str, *words: str) -> list[str]:
        """Return the answer of a host's agent to an order. Raises CheckpointError."""
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(AGENT_SECONDS):
                agent = await self._agent(host)
            self._waiting[number] = agent, answer
            agent.tell(protocol.join("STORE", number, verb, *words))
            return await answer
        except TimeoutError as error:
            raise CheckpointError(f"the agent of host {host} does not answer") from error
        except CheckpointError as error:
            raise CheckpointError(f"host {host}: {error}") from None
        finally:
            self._waiting.pop(number, None)

    async def _each(self, orders: Iterable[tuple[str, tuple[str, ...]]]) -> None:
        """Give orders to hosts, and wait until each has answered. Raises CheckpointError, the first one."""
        done = await asyncio.gather(*(self.order(host, *words) for host, words in orders), return_exceptions=True)
        for result in done:
            if isinstance(result, BaseException):
                raise result

    async def _agent(self, host: str) -> HostAgent:
        if host != socket.gethostname():
            return await self.agents.of(host)
        if self._own is None:
            self._own = _OwnStorage(self.on_line, self._secret, lambda: job.read(self._dir).host)
        return self._own

    def on_line(self, agent: HostAgent, line: str) -> bool:
        """A line of an agent. False: it is about something else."""
        kind, *fields = line.split(" ")
        if kind != "STORED":
            return False
        number, outcome, *words = map(protocol.decode_text, fields)
        _, answer = self._waiting.get(number, (None, None))
        if answer is not None and not answer.done():
            if outcome == "ok":
                answer.set_result(words)
            else:
                answer.set_exception(CheckpointError(words[0]))
        return True

    def on_agent_lost(self, agent: HostAgent) -> None:
        """Its connection has ended."""
        self.agents.on_agent_lost(agent)
        for waited_for, answer in self._waiting.values():
            if waited_for is agent and not answer.done():
                answer.set_exception(CheckpointError(LOST))
