"""The clock of the running process, as the wrapper library keeps it (mpy_clock_row_t in boundary.h)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Communicator:
    """One communicator of the running process.

    cid: its identity, the same on all members; seq: collective calls initiated on it by this process; target: the SEQ
    of the current or last checkpoint's TARGETS (0: none yet); members: world ranks in the order of the communicator's
    ranks.
    """

    cid: int
    ggid: int
    seq: int
    target: int
    members: tuple[int, ...]
    name: str
    handle: int


def table() -> dict[int, list[Communicator]]:
    """The communicators of this process, listed under their ggid (communicators of the same ranks share one).

    Other threads may increase the values meanwhile. Outside manapy: {}, with a RuntimeWarning; also {} before the
    program has loaded MPI.
    """
    from ..core import boundary

    if boundary.lower() is None:
        boundary.warn_not_launched("clock.table() is empty")
        return {}
    block = boundary.upper()
    result: dict[int, list[Communicator]] = {}
    if block is None or not block.clock.rows:
        return result
    for i in range(block.clock.nrows):
        row = block.clock.rows[i]
        if row.cid and row.handle != boundary.ROW_FREED:
            members = tuple(row.members[: row.nmembers])
            name = row.name.decode(errors="replace") if row.name else ""
            result.setdefault(row.ggid, []).append(
                Communicator(row.cid, row.ggid, row.seq, row.target, members, name, row.handle)
            )
    return result
