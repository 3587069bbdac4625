"""The communicators of stubs of ranks (osu_bench/scale/stubs.c): all ranks, and the rows and columns of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...clock import WORLD, Row, child_identity, ggid
from ...clock.messages import encode_row


def write(path: Path, size: int) -> None:
    """One line for each rank: its rows as in ROWS (control.h), with %u in place of its collectives on all ranks."""
    side = max(1, int(size**0.5))
    world = _text(WORLD, range(size), 0, "MPI_COMM_WORLD", "%u")
    rows = [_child("row", 1, range(first, min(size, first + side))) for first in range(0, size, side)]
    columns = [_child("column", 2, range(first, size, side)) for first in range(side)]
    with path.open("w") as file:
        file.writelines(f"{world} {rows[rank // side]} {columns[rank % side]}\n" for rank in range(size))


def _child(name: str, sequence: int, members: Sequence[int]) -> str:
    return _text(child_identity(WORLD, sequence, members[0]), members, 5, name, "5")


def _text(cid: int, members: Sequence[int], handle: int, name: str, done: str) -> str:
    row = encode_row(Row(cid, ggid(members), 0, tuple(members), handle, name))
    identity, group, _, rest = row.split(":", 3)
    return ":".join((identity, group, done, rest))
