"""Checking all images of a checkpoint with a progress bar: for `manapy verify` and before a restart."""

from __future__ import annotations

from pathlib import Path

from ...ckpt.store import verify
from ...ckpt.store.publish import Manifest
from .output import Output


def check(checkpoint: Path, manifest: Manifest, out: Output, *, signed: bool = True) -> list[str]:
    """Check every image of a checkpoint against the manifest and byte by byte; return one line per bad image, by rank.

    Unless ``signed`` is False, also check that the job has written the checkpoint.
    """
    headers, problems = verify.headers(checkpoint, manifest, signed=signed)
    if problems:
        return problems
    with out.bar("checking images", sum(h.memory_bytes for h in headers.values())) as advance:
        return verify.images(checkpoint, manifest, advance, signed=signed)
