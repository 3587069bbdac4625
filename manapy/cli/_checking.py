"""Checking all images of a checkpoint with a progress bar: for `manapy verify` and before a restart."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..ckpt import image
from ..ckpt.errors import ImageError
from ..ckpt.publish import Manifest
from ._output import Output

THREADS_MAX = 8


def check(checkpoint: Path, manifest: Manifest, out: Output) -> list[str]:
    """Check every image against the manifest and byte by byte; one line for each bad one, in rank order.

    The library runs without the interpreter lock, so images are checked side by side.
    """
    paths = [checkpoint / entry.image for entry in manifest.ranks]
    problems: list[str] = []
    headers: dict[int, image.Header] = {}
    for entry, path in zip(manifest.ranks, paths, strict=True):
        try:
            headers[entry.rank] = image.read_header(path)
        except ImageError as error:
            problems.append(str(error))
            continue
        if headers[entry.rank].crc != entry.crc:
            problems.append(f"{path}: not the image that the manifest names (checksum {headers[entry.rank].crc:08x} instead of {entry.crc:08x})")
    if problems:
        return problems

    def one(rank: int) -> str | None:
        try:
            image.verify(paths[rank], rank, len(paths), advance)
        except ImageError as error:
            return str(error)
        return None

    with out.bar("checking images", sum(h.memory_bytes for h in headers.values())) as advance, ThreadPoolExecutor(min(THREADS_MAX, os.cpu_count() or 1)) as pool:
        return [problem for problem in pool.map(one, range(len(paths))) if problem]
