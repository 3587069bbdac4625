"""The collective clock: the protocol that finds a moment at which no rank is inside a collective.

It contains both ends of the real protocol without I/O: the coordinator uses ``Controller``, and the C wrappers follow
``RankClock``. A simulator (``manapy.clock.model``) runs programs on them. Programs under manapy can call ``table()``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._explain import explain_disabled
    from ._state import (
        WORLD,
        ClockPhase,
        Decision,
        Mode,
        Row,
        Stage,
        State,
        Thread,
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
        "ClockPhase",
        "Row",
        "Stage",
        "State",
        "Thread",
        "Decision",
        "child_identity",
        "ggid",
        "group_identity",
    ),
    "_table": ("table",),
    "controller": ("Controller", "Counters"),
    "messages": ("WireError", "from_wire"),
    "rank": ("RankClock",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "WORLD",
    "Controller",
    "Counters",
    "Mode",
    "ClockPhase",
    "RankClock",
    "Row",
    "Stage",
    "State",
    "Thread",
    "Decision",
    "WireError",
    "child_identity",
    "explain_disabled",
    "from_wire",
    "ggid",
    "group_identity",
    "table",
]


def __getattr__(name: str) -> Any:
    """Load names at first use, because most commands need none of them."""
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
