"""Ctrl-C ends a command that runs for ever: between two steps, never in the middle of one."""

from __future__ import annotations

import contextlib
import signal
import time
from types import FrameType
from typing import Any


class _Woken(BaseException):
    """A signal has arrived during a wait."""


class Leaving:
    """Turns signals into a request to leave. asked: a signal has arrived.

    The second signal ends the step, too, as KeyboardInterrupt. A signal that was ignored at the start stays ignored.
    """

    def __init__(self, *signals: signal.Signals) -> None:
        self.asked = False
        self._waits = False
        self._signals = [
            number for number in signals or (signal.SIGINT,) if signal.getsignal(number) is not signal.SIG_IGN
        ]
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Leaving:
        self._before = {number: signal.signal(number, self._come) for number in self._signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def wait(self, seconds: float) -> bool:
        """Wait for that long, or until a signal asks to leave. Returns whether one has."""
        with contextlib.suppress(_Woken):
            self._waits = True
            if not self.asked:
                time.sleep(seconds)
            self._waits = False
        self._waits = False
        return self.asked

    def _come(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        if self._waits:
            raise _Woken
