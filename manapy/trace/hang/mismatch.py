"""Finds collectives whose members made different calls, or named different roots, at the same place."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ..model import calls
from ..model.events import NO_PEER
from ..model.verdict import Cause
from . import missing
from .suspects import Suspects
from .timeouts import FLOOR


def find(search: Suspects) -> set[int]:
    """Accuse the members that made a different call than the majority. Returns the instances of such collectives."""
    m, events = search.matching, search.trace.events
    instances = {
        int(m.collectives.of[w.event])
        for call in search.graph.calls
        for w in call.wants
        if m.collectives.of[w.event] >= 0
    }
    found = set()
    for instance in sorted(instances):
        theirs = m.collectives.calls(instance)
        op, root = events["op"][theirs], events["peer"][theirs]
        if search.trace.comms[int(m.collectives.comm[instance])].remote:
            root = np.full(len(theirs), NO_PEER)  # one group names the root, the other one MPI_ROOT or MPI_PROC_NULL
        made = [(int(o), int(r) if r >= 0 else NO_PEER) for o, r in zip(op, root, strict=True)]
        kinds = Counter(made)
        if len(kinds) < 2:
            continue
        found.add(instance)
        if search.trace.now - int(events["enter"][theirs].max()) < FLOOR and not search.over:
            continue
        usual, most = kinds.most_common(1)[0]
        odd = [int(e) for e, call in zip(theirs, made, strict=True) if call != usual]
        alone = 2 * most > len(made)
        if not alone:
            guilty = [
                e for e in theirs.tolist() if missing.left_out(search, int(events["rank"][e]), instance) is not None
            ]
            alone = 0 < len(guilty) < len(theirs)
            odd = guilty if alone else odd
        _report(search, theirs, odd, alone, instance)
        search.accused.update(events["rank"][theirs].tolist())
    return found


def _report(search: Suspects, theirs: np.ndarray, odd: list[int], alone: bool, instance: int) -> None:
    """Add the verdict. theirs: the calls of an instance. odd: the calls that differ from the others. alone: only the
    odd calls are wrong."""
    m, events = search.matching, search.trace.events
    usual = [int(e) for e in theirs if int(e) not in odd]
    rank = int(events["rank"][odd[0]])
    what, others = (calls.describe(search.trace, m, e) for e in (odd[0], usual[0]))
    left_out = missing.left_out(search, rank, instance) if alone else None
    these, those = (sorted(int(events["rank"][e]) for e in some) for some in (odd, usual))
    if alone:
        whose = "others" if len(usual) > 1 else search.name(those[0])
        skipped = f"; it has left out {calls.describe(search.trace, m, left_out)}" if left_out is not None else ""
        sentence = f"{search.stuck(rank)}: it called {what}, where {whose} called {others}{skipped}"
    else:
        where = f" in {place}" if (place := search.where(rank)) else ""
        sentence = (
            f"{calls.named(these)} and {calls.named(those)} don't agree{where}:"
            f" {calls.named(these)} called {what}, where {calls.named(those)} called {others}"
        )
    search.add(
        rank if alone else None,
        Cause.MISSING if left_out is not None else Cause.MISMATCH,
        sentence,
        call=what,
        since_ns=int(events["enter"][theirs].max()),
        evidence=tuple(f"rank {int(events['rank'][e])}: {calls.describe(search.trace, m, int(e))}" for e in theirs[:8]),
        confidence=0.95 if alone else 0.8,
        action="compare the paths that these ranks have taken through the program before this call",
    )
