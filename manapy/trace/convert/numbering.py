"""Numbers the collectives of recordings without numbers: finds which calls of two ranks are the same collective.

A recording that begins with the job is counted from its first call. A profiler's window may begin later on one rank
than on another. Then the calls of each rank are shifted against those of a first rank until the operations are the
same, and no rank leaves a collective before another one has come, as far as the clocks are known.

Invariants
 1. A rank of which two shifts are possible is not numbered, and a note says so.
 2. A rank of which no collective could be numbered is left out. Its clock is not known, and its calls would be compared
    with those that others made at another time.
"""

from __future__ import annotations

from ..capture.clocks import MEETING
from ..model.events import OPEN
from ..model.match import IS_COLLECTIVE
from .foreign import Call, ForeignJob, some

SHIFTS = 16  # the largest difference of two windows, in calls of one group
TRUST = 20_000_000  # ns; clocks of hosts are assumed to be right by this
BASES = 3  # so many ranks are tried as the one that the others are compared with: its clock may be the wrong one
FARTHEST = 1_000_000_000  # ns; a shift is refused if the clocks would have to be wrong by more


def number(job: ForeignJob) -> None:
    """Set `seq` of all collectives with a group, and leave out ranks that can't be compared. Adds notes on both."""
    unrelated = set()
    for key in job.groups:
        calls = {
            rank.rank: sorted(mine, key=lambda call: call.enter)
            for _, rank in sorted(job.ranks.items())
            if (mine := [call for call in rank.calls if call.group == key and IS_COLLECTIVE[call.op]])
        }
        base, shifts = max(
            ((base, _shifts(job, calls, base)) for base in list(calls)[:BASES]),
            key=lambda one: len(one[1]),
            default=(-1, {}),
        )
        first = min(shifts.values(), default=0)
        for rank, shift in shifts.items():
            for place, call in enumerate(calls[rank]):
                call.seq = place + shift - first + 1
        if missing := sorted(calls.keys() - shifts.keys()):
            unrelated.update(missing)
            job.notes.append(
                f"which calls on {job.groups[key].name or key} of rank {some(missing)} belong to those of rank {base} "
                "can't be told (clocks too far apart, or windows that don't overlap): they are not compared"
            )
    for rank in sorted(unrelated):
        if not any(call.seq for call in job.ranks[rank].calls):
            del job.ranks[rank]


def _shifts(job: ForeignJob, calls: dict[int, list[Call]], base: int) -> dict[int, int]:
    """Return for each rank the place of its first call in the calls of rank `base`, if it can be told."""
    found = {}
    for number, mine in calls.items():
        rank, other = job.ranks[number], job.ranks[base]
        if number == base or not (rank.since or other.since):
            found[number] = 0
        elif (shift := _shift(calls[base], mine, 0 if rank.host and rank.host == other.host else TRUST)) is not None:
            found[number] = shift
    return found


def _shift(base: list[Call], mine: list[Call], trust: int) -> int | None:
    """Return the place of the first of `mine` in `base`, or None if it can't be told."""
    possible = []
    for shift in range(-min(SHIFTS, len(mine) - 1), min(SHIFTS, len(base) - 1) + 1):
        pairs = list(zip(base[max(shift, 0) :], mine[max(-shift, 0) :], strict=False))
        if (away := _away(pairs)) is not None:
            possible.append((away, abs(shift), shift))
    possible.sort()
    if not possible or possible[0][0] > FARTHEST:
        return None
    if len(possible) > 1 and possible[1][0] - possible[0][0] <= trust:
        return None
    return possible[0][2]


def _away(pairs: list[tuple[Call, Call]]) -> int | None:
    """Return by how much the clocks of two ranks must at least be wrong, ns, if these calls are pairs. None: they are
    no pairs, or all could be, as none of them waits for all ranks."""
    low, high, met = -(1 << 62), 1 << 62, False
    for one, other in pairs:
        if one.op != other.op:
            return None
        if one.op in MEETING and one.exit != OPEN and other.exit != OPEN:
            low, high, met = max(low, one.enter - other.exit), min(high, one.exit - other.enter), True
    if low > high or not met:
        return None
    return max(low, -high, 0)
