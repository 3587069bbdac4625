"""The collective clock: the protocol that finds a moment at which no rank is inside a collective.

Both ends of the real protocol are here without I/O (``Controller`` is used by the coordinator, ``RankClock`` is what the C
wrappers follow), and a simulator (``manapy.clock.model``) that runs programs on them. ``table()`` is for programs under manapy.
"""

from __future__ import annotations

from typing import Any

from ._state import WORLD, Mode, Phase, Row, State, Verdict, child_identity, ggid, group_identity
from .controller import Controller, Counters, Stage
from .messages import WireError, from_wire
from .rank import RankClock

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
    "Verdict",
    "WireError",
    "child_identity",
    "from_wire",
    "ggid",
    "group_identity",
    "table",
]


def __getattr__(name: str) -> Any:
    if name == "table":
        from ._table import table

        return table
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
