"""Folding: the images of an incremental checkpoint become full ones, so that it needs no other checkpoint any more.

Invariants
 1. Each image is replaced by one rename. Its identity and its memory stay the same (image.h). So folding may fail or
    end at any moment, and the checkpoint is still good. But as long as its manifest names a parent, the checkpoint may
    need it.
 2. The manifest names the parent until all images have been replaced durably, at all levels of storage
    (publish.note_folded).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from ...core.errors import CheckpointError
from ...core.files import sync
from ...core.units import size
from . import image, publish


def folders(temporary: Path, checkpoint: Path, names: Iterable[str]) -> None:
    """Fold the images in these folders of a checkpoint, which may be on local storage. New images are written to
    ``temporary``, a directory on the same file system that no other host uses; it is removed at the end. Raises
    CheckpointError, ImageError, OSError."""
    secret, why = publish.secret_of(checkpoint)
    if secret is None:
        raise CheckpointError(f"{checkpoint}: its images cannot be folded without the job's secret ({why})")
    temporary.mkdir(mode=0o700, exist_ok=True)
    for name in names:
        try:
            for path in sorted((checkpoint / name).glob("rank-*.img")):
                _one(path, temporary / path.name, secret)
        finally:
            sync(checkpoint / name)
    with contextlib.suppress(OSError):  # the coordinator removes what is left
        temporary.rmdir()


def _one(path: Path, into: Path, secret: bytes) -> None:
    chain = image.read_chain(path)
    if len(chain) == 1:
        return
    most, disk = sum(header.file_bytes for _, header in chain), os.statvfs(path.parent)
    if (free := disk.f_bavail * disk.f_frsize) < most:
        raise CheckpointError(f"{path}: to fold it may take {size(most)}, but only {size(free)} are free")
    into.unlink(missing_ok=True)
    image.fold(path, into, secret)
    os.replace(into, path)
