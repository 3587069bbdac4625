"""The collective clock: the protocol that finds a moment at which no rank is inside a collective.

It contains both ends of the real protocol without I/O: the coordinator uses ``Controller``, and the C wrappers follow
``RankClock``. A simulator (``manapy.clock.model``) runs programs on them. Programs under manapy can call ``table()``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core import lazy

if TYPE_CHECKING:
    from ._explain import explain_disabled
    from ._state import (
        WORLD,
        Mode,
        Phase,
        Row,
        Stage,
        State,
        Thread,
        Verdict,
        child_identity,
        ggid,
        group_identity,
    )
    from ._table import table
    from .controller import Controller, Counters
    from .messages import WireError, from_wire
    from .rank import RankClock

_HOMES = {
    "_explain": ("explain_disabled",),
    "_state": (
        "WORLD",
        "Mode",
        "Phase",
        "Row",
        "Stage",
        "State",
        "Thread",
        "Verdict",
        "child_identity",
        "ggid",
        "group_identity",
    ),
    "_table": ("table",),
    "controller": ("Controller", "Counters"),
    "messages": ("WireError", "from_wire"),
    "rank": ("RankClock",),
}
# most commands need none of them
__getattr__ = lazy.names_of(__name__, _HOMES)

__all__ = [
    "WORLD",
    "Controller",
    "Counters",
    "Mode",
    "Phase",
    "RankClock",
    "Row",
    "Stage",
    "State",
    "Thread",
    "Verdict",
    "WireError",
    "child_identity",
    "explain_disabled",
    "from_wire",
    "ggid",
    "group_identity",
    "table",
]
