"""What a host does with its local storage, when the coordinator says so (levels.py).

    DIR/manapy-<hash>/tmp-000007-x3k9/node-00001/    the images of this host's ranks, while they are written
    DIR/manapy-<hash>/ckpt-000007/node-00001/        the same after settle()
    DIR/manapy-<hash>/host-NAME                      marker: this host belongs to the current run of the job
    DIR/manapy-<hash>/ckpt-000007/spare/             spare blocks of other hosts' images (ckpt/redundancy)

Invariants
 1. Images under the name ckpt-NNNNNN are complete and fsynced. But only the manifest in the job directory publishes a
    checkpoint: if that fails, make() deletes these images.
 2. A host writes only into the folder of its own ranks: DIR may be a directory that several hosts see. Folders of
    others come there only as copies (ckpt/transfer.py).
 3. A copy has its final name only if it is complete and fsynced (flush).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from ...core.errors import CheckpointError, ImageError, ManapyError, explained
from ...core.files import discard, replacing, sync
from . import image, levels, own, publish

PART = ".part"  # of the name of a copy that is not complete
SIGN = "host-"  # and the name of a host: see signs()
WHAT = "the local directory for checkpoints"


def perform(verb: str, words: Sequence[str]) -> list[str]:
    """Carry out an order of the coordinator. Returns what it has found. Raises ManapyError."""
    with explained(CheckpointError):
        match verb, words:
            case "make", [root, job, name, folder, *keep]:
                make(Path(root), Path(job), name, folder, keep)
            case "settle", [root, name, final, folder]:
                settle(Path(root), name, final, folder)
            case "clean", [root, *keep]:
                clean(Path(root), keep)
            case "flush", [checkpoint, folder]:
                flush(Path(checkpoint), folder)
            case "sign", [root, job, host, text]:
                open_root(Path(root), Path(job))
                (Path(root) / f"{SIGN}{host}").write_text(text)
            case "signs", [root, text]:
                return signs(Path(root), text)
            case "find", [checkpoint]:
                return [str(rank) for rank in find(Path(checkpoint))]
            case "spare", [checkpoint]:
                return [word for name, size in spare(Path(checkpoint)).items() for word in (name, str(size))]
            case _:
                raise ManapyError(f"manapy of this host does not know the order {verb}")
    return []


def make(root: Path, job: Path, name: str, folder: str, keep: Collection[str]) -> None:
    """Make the folder for the images of a new checkpoint, and delete all others except ``keep``. Raises OSError,
    CheckpointError."""
    open_root(root, job)
    clean(root, {name, *keep})
    (root / name).mkdir(mode=0o700, exist_ok=True)
    (root / name / folder).mkdir(mode=0o700)


def open_root(root: Path, job: Path) -> None:
    """Make the directory of a job, if it does not exist. Raises OSError; CheckpointError if it must not be trusted."""
    publish.open_place(root, job, WHAT)


def settle(root: Path, name: str, final: str, folder: str) -> None:
    """Give the images their final name. Raises OSError."""
    sync(root / name / folder)
    (root / final).mkdir(mode=0o700, exist_ok=True)
    discard(root / final / folder)  # of an attempt that was not published
    os.rename(root / name / folder, root / final / folder)
    sync(root / final)
    sync(root)
    with contextlib.suppress(OSError):  # another host may still need it (invariant 2)
        (root / name).rmdir()


def clean(root: Path, keep: Collection[str]) -> None:
    """Delete all checkpoints of the job on this host, complete or not, except ``keep``. Raises OSError."""
    if not root.is_dir() or own.complaint(root):
        return
    for entry in os.listdir(root):
        if entry.startswith(("ckpt-", "tmp-")) and entry not in keep:
            discard(root / entry)


def flush(checkpoint: Path, folder: str) -> None:
    """Copy the images of this host's ranks to the shared level. If it fails, no copy is left. Raises OSError,
    ManapyError."""
    held, target = publish.read_manifest(checkpoint).levels, checkpoint / folder
    source = levels.local_path(held, checkpoint, folder)
    target.mkdir(mode=0o700, exist_ok=True)
    try:
        for name in sorted(os.listdir(source)):
            _copy(source / name, target / name)
        sync(target)
        sync(checkpoint)
    except OSError:
        discard(target)
        raise


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as reading, replacing(target, PART, private=True) as writing:
        shutil.copyfileobj(reading, writing, 1 << 20)


def find(checkpoint: Path) -> list[int]:
    """The ranks of a checkpoint whose images this host's local level has. Raises ManifestError; CheckpointError if
    that storage must not be trusted."""
    manifest = publish.read_manifest(checkpoint)
    held, found = manifest.levels, []
    for entry in manifest.ranks:
        file = levels.local_path(held, checkpoint, entry.image)
        if not held.local or not file.exists():
            continue
        if strange := levels.complaint(held, checkpoint, entry.image):
            raise CheckpointError(strange)
        if is_image(file, entry):
            found.append(entry.rank)
    return found


def signs(root: Path, text: str) -> list[str]:
    """The hosts that have put a marker with this text into this directory, in the run of a job: if there are several,
    they share it. Raises OSError."""
    return sorted(file.name.removeprefix(SIGN) for file in root.glob(f"{SIGN}*") if file.read_text() == text)


def spare(checkpoint: Path) -> dict[str, int]:
    """The spare blocks of a checkpoint that this host's local level has, and their sizes. Raises ManifestError,
    OSError; CheckpointError if that storage must not be trusted."""
    held = publish.read_manifest(checkpoint).levels
    folder = levels.local_path(held, checkpoint, levels.SPARE)
    if not held.local or not folder.is_dir():
        return {}
    if strange := levels.complaint(held, checkpoint, f"{levels.SPARE}/"):
        raise CheckpointError(strange)
    return {
        f"{levels.SPARE}/{entry.name}": entry.stat().st_size
        for entry in os.scandir(folder)
        if not entry.name.endswith(PART)
    }


def is_image(file: Path, entry: publish.Entry) -> bool:
    """Is this file the image that a manifest names, by its header, and as long as that says?"""
    try:
        return image.read_header(file).identity == (entry.seal, entry.crc)
    except ImageError:
        return False
