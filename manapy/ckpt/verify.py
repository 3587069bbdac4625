"""Check all images of a checkpoint, byte by byte."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import image
from .errors import ImageError
from .publish import Manifest

THREADS_MAX = 8


def headers(checkpoint: Path, manifest: Manifest) -> tuple[dict[int, image.Header], list[str]]:
    """Headers by rank, compared with the manifest; and one line for each bad one."""
    found: dict[int, image.Header] = {}
    problems: list[str] = []
    for entry in manifest.ranks:
        path = checkpoint / entry.image
        try:
            found[entry.rank] = image.read_header(path)
        except ImageError as error:
            problems.append(str(error))
            continue
        if found[entry.rank].crc != entry.crc:
            problems.append(f"{path}: not the image that the manifest names (checksum {found[entry.rank].crc:08x} instead of {entry.crc:08x})")
    return found, problems


def images(checkpoint: Path, manifest: Manifest, advance: Callable[[int], None] = lambda done: None) -> list[str]:
    """Every byte of every image; one line for each bad one, in rank order. ``advance`` is called with bytes done.

    The library runs without the interpreter lock, so images are checked side by side.
    """

    def one(entry_rank: int) -> str | None:
        try:
            image.verify(checkpoint / manifest.ranks[entry_rank].image, entry_rank, len(manifest.ranks), advance)
        except ImageError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(min(THREADS_MAX, os.cpu_count() or 1)) as pool:
        return [problem for problem in pool.map(one, range(len(manifest.ranks))) if problem]
