"""Waiting for what must happen, on a machine that may be very busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

PATIENCE = 120.0  # seconds for anything to happen


def until(true: Callable[[], Any], what: str | Callable[[], object], seconds: float = PATIENCE) -> Any:
    """Waits for a condition; its value. what: what is waited for, or a function that says why it may not have come."""
    deadline = time.monotonic() + seconds
    while not (value := true()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.02)
    return value


def until_gone(pids: Iterable[int], what: str = "the processes' end") -> None:
    """Waits until these processes have ended and somebody has waited for them."""
    left = list(pids)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left), what)
