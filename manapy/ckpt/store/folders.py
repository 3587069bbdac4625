"""Where the images are in a checkpoint (mirror of lowerhalf/include/manapy/image_path.h).

    ckpt-000007/rank-00000.img ...                a job on one host
    ckpt-000007/node-00000/rank-00000.img ...     several hosts: one folder for the ranks of each
    ckpt-000007/folders                           then: the folder of each rank, one line for each

A checkpoint on local storage (levels.py) always has folders, and its images have the same paths at every level.

The reasons: many thousand files in one directory make file systems slow, and the images of a host are copied together.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...core.files import replace_file, sync

LIST = "folders"
WIDTH = 11  # bytes of a line


def choose(hosts: Sequence[str]) -> list[str]:
    """The folder of each rank, by the ranks' hosts; empty for a job on one host."""
    return by_host(hosts) if len(set(hosts)) > 1 else [""] * len(hosts)


def by_host(hosts: Sequence[str]) -> list[str]:
    """The same, but a job on one host has a folder, too."""
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    return [f"node-{numbers[host]:05d}" for host in hosts]


def make(checkpoint: Path, folders: Sequence[str]) -> None:
    """Make the folders in a new checkpoint. Raises OSError."""
    for name in sorted(set(folders) - {""}):
        (checkpoint / name).mkdir(mode=0o700)


def settle(checkpoint: Path, images: Sequence[str]) -> None:
    """Make the names of all images durable. images: their paths. Raises OSError."""
    for name in sorted({path.rpartition("/")[0] for path in images} - {""}):
        sync(checkpoint / name)


def write_list(checkpoint: Path, images: Sequence[str]) -> None:
    """Write the list of folders, if there are any. images: their paths, by rank. Raises OSError."""
    folders = [path.rpartition("/")[0] for path in images]
    if any(folders):
        replace_file(checkpoint / LIST, "".join(f"{name}\n" for name in folders).encode(), durable=True)


def image(folder: str, rank: int) -> str:
    """The path of an image in its checkpoint."""
    name = f"rank-{rank:05d}.img"
    return f"{folder}/{name}" if folder else name
