"""A restart from local storage: before ranks read their images, each asks where its image is (FETCH), and waits.

When all have asked, it is known which host each rank is on now. The hosts say which images they have. The checkpoint
to continue is the newest one with an image for each rank, on any of these hosts or at the shared level. An image that
no host has is rebuilt, if there are spare blocks. An image that only another host has is copied to the rank's host.

Invariants
 1. All ranks get the same checkpoint. If the user has named one checkpoint, no other is taken.
 2. An incremental image and those that it needs are all on the rank's host, or all at the shared level.
 3. An image is taken only if it is the one that the manifest names. The rank itself checks every byte of it.
 4. A checkpoint that is older than the newest one is taken only with a line that says so, and only if it is of the same
    run: the program that used this directory before may have been another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ....core.errors import CheckpointError, ManapyError, ManifestError
from ... import protocol
from ...store import levels, local, publish
from . import protect
from ..channel import Channel
from ..flow import name_ranks
from .reprotect import Reprotect
from .storage import Storage

log = logging.getLogger(__name__)


class Found(NamedTuple):
    """The images of all ranks. ``remark``: a line for the user."""

    checkpoint: Path
    images: list[Path]
    remark: str


class _Link(NamedTuple):
    """A checkpoint that is continued, or that its images need. ``ranks``: those that need it. ``near``: the ranks whose
    images each host has."""

    path: Path
    manifest: publish.Manifest
    ranks: set[int]
    near: dict[str, set[int]]


class Fetch:
    """The images of a job of ``size`` ranks that continues a ``checkpoint``. ``exact``: no older one."""

    def __init__(self, size: int, checkpoint: Path, exact: bool, storage: Storage) -> None:
        self._size, self._checkpoint, self._exact, self._storage = size, checkpoint, exact, storage
        self._hosts: dict[int, str] = {}
        self._trouble: dict[str, str] = {}  # hosts whose local storage can't be used, and why
        self._found: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    async def serve(self, channel: Channel, rank: int, host: str) -> None:
        """A rank on this host asks for its image."""
        self._hosts[rank] = host
        if len(self._hosts) == self._size and self._task is None:
            self._task = asyncio.ensure_future(self._find())
        try:
            found = await asyncio.shield(self._found)
        except ManapyError as error:
            channel.send(protocol.join("RESULT", "failed", str(error)))
        else:
            remark = [found.remark] if rank == 0 else []
            channel.send(protocol.join("FOUND", str(found.checkpoint), str(found.images[rank]), *remark))

    async def protect_again(self) -> str:
        """All ranks run: make lost copies and spare blocks of their checkpoint again (reprotect.py). Returns why that
        is not possible, or an empty text."""
        if not self._found.done() or self._found.exception() is not None:
            return ""
        checkpoint = self._found.result().checkpoint
        try:
            for path, manifest, _, _ in await asyncio.to_thread(_line, checkpoint):
                held = manifest.levels
                if held.local and not held.shared and (held.partner or held.code):
                    near, spare = await self._on_hosts(path), await self._spare(path)
                    await Reprotect(path, manifest, self._hosts, near, spare, self._storage).run()
        except ManapyError as error:
            log.error("%s: not protected again: %s", checkpoint, error)
            if publish.may_exist(checkpoint):  # it was not deleted meanwhile
                return f"{checkpoint} may not survive the loss of another host: {error}"
        return ""

    async def _find(self) -> None:
        try:
            self._found.set_result(await self._newest())
        except ManapyError as error:
            self._found.set_exception(error)
        except Exception as error:
            log.exception("a restart from local storage")
            self._found.set_exception(ManapyError(f"internal error: {error}"))

    async def _newest(self) -> Found:
        """Raises CheckpointError if no checkpoint can be completed."""
        lost = ""
        for checkpoint in await asyncio.to_thread(self._candidates):
            try:
                found = await self._images(checkpoint)
            except (CheckpointError, ManifestError) as error:
                if isinstance(error, ManifestError) and publish.is_unreadable(error):
                    raise  # it may be good: an older one would lose work
                log.error("%s", error)
                lost = lost or str(error)
            else:
                log.info("%s", found.remark)
                return found._replace(remark=f"{lost}; {found.remark}" if lost else found.remark)
        raise CheckpointError(lost if self._exact else f"{lost}, and no older checkpoint can be completed")

    def _candidates(self) -> list[Path]:
        if self._exact:
            return [self._checkpoint]
        found = [path.resolve() for path in publish.usable(self._checkpoint.parent)]
        older = found[: found.index(self._checkpoint)] if self._checkpoint in found else []
        run = _run(self._checkpoint)
        return [self._checkpoint, *(path for path in reversed(older) if not run or _run(path) == run)]

    async def _images(self, checkpoint: Path) -> Found:
        """The images of one checkpoint. Raises CheckpointError, ManifestError."""
        line = await asyncio.to_thread(_line, checkpoint)
        manifest = line[-1].manifest
        if len(manifest.ranks) != self._size:
            raise CheckpointError(f"{checkpoint} has {len(manifest.ranks)} ranks instead of {self._size}")
        for each in line:
            if each.manifest.levels.local:
                each.near.update(await self._on_hosts(each.path))
        absent = {rank for each in line for rank in each.ranks.difference(*each.near.values())}
        far = await asyncio.to_thread(_shared, line, absent)
        rebuilt, moved = set(), set()
        for number, each in enumerate(line):
            if (lost := absent - far) and each.manifest.levels.code:
                rebuilt |= await self._rebuild(each, each.ranks & lost, line[:number])
        for each in line:
            moved |= await self._move(each, each.ranks - far)
        missing = [rank for rank in range(self._size) if rank not in far and not self._is_near(rank, line)]
        if missing:
            why = "; ".join([_lost(manifest, missing), *self._trouble.values()])
            raise CheckpointError(f"{checkpoint} cannot be completed: {why}")
        images = [
            checkpoint / entry.image
            if entry.rank in far
            else levels.local_path(manifest.levels, checkpoint, entry.image)
            for entry in manifest.ranks
        ]
        counts = (
            (self._size - len(far) - len(moved | rebuilt), "from local storage"),
            (len(moved - rebuilt), "from other hosts"),
            (len(far), "from the job directory"),
            (len(rebuilt), "rebuilt from spare blocks of other hosts"),
        )
        where = " and ".join(f"{count} image{'s' * (count > 1)} {place}" for count, place in counts if count)
        return Found(checkpoint, images, f"continuing {checkpoint}: {where}")

    def _is_near(self, rank: int, line: list[_Link]) -> bool:
        """Are all images that a rank needs on its host?"""
        return all(rank in each.near.get(self._hosts[rank], ()) for each in line if rank in each.ranks)

    async def _rebuild(self, link: _Link, ranks: set[int], older: list[_Link]) -> set[int]:
        """Make images of these ranks again that no host has, and note them. Returns their ranks. Raises
        CheckpointError."""
        nowhere = ranks.difference(*link.near.values())
        if not nowhere:
            return set()
        entries = link.manifest.ranks
        made, at = protect.groups(link.manifest.levels.code), protect.whole(entries, link.near)
        lost = list(dict.fromkeys(levels.folder(entries[rank]) for rank in sorted(nowhere)))
        onto = {folder: self._hosts[levels.in_folder(entries, folder)[0].rank] for folder in lost}
        for each in older:  # an image is checked together with those that it needs
            await self._move(each, each.ranks & nowhere, {rank: onto[levels.folder(entries[rank])] for rank in nowhere})
        spare = protect.spare_hosts(made, entries, await self._spare(link.path))
        done = await self._storage.protect.rebuild(link.path, link.manifest, lost, at, spare, onto)
        for folder in done:
            link.near[onto[folder]].update(entry.rank for entry in levels.in_folder(entries, folder))
        return {rank for rank in nowhere if levels.folder(entries[rank]) in done}

    async def _spare(self, checkpoint: Path) -> dict[str, dict[str, int]]:
        """The spare blocks of each host, and their sizes."""
        hosts = list(dict.fromkeys(self._hosts.values()))
        answers = await asyncio.gather(*(self._storage.order(host, "spare", str(checkpoint)) for host in hosts))
        return {
            host: dict(zip(words[::2], map(int, words[1::2]), strict=True))
            for host, words in zip(hosts, answers, strict=True)
        }

    async def _move(self, link: _Link, ranks: set[int], onto: Mapping[int, str] | None = None) -> set[int]:
        """Copy images of these ranks to their hosts, or to these ones, and note that. Returns their ranks. Raises
        CheckpointError."""
        moves, done = [], set()
        for rank in sorted(ranks):
            target = (onto or self._hosts)[rank]
            source = next((host for host, some in link.near.items() if rank in some), None)
            if source is not None and rank not in link.near[target]:
                moves.append((source, target, link.manifest.ranks[rank].image))
                link.near[target].add(rank)
                done.add(rank)
        await self._storage.move(moves, link.manifest.levels.local, link.path.name)
        return done

    async def _on_hosts(self, checkpoint: Path) -> dict[str, set[int]]:
        """The ranks whose images each host has."""
        hosts = list(dict.fromkeys(self._hosts.values()))
        return dict(zip(hosts, await asyncio.gather(*(self._ask(host, checkpoint) for host in hosts)), strict=True))

    async def _ask(self, host: str, checkpoint: Path) -> set[int]:
        """The ranks whose images a host has; none if its storage can't be used. Another level may have them."""
        try:
            return set(map(int, await self._storage.order(host, "find", str(checkpoint))))
        except CheckpointError as error:
            log.error("%s", error)
            self._trouble[host] = str(error)
            return set()


