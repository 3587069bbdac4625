"""The collective clock: the protocol that finds a moment at which no rank is inside a collective.

Both ends of the real protocol are here without I/O (``Controller`` is used by the coordinator, ``RankClock`` is what the C
wrappers follow), and a simulator (``manapy.clock.model``) that runs programs on them. ``table()`` is for programs under manapy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
        "WORLD", "Mode", "Phase", "Row", "Stage", "State", "Thread", "Verdict", "child_identity", "ggid",
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


def __getattr__(name: str) -> Any:
    """Loaded at first use: most commands need none of it."""
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
