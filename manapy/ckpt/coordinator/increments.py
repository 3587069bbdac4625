"""Incremental images: the published checkpoint on which the images of the next one may build (the base).

Invariants
 1. Only the last published checkpoint of this run can be the base, and only if the new one is in the same directory,
    with the same folder for each rank. So the path from an image to its parent is the same for all images of a folder.
 2. A chain has at most ``full_every`` checkpoints, and its images together are at most twice as large as the full ones
    at its beginning, on the assumption that the next images are as large as the last ones. At the limit all ranks write
    full images, unless the newest checkpoint has been folded before (levels/fold.py). In that case the chain begins
    with the folded checkpoint.
 3. If incremental images have saved less than half of a full one, the next ``full_every`` checkpoints are full, and
    ranks do not look for changed pages until the last of these.
 4. A rank is told the base's epoch. If it does not know that image (after exec, or without memory for its table), it
    writes a full one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..store import publish

FOLD_BYTES = 64 << 20  # smaller full images are written sooner than a process for folding has started


class ParentCheckpoint(NamedTuple):
    """A published checkpoint."""

    path: Path
    epoch: int
    folders: tuple[str, ...]


class Link(NamedTuple):
    """A checkpoint of a chain. ``bytes``: of its images."""

    path: Path
    bytes: int


class Increments:
    """The chain of one run of a job. ``way``: how ranks are to find changed pages (WRITE in control.h); empty: they
    write full images. ``used``: the ways in which they found them for the last published checkpoint."""

    def __init__(self, way: str = "", full_every: int = 1) -> None:
        self.way = way
        self._full_every = full_every
        self._last: ParentCheckpoint | None = None
        self._chain: list[Link] = []  # of the last checkpoint, which is the last item
        self._full_ones = 0  # so many checkpoints are full before another chain is tried
        self.base: ParentCheckpoint | None = None  # of the checkpoint in progress
        self.used: list[str] = []

    def begin(self, where: Path, folders: Sequence[str]) -> None:
        """A checkpoint is taken; its images go to these folders of a directory in ``where``."""
        last = self._last
        possible = (
            last is not None
            and len(self._chain) < self._full_every
            and self._has_room(1)
            and last.path.parent == where
            and last.folders == tuple(folders)
            and publish.is_checkpoint(last.path)
        )
        self.base = last if possible else None

    def _has_room(self, more: int) -> bool:
        """Can that many incremental checkpoints follow, with regard to their sizes (invariants 2 and 3)?"""
        full, *others = self._chain
        foreseen = more * others[-1].bytes if others else 0
        return self._full_ones == 0 and sum(link.bytes for link in others) + foreseen <= full.bytes

    def fields(self, folder: str) -> list[str | int]:
        """The last fields of WRITE and CAPTURE for the ranks of a folder."""
        if not self.way or self._full_ones > 1:
            return []
        if self.base is None:
            return [self.way, 0, ""]
        name = self.base.path.name
        return [self.way, self.base.epoch, f"../../{name}/{folder}" if folder else f"../{name}"]

    def record(self, ranks: Sequence[publish.Entry]) -> dict[str, str]:
        """Return the entry of the manifest that names the parent."""
        if self.base is None or not any(entry.kept for entry in ranks):
            return {}
        return {"parent": self.base.path.name}

    def published(
        self, path: Path, epoch: int, folders: Sequence[str], ranks: Sequence[publish.Entry], incremental: bool
    ) -> None:
        """The checkpoint is published: it can be the next base. ``incremental``: its manifest names a parent."""
        new = Link(path, sum(entry.file_bytes for entry in ranks))
        self._chain = [*self._chain, new] if incremental else [new]
        self._full_ones = max(0, self._full_ones - 1)
        if incremental and 2 * new.bytes > self._chain[0].bytes:
            self._full_ones = self._full_every
        self.used = sorted({entry.way for entry in ranks if entry.way})
        self._last = ParentCheckpoint(path, epoch, tuple(folders))

    def due(self) -> Path | None:
        """The checkpoint to fold now, so that the one after the next need not be full; None if it is not time yet, or
        if the next one is full anyway."""
        if len(self._chain) < 2 or self._full_ones:
            return None
        is_long = len(self._chain) + 2 > self._full_every
        is_large = not self._has_room(2) and self._chain[0].bytes >= FOLD_BYTES
        return self._chain[-1].path if is_long or is_large else None

    def folded(self, path: Path) -> None:
        """A checkpoint needs no parent any more. Its images are about as large as the full ones before."""
        for number, link in enumerate(self._chain):
            if link.path == path:
                self._chain = [Link(path, self._chain[0].bytes), *self._chain[number + 1 :]]
                return
