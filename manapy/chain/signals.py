"""The signals by which users and schedulers end a run."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def heeded() -> list[signal.Signals]:
    """The signals to handle: those of SIGNALS that are not ignored, as SIGHUP is under nohup."""
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


@contextlib.contextmanager
def handled(handler: Callable[[int, object], object]) -> Iterator[None]:
    """Call ``handler`` for each of these signals meanwhile."""
    before = {number: signal.signal(number, handler) for number in heeded()}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
