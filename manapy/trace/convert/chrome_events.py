"""Fields of events in Chrome's format, checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .foreign import ForeignError

SECOND = 10**9  # Times may count from anywhere. They begin here: 0 would be read as the exit of an open call.


def time(path: Path, event: Mapping[str, Any], key: str, base: int = 0) -> int:
    """Return a time of an event, ns. Raises ForeignError."""
    value = event.get(key)
    try:
        found = base + round(float(value) * 1000)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ForeignError(f"{path}: the event {str(event.get('name'))[:40]!r} has no {key}") from None
    if not 0 <= found < 1 << 62:
        raise ForeignError(f"{path}: the event {str(event.get('name'))[:40]!r} has an impossible {key}: {value}")
    return found


def arguments(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of an event; none if they are damaged."""
    found = event.get("args")
    return found if isinstance(found, Mapping) else {}


def integer(value: Any, otherwise: int) -> int:
    """Return a value as an integer, or `otherwise` if it is none."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return otherwise
