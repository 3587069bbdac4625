"""Checks of a checkpoint: has its job written it, does it belong to this user, and is every byte intact?"""

from __future__ import annotations

import contextlib
import hmac
import os
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...core.errors import ImageError, ManifestError
from . import image, levels, own, publish
from .publish import Manifest

THREADS_MAX = 8
ANYWAY = "manapy restart --unsigned uses it anyway"


def origin(checkpoint: Path, manifest: Manifest) -> str | None:
    """Why there is no proof that the job has written this checkpoint; None if there is a proof."""
    secret, why = publish.secret_of(checkpoint)
    if "signature" not in manifest.record:
        return (
            f"{checkpoint}: its manifest is not signed: an older manapy has written it, or somebody has changed it;"
            f" {ANYWAY}"
        )
    if secret is None:
        return (
            f"{checkpoint}: its signature cannot be checked without the job's secret ({why}):"
            f" copy the secret from the job directory into the checkpoint; {ANYWAY}"
        )
    if not hmac.compare_digest(publish.sign(manifest.record, secret), str(manifest.record["signature"])):
        return f"{checkpoint}: its manifest was changed after the job had written it: the signature is wrong"
    return None


def headers(checkpoint: Path, manifest: Manifest, *, signed: bool = True) -> tuple[dict[int, image.Header], list[str]]:
    """The headers by rank, compared with the manifest, and one line for each bad image. The headers of their parents
    are checked, too. Images that are only on local storage of other hosts are left out.

    ``signed``: the job must have written the checkpoint.
    """
    strange = (
        own.complaint(checkpoint)
        or own.complaint(checkpoint / "manifest.json")
        or (origin(checkpoint, manifest) if signed else None)
    )
    if strange:
        return {}, [strange]
    found: dict[int, image.Header] = {}

    held = manifest.levels

    def one(entry: publish.Entry) -> str | None:
        path = levels.path(held, checkpoint, entry.image)
        if not held.shared and not path.exists():
            return None  # on another host
        if strange := levels.complaint(held, checkpoint, entry.image) or own.complaint(path):
            return strange
        try:
            (_, header), *parents = image.read_chain(path)
            found[entry.rank] = header
        except ImageError as error:
            return str(error)
        seal, crc = header.identity
        if crc != entry.crc:
            return f"{path}: not the image that the manifest names (checksum {crc:08x} instead of {entry.crc:08x})"
        if seal != entry.seal:
            return f"{path}: not the image that the manifest names (its seal differs)"
        for parent, _ in parents:
            if strange := own.complaint(parent.parent) or own.complaint(parent):
                return strange
        return None

    with ThreadPoolExecutor(THREADS_MAX) as pool:  # they wait for the file system
        return found, [problem for problem in pool.map(one, manifest.ranks) if problem]


def older(checkpoint: Path, *, signed: bool = True) -> Path | None:
    """The newest checkpoint of the same job before this one whose headers are good."""
    paths = [path.resolve() for path in publish.usable(publish.owner(checkpoint.parent))]
    before = paths[: paths.index(checkpoint)] if checkpoint in paths else []
    for path in reversed(before):
        with contextlib.suppress(ManifestError):
            if not headers(path, publish.read_manifest(path), signed=signed)[1]:
                return path
    return None


def images(
    checkpoint: Path, manifest: Manifest, ranks: Collection[int], advance: Callable[[int], None] = lambda done: None
) -> list[str]:
    """Check every byte of the images of these ranks. Returns one line for each bad image, in rank order.

    ``advance`` is called with the bytes done. The library runs without the interpreter lock, so that images are checked
    in parallel.
    """
    secret = publish.secret_of(checkpoint)[0]

    def one(entry_rank: int) -> str | None:
        try:
            image.verify(
                levels.path(manifest.levels, checkpoint, manifest.ranks[entry_rank].image),
                entry_rank,
                len(manifest.ranks),
                advance,
                secret,
            )
        except ImageError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(min(THREADS_MAX, os.cpu_count() or 1)) as pool:
        return [problem for problem in pool.map(one, sorted(ranks)) if problem]
