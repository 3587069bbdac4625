"""Mounted file systems (proc(5), /proc/self/mounts)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Mount(NamedTuple):
    """kind: ext4, nfs, tmpfs ...; options: noexec, ro ..."""

    place: str
    kind: str
    options: tuple[str, ...]


def mount_of(path: Path) -> Mount:
    """The file system of an absolute path; kind "unknown" if none is listed."""
    best = Mount("", "unknown", ())
    for line in Path("/proc/self/mounts").read_text().splitlines():
        place, kind, options = line.split()[1:4]
        place = place.encode().decode("unicode_escape")  # a blank is \040
        inside = str(path) == place or str(path).startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best.place):
            best = Mount(place, kind, tuple(options.split(",")))
    return best
