"""Ctrl-C as the way to end a command that goes on and on: between two steps, never in the middle of one."""

from __future__ import annotations

import contextlib
import signal
import time
from types import FrameType
from typing import Any


class _Woken(BaseException):
    """A signal has come while nothing was done."""


class Leaving:
    """asked: a signal has come. The second one ends the step, too, as KeyboardInterrupt. A signal that whoever started
    this wants to be ignored is."""

    def __init__(self, *signals: signal.Signals) -> None:
        self.asked = False
        self._waits = False
        self._signals = [number for number in signals or (signal.SIGINT,) if signal.getsignal(number) is not signal.SIG_IGN]
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Leaving:
        self._before = {number: signal.signal(number, self._come) for number in self._signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def wait(self, seconds: float) -> bool:
        """So long, or until one is asked to leave; whether one is."""
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
