"""What a host does: it computes spare blocks of other hosts' images, or the images of a lost host, from blocks that it
reads from other hosts (transfer.py).

Orders are JSON objects:

    encode     root, job, name: of the checkpoint on local storage
    rebuild    checkpoint, job: directories; folder: whose images
    both       code: [data, spare]; bytes: of a block; places: [address, port] of hosts;
               blocks: {wanted: number in the stripe, from: the blocks to compute it from; encode: path}
               from: [number in the stripe, number in `places`, folder or file, offset in the folder's stream or null]

Invariants
 1. A block gets its final name only if all of its sources have arrived completely, and it is fsynced.
 2. All sources are read in parallel, piece by piece, so no host needs memory for a whole block.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ...core.errors import CheckpointError, explained
from ...core.files import make_private, replacing, sync
from .. import transfer
from ..store import levels, local, publish
from . import code
from .image_stream import Images

PIECE = 1 << 18  # bytes of each source in memory


def perform(verb: str, text: str, secret: bytes) -> list[str]:
    """Carry out an order. Raises ManapyError."""
    order = json.loads(text)
    with explained(CheckpointError):
        (encode if verb == "encode" else rebuild)(order, secret)
    return []


def encode(order: dict[str, Any], secret: bytes) -> None:
    """Make spare blocks. Raises OSError, CheckpointError."""
    root = Path(order["root"])
    local.open_root(root, Path(order["job"]))
    for block in order["blocks"]:
        path = root / order["name"] / block["path"]
        make_private(path.parent)
        with replacing(path, local.PART, private=True) as stream:
            _compute(order, root, order["name"], block, secret, stream.write)
        sync(path.parent)
    sync(root / order["name"])


def rebuild(order: dict[str, Any], secret: bytes) -> None:
    """Make the images of a folder again. Raises OSError, CheckpointError, ManifestError."""
    checkpoint = Path(order["checkpoint"])
    manifest = publish.read_manifest(checkpoint)
    root = Path(manifest.levels.local)
    local.open_root(root, Path(order["job"]))
    entries = levels.in_folder(manifest.ranks, order["folder"])
    images = Images(root / checkpoint.name, entries, len(manifest.ranks), secret)
    try:
        for block in order["blocks"]:
            _compute(order, root, checkpoint.name, block, secret, images.write)
        images.finish()
    finally:
        images.discard()


def _compute(
    order: dict[str, Any], root: Path, name: str, block: dict[str, Any], secret: bytes,
    write: Callable[[bytes], object],
) -> None:  # fmt: skip
    (data, spare), size = order["code"], order["bytes"]
    with ExitStack() as stack:
        sources = {}
        for number, place, path, offset in block["from"]:
            connection = stack.enter_context(transfer.connect(secret, *order["places"][place]))
            kind, span = ("GET", []) if offset is None else ("SPAN", [str(offset), str(size)])
            sources[number] = transfer.Incoming(connection, kind, str(root), name, path, *span)
        if strange := [source for source in sources.values() if source.left != size]:
            raise CheckpointError(f"{strange[0].name} has {strange[0].left} bytes instead of {size}")
        while any(source.left for source in sources.values()):
            pieces = {number: source.read(PIECE) for number, source in sources.items()}
            write(code.compute(pieces, data, spare, block["wanted"]))
        for source in sources.values():
            source.check()
