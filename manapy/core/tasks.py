"""Asyncio tasks for which no code waits.

Invariants
 1. A task is kept until it ends (asyncio itself keeps only weak references).
 2. A task that fails is logged with its traceback; the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """The tasks of a server. log: where failures are said."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Begin in the running loop."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Cancel all that still run."""
        for task in self._running:
            task.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._log.error("internal error", exc_info=task.exception())
