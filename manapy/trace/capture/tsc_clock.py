"""Reads this host's clocks together with the time-stamp counter. This relates recorded ticks to the current time, and
this host to others (clocks.py)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from ...core import installation
from .clocks import Sample
from .format import SampleStruct
from .preload import FULL


@functools.cache
def _reader() -> Callable[[Any], None] | None:
    library = installation.library(FULL)
    return ctypes.CDLL(str(library)).manapy_trace_clocks if library is not None else None


def now() -> Sample | None:
    """Read the clocks of this host. Returns None if this installation has no recorder."""
    read = _reader()
    if read is None:
        return None
    taken = SampleStruct()
    read(ctypes.byref(taken))
    return Sample(taken.ticks, taken.realtime, taken.monotonic)
