"""Incremental images: which published checkpoint the images of the next one may leave out pages for.

Invariants
 1. Only the last published checkpoint of this run can be the base, and only if the new one lies beside it, with the
    same folder for each rank. So the path from an image to its parent is the same for all images of a folder.
 2. A chain has at most ``full_every`` checkpoints. Then all ranks write full images.
 3. The images of a chain together are at most twice as large as the full ones at its beginning, as far as can be
    foreseen: the next one is assumed to be as large as the last one. If a chain has not saved half of a full image,
    the next ``full_every`` checkpoints are full, and nobody looks for changed pages.
 4. A rank is told the base's epoch. If it does not know that image (after exec, or without memory for its table), it
    writes a full one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..store import publish


class Base(NamedTuple):
    """A published checkpoint. Of its chain, itself included: ``length``; ``full``, the bytes of the full images at its
    beginning; ``grown``, those of all others; ``written``, those of the next checkpoint, as foreseen."""

    path: Path
    epoch: int
    folders: tuple[str, ...]
    length: int
    full: int
    grown: int = 0
    written: int = 0


class Increments:
    """The chain of one run of a job. ``way``: how ranks are to find changed pages (WRITE in control.h); empty: they
    write full images. ``used``: the ways in which they found them for the last published checkpoint."""

    def __init__(self, way: str = "", full_every: int = 1) -> None:
        self.way = way
        self._full_every = full_every
        self._last: Base | None = None
        self._full_ones = 0  # so many checkpoints are full before another chain is tried
        self.base: Base | None = None  # of the checkpoint in progress
        self.used: list[str] = []

    def begin(self, where: Path, folders: Sequence[str]) -> None:
        """A checkpoint is taken; its images go to these folders of a directory in ``where``."""
        last = self._last
        possible = (
            last is not None
            and self._full_ones == 0
            and last.length < self._full_every
            and last.grown + last.written <= last.full
            and last.path.parent == where
            and last.folders == tuple(folders)
            and publish.is_checkpoint(last.path)
        )
        self.base = last if possible else None

    def fields(self, folder: str) -> list[str | int]:
        """The last fields of WRITE and CAPTURE for the ranks of a folder."""
        if not self.way or self._full_ones > 1:
            return []
        if self.base is None:
            return [self.way, 0, ""]
        name = self.base.path.name
        return [self.way, self.base.epoch, f"../../{name}/{folder}" if folder else f"../{name}"]

    def record(self, ranks: Sequence[publish.Entry]) -> dict[str, str]:
        """What the manifest says of the parent."""
        if self.base is None or not any(entry.kept for entry in ranks):
            return {}
        return {"parent": self.base.path.name}

    def published(self, path: Path, epoch: int, folders: Sequence[str], ranks: Sequence[publish.Entry]) -> None:
        """The checkpoint is published: it can be the next base."""
        written, base = sum(entry.file_bytes for entry in ranks), self.base if self.record(ranks) else None
        self.used = sorted({entry.way for entry in ranks if entry.way})
        self._full_ones = max(0, self._full_ones - 1)
        if base is None:
            self._last = Base(path, epoch, tuple(folders), 1, written)
            return
        if 2 * written > base.full:
            self._full_ones = self._full_every
        self._last = Base(path, epoch, tuple(folders), base.length + 1, base.full, base.grown + written, written)