def _run(checkpoint: Path) -> str:
    """The run that a checkpoint is of (invariant 4); empty if it is unknown."""
    try:
        return publish.read_manifest(checkpoint).run
    except ManifestError:
        return ""


def _line(checkpoint: Path) -> list[_Link]:
    """A checkpoint, and before it those that its images need, the oldest first. Raises ManifestError."""
    line: list[_Link] = []
    for path in publish.chain(checkpoint):
        manifest = publish.read_manifest(path)
        ranks = {entry.rank for entry in line[-1].manifest.ranks if entry.kept} & line[-1].ranks if line else None
        line.append(_Link(path, manifest, set(range(len(manifest.ranks))) if ranks is None else ranks, {}))
    return line[::-1]


def _shared(line: list[_Link], ranks: set[int]) -> set[int]:
    """Return those of the ranks for which the shared level has all images that they need."""

    def is_there(rank: int, link: _Link) -> bool:
        return local.is_image(link.path / link.manifest.ranks[rank].image, link.manifest.ranks[rank])

    return {rank for rank in ranks if all(is_there(rank, each) for each in line if rank in each.ranks)}


def _lost(manifest: publish.Manifest, ranks: list[int]) -> str:
    """Return a line for people that says whose images are lost."""
    hosts = list(dict.fromkeys(manifest.ranks[rank].host for rank in ranks))
    what = f"only host {', '.join(hosts)} had the image{'s' * (len(ranks) > 1)} of {name_ranks(ranks)}"
    if (code := manifest.levels.code) is None:
        return what
    return f"{what}; --redundancy {code.text} survives the loss of {code.spare} host{'s' * (code.spare > 1)} of a group"
