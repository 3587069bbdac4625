"""The levels of storage: where the images of a checkpoint are.

    JOB/ckpt-000007/node-00001/rank-00002.img                       the shared level: every host sees it
    DIR/manapy-<hash>/ckpt-000007/node-00001/rank-00002.img         the local level: only the host of this rank sees it

The manifest is always in JOB/ckpt-000007. It says which levels hold images:

    "levels": {"local": "DIR/manapy-<hash>", "shared": true, "partner": false, "code": {...}, "apart": true}

Without this record, all images are at the shared level. "code" and "apart" may be missing. Beside "levels", "flush"
says whether the images are to be copied to the shared level, and "flush_seconds" how long that took.

<hash> is that of the job directory's path, so jobs can share DIR.

Invariants
 1. A level that the record names has all images of the checkpoint, as long as no host is lost. "partner": the local
    level has each of them on two hosts, so it has all as long as not more than one host is lost. "code": images of a
    group of hosts can be rebuilt as long as not more than "spare" of these hosts are lost (ckpt/redundancy).
    "apart": also if all hosts of one failure group are lost, and no others.
 2. An image has the same name in its checkpoint at every level. So its references to neighbouring files are correct at
    each level.
 3. The file `local` beside the manifest tells ranks, which do not read manifests, to ask the coordinator for their
    images (lowerhalf/start/locate.c). It exists at least as long as the record names the local level.
 4. A directory on local storage is trusted only if nobody except this user or root can have written there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from ...core.records import TYPE_CHECKING, NamedTuple
from . import own

if TYPE_CHECKING:
    from typing import Any

    from .publish import Entry

MARK = "local"
SPARE = "spare"  # in a checkpoint on local storage: the folder of spare blocks


class Code(NamedTuple):
    """The spare blocks of a checkpoint. ``text``: as the user has asked for it; ``spare``: how many hosts a group may
    lose; ``groups``: the folders of the hosts of each group."""

    text: str
    spare: int
    groups: list[list[str]]


class Levels(NamedTuple):
    """Which levels hold the images. ``local``: the directory on each host that has its images, or empty. ``partner``:
    another host has a copy of each there. ``code``: the spare blocks instead. ``apart``: images also survive the loss
    of hosts that fail together."""

    local: str = ""
    shared: bool = True
    partner: bool = False
    code: Code | None = None
    apart: bool = False

    def record(self) -> dict[str, Any]:
        """Return the entry for the manifest."""
        record = self._asdict()
        record["code"] = self.code._asdict() if self.code else None
        return {key: value for key, value in record.items() if value or key in ("local", "shared", "partner")}


def read(manifest: Mapping[str, Any]) -> Levels:
    """The levels that a manifest names. Raises TypeError if the record is damaged."""
    if "levels" not in manifest:
        return Levels()
    held = Levels(**manifest["levels"])
    return held._replace(code=Code(**held.code)) if isinstance(held.code, dict) else held


def awaits_copy(manifest: Mapping[str, Any]) -> bool:
    """Is it on local storage only, although it is to be copied to the shared level (--flush)? Raises TypeError if the
    record is damaged."""
    return not read(manifest).shared and bool(manifest.get("flush"))


def root(storage: Path, job: Path) -> Path:
    """The directory of a job in a directory that jobs share: on local storage, or chosen by the program."""
    from ...core.fnv import fnv1a  # here: only the coordinator needs it

    return storage / f"manapy-{fnv1a(os.fsencode(job)):016x}"


def local_path(levels: Levels, checkpoint: Path, image: str) -> Path:
    """Where the local level has an image, on its host. ``checkpoint``: the directory of the manifest."""
    return Path(levels.local) / checkpoint.name / image


def folder(entry: Entry) -> str:
    """The folder of an image in its checkpoint."""
    return entry.image.rpartition("/")[0]


def in_folder(entries: Iterable[Entry], name: str) -> list[Entry]:
    """Return the ranks of a manifest whose images are in a folder, by the names of the images."""
    return sorted((e for e in entries if e.image.startswith(f"{name}/")), key=lambda entry: entry.image)


def path(levels: Levels, checkpoint: Path, image: str) -> Path:
    """Where this host sees an image: at the nearest level that has a file of this name."""
    if levels.local and (near := local_path(levels, checkpoint, image)).exists():
        return near
    return checkpoint / image


def complaint(levels: Levels, checkpoint: Path, image: str) -> str | None:
    """Why the local level of this host must not be trusted with an image (invariant 4), or None. None, too, if the
    checkpoint has no local level."""
    if not levels.local:
        return None
    file = local_path(levels, checkpoint, image)
    folders = (Path(levels.local), Path(levels.local) / checkpoint.name, file.parent)
    return next((why for folder in folders if (why := own.complaint(folder))), None)


def mark(checkpoint: Path, levels: Levels) -> None:
    """Write the file of invariant 3, before the manifest, or remove it after the manifest. Raises OSError."""
    if levels.local:
        (checkpoint / MARK).write_bytes(os.fsencode(f"{levels.local}\n"))
    else:
        (checkpoint / MARK).unlink(missing_ok=True)


def describe(levels: Levels, hosts: int) -> tuple[str, str]:
    """For users: which levels hold the images of that many hosts, and what they survive."""
    where = [f"local ({hosts} host{'s' * (hosts > 1)})"] if levels.local else []
    where += ["partner"] * levels.partner + ([levels.code.text] if levels.code else []) + ["shared"] * levels.shared
    lost = levels.code.spare if levels.code else int(levels.partner)
    few = ("no node", "any one node", f"any {lost} nodes")[min(lost, 2)]
    few += ", any failure group" * levels.apart
    return ", ".join(where), "any nodes" if levels.shared else few
