"""Folding of chains of incremental checkpoints, as the coordinator drives it: when a chain has nearly reached its
limit, the images of its newest checkpoint are replaced by full ones, while the ranks run. So the next checkpoint, too,
only has to write what has changed.

Each host folds the images that it has written, and its copies of the images of other hosts.

Invariants
 1. One checkpoint is folded at a time, and while none is copied to another level.
 2. If folding fails, the checkpoint is as it was: it needs its parents (store/fold.py). Folding is tried again after
    the next checkpoint. If the chain reaches its limit before that, the next images are full.
 3. Checkpoints with spare blocks are not folded: the blocks belong to the bytes of the images.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

from ....core.errors import CheckpointError, ManapyError, explained
from ....core.files import discard
from ...store import levels, publish
from ..increments import Increments
from .storage import Storage

log = logging.getLogger(__name__)

UNFOLD_SECONDS = 5.0  # until all hosts have ended their processes; one whose agent is lost does not answer


class Fold:
    """The chain of one job. ``on_folded`` is called when older checkpoints may be needed no more; ``say`` tells the
    user."""

    def __init__(
        self,
        secret: bytes,
        increments: Increments,
        storage: Storage,
        on_folded: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._secret, self._increments, self._storage = secret, increments, storage
        self._on_folded, self._say = on_folded, say
        self._task: asyncio.Task[None] | None = None
        self._said = ""  # the last trouble

    def begin(self) -> None:
        """A checkpoint was published, and the job continues: fold it if it is time."""
        path = self._increments.due()
        if path is not None and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._run(path))

    def end(self) -> None:
        """The ranks are about to end: nothing may wait for a fold."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self, checkpoint: Path) -> None:
        try:
            async with self._storage.rewriting:
                await self._fold(checkpoint)
        except ManapyError as error:
            log.error("%s was not folded: %s", checkpoint, error)
            trouble = f"{checkpoint} was not folded, and is as it was: {error}"
            if publish.may_exist(checkpoint) and trouble != self._said:  # it was not deleted meanwhile
                self._said = trouble
                self._say(trouble)
        except Exception:
            log.exception("folding %s", checkpoint)

    async def _fold(self, checkpoint: Path) -> None:
        manifest = await asyncio.to_thread(publish.read_manifest, checkpoint)
        if not manifest.parent or manifest.levels.code:
            return
        name = f"tmp-fold-{checkpoint.name.removeprefix('ckpt-')}-{os.urandom(3).hex()}"
        begun = asyncio.get_running_loop().time()
        with self._storage.spared(name):
            try:
                if manifest.levels.shared:
                    with explained(CheckpointError, checkpoint):
                        checkpoint.with_name(name).mkdir(mode=0o700)
                sizes = await self._on_hosts(checkpoint, manifest, name)
                with explained(CheckpointError, checkpoint):
                    await asyncio.to_thread(publish.note_folded, checkpoint, sizes, self._secret)
            finally:
                discard(checkpoint.with_name(name))
        log.info("folded %s in %.1f s", checkpoint, asyncio.get_running_loop().time() - begun)
        self._increments.folded(checkpoint)
        self._on_folded()

    async def _on_hosts(self, checkpoint: Path, manifest: publish.Manifest, name: str) -> dict[str, int]:
        """Fold all images at all levels. Returns their sizes."""
        home = {levels.folder(entry) or ".": entry.host for entry in manifest.ranks}
        held, orders = manifest.levels, []
        for host in set(home.values()):
            own = [folder for folder, its_host in home.items() if its_host == host]
            if held.local:
                near = levels.local_path(held, checkpoint, "")
                copies = [folder for folder, its_host in home.items() if self._storage.partner(its_host) == host]
                orders.append((host, near.with_name(name), near, [*own, *copies]))
            if held.shared:
                orders.append((host, checkpoint.with_name(name) / host, checkpoint, own))
        try:
            answers = await asyncio.gather(
                *(self._storage.order(host, "fold", *map(str, places), *some) for host, *places, some in orders)
            )
        except BaseException:
            hosts = {host for host, *_ in orders}
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(UNFOLD_SECONDS):
                    await asyncio.gather(*(self._storage.order(h, "unfold") for h in hosts), return_exceptions=True)
            raise
        return {path: int(size) for words in answers for path, size in zip(words[::2], words[1::2], strict=True)}
