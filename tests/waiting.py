"""Waiting for events that must happen, on a machine that may be very busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

PATIENCE = 120.0  # seconds to wait for anything


def until(true: Callable[[], Any], what: str | Callable[[], object], seconds: float = PATIENCE) -> Any:
    """Wait for a condition; its value. what: the event that is waited for, or a function that explains why it may not
    have come."""
    begun = looked = time.monotonic()
    while not (value := true()):
        if time.monotonic() > begun + seconds:
            raise AssertionError(f"not within {seconds:.0f} s: {what if isinstance(what, str) else what()}")
        pause_after(looked)
        looked = time.monotonic()
    return value


def pause_after(looked: float, least: float = 0.02) -> None:
    """Pause before the next look at a condition; the last one began at this (monotonic) time. A look that costs much,
    such as a command, is not taken all the time: other tests need the processors. least: seconds"""
    time.sleep(min(max(least, 2 * (time.monotonic() - looked)), 1.0))


def until_gone(pids: Iterable[int], what: str = "the processes' end") -> None:
    """Wait until these processes have ended and have been reaped."""
    left = list(pids)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left), what)
