"""Waiting for events that must happen, on a machine that may be very busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

PATIENCE = 120.0  # seconds to wait for anything


def until(true: Callable[[], Any], what: str | Callable[[], object], seconds: float = PATIENCE) -> Any:
    """Wait for a condition; its value. what: the event that is waited for, or a function that explains why it may not
    have come."""
    for _ in looks(seconds):
        if value := true():
            return value
    raise AssertionError(f"not within {seconds:.0f} s: {what if isinstance(what, str) else what()}")


def looks(seconds: float = PATIENCE, pause: float = 0.02) -> Iterator[None]:
    """Once for each look at a condition, until the time is over. Between two looks there are pauses of at least this
    many seconds. A look that costs much, such as a command, is not taken all the time: other tests need the
    processors."""
    end = time.monotonic() + seconds
    while (looked := time.monotonic()) < end:
        yield
        time.sleep(min(max(pause, 2 * (time.monotonic() - looked)), 1.0))


def until_gone(pids: Iterable[int], what: str = "the processes' end") -> None:
    """Wait until these processes have ended and have been reaped."""
    left = list(pids)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left), what)
