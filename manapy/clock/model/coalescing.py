"""Reports of a control thread that runs only from time to time, as the C one does (lowerhalf/control/clockside.c): what
has changed since it last ran."""

from __future__ import annotations

from collections.abc import Sequence

from .._state import State
from ..messages import Done, FromRank, Frozen, NotFrozen, Raise, Retract, Rows, StateReport


def coalesce(outbox: Sequence[FromRank]) -> list[FromRank]:
    """The messages that a control thread sends if it runs only now. Its answers to FREEZE are sent at once, each after
    the reports before it."""
    sent: list[FromRank] = []
    reports: list[FromRank] = []
    for m in outbox:
        if isinstance(m, (Frozen, NotFrozen)):
            sent += [*_summary(reports), m]
            reports = []
        else:
            reports.append(m)
    return sent + _summary(reports)


def _summary(outbox: Sequence[FromRank]) -> list[FromRank]:
    """Last state, highest SEQ, all under the last version."""
    version = max((m.version for m in outbox if not isinstance(m, Done)), default=0)
    rows = tuple(row for m in outbox if isinstance(m, Rows) for row in m.rows)
    raises = {m.cid: m.seq for m in outbox if isinstance(m, Raise)}
    states = [m for m in outbox if isinstance(m, StateReport)]
    epoch = next((m.epoch for m in outbox if not isinstance(m, Done)), 0)
    state = [states[-1]._replace(version=version)] if states else []
    risen = [Raise(epoch, version, cid, seq) for cid, seq in raises.items()]
    sent: list[FromRank] = [Retract(epoch, version)] if any(isinstance(m, Retract) for m in outbox) else []
    sent += [Rows(epoch, version, rows)] if any(isinstance(m, Rows) for m in outbox) else []
    if state and any(t.state is State.IN_COLLECTIVE for t in state[0].threads):
        sent += [*state, *risen]
    else:
        sent += [*risen, *state]
    return sent + [m for m in outbox if isinstance(m, Done)]
