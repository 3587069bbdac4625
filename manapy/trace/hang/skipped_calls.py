"""Finds a call that a rank has left out, by what it did at the same place before.

Programs repeat themselves. Suppose that, each time before, the same calls were followed by a call A and then by a call
B. If they are now followed directly by B, the rank has left out A. If the history differs even once, there is no
result. Longer histories are tried first. The end of a loop looks the same, so the caller must know that another rank
waits for exactly this call.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core.fnv import PRIME
from ..model.events import Trace
from ..model.match import IS_COMPLETION, Matching

CONTEXTS = (8, 4, 2)  # lengths of the compared history, calls
LOOK_BACK = 256  # calls
_PRIME = np.uint64(PRIME)


@dataclass(frozen=True)
class Skipped:
    """A call that a rank has left out. like: an event that is the call as it was made before. before: the event that
    came instead. Both are indices."""

    like: int
    before: int


def skipped(trace: Trace, matching: Matching, rank: int, since: int = 0) -> list[Skipped]:
    """Return the calls that a rank left out, newest first, among its last LOOK_BACK calls that were entered after
    `since` (ns). Nothing counts as left out while recording was paused."""
    events = trace.events
    if rank in trace.ranks and trace.ranks[rank].pauses:
        since = max(since, trace.ranks[rank].first_ns)
    lo, hi = matching.of_rank(rank)
    mine = np.arange(lo, hi)
    if hi == lo:
        return []
    mine = mine[events["thread"][mine] == events["thread"][hi - 1]]
    signature = _signatures(events, matching, mine)
    for context in CONTEXTS:
        if found := _left_out(events, mine, signature, context, since):
            return found
    return []


def _left_out(events: np.ndarray, mine: np.ndarray, signature: np.ndarray, context: int, since: int) -> list[Skipped]:
    # rolling[i]: hash of the signatures of the `context` calls before place i
    rolling = np.zeros(len(mine), np.uint64)
    for back in range(1, min(context, len(mine)) + 1):
        rolling[back:] = rolling[back:] * _PRIME + signature[: len(mine) - back]
    found = []
    for at in range(len(mine) - 1, max(context, len(mine) - LOOK_BACK) - 1, -1):
        if events["enter"][mine[at]] < since:
            break
        earlier = context + np.flatnonzero(rolling[context : at - 1] == rolling[at])
        if (
            not len(earlier)
            or (signature[earlier] != signature[earlier[0]]).any()
            or signature[earlier[0]] == signature[at]
        ):
            continue
        if (signature[earlier + 1] == signature[at]).all():
            found.append(Skipped(int(mine[earlier[-1]]), int(mine[at])))
    return found


def _signatures(events: np.ndarray, matching: Matching, mine: np.ndarray) -> np.ndarray:
    """Return a number for each call, uint64. Calls that do the same have the same number."""
    rows = np.stack(
        [
            matching.op[mine],
            matching.comm[mine],
            matching.peer[mine],
            matching.tag[mine],
            events["flags"][mine].astype(np.int64) & 15,
        ]
    )
    completions = IS_COMPLETION[events["op"][mine]]
    rows[1:4, completions] = 0  # the post already shows what they complete
    number = np.unique(rows, axis=1, return_inverse=True)[1].reshape(-1).astype(np.uint64)
    return (number + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
